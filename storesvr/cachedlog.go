package storesvr

import "github.com/hashicorp/raft"

// cachedLog is Raft's log with its newest entries in memory, each a copy of its
// own. Raft's cache keeps the pointers that it is given, and those of a leader
// point into what its proposers wait for, so that it would keep the answers too:
// those of an AllocSvr's batches are larger than the batches.
type cachedLog struct {
	*raft.LogCache
	below *toldLog
}

func newCachedLog(store raft.LogStore) (cachedLog, error) {
	below := &toldLog{LogStore: store}
	c, err := raft.NewLogCache(raftLogCache, below)
	return cachedLog{c, below}, err
}

func (c cachedLog) StoreLog(l *raft.Log) error { return c.StoreLogs([]*raft.Log{l}) }

func (c cachedLog) StoreLogs(logs []*raft.Log) error {
	own := make([]*raft.Log, len(logs))
	for i, l := range logs {
		// Not in one slice: an entry would keep those that the cache has let go.
		entry := *l
		own[i] = &entry
	}
	if err := c.LogCache.StoreLogs(own); err != nil {
		return c.below.failed
	}
	return nil
}

// toldLog keeps what the store said of its last failure to write: Raft's cache
// answers a quotation of it, without its type. Raft writes from one goroutine.
type toldLog struct {
	raft.LogStore
	failed error
}

func (l *toldLog) StoreLogs(logs []*raft.Log) error {
	l.failed = l.LogStore.StoreLogs(logs)
	return l.failed
}
