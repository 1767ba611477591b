package storesvr

import "github.com/hashicorp/raft"

// cachedLog is Raft's log with its newest entries in memory, each a copy of its
// own. Raft's cache keeps the pointers that it is given, and those of a leader
// point into what its proposers wait for, so that it would keep the answers too:
// those of an AllocSvr's batches are larger than the batches.
type cachedLog struct{ *raft.LogCache }

func newCachedLog(store raft.LogStore) (cachedLog, error) {
	c, err := raft.NewLogCache(raftLogCache, store)
	return cachedLog{c}, err
}

func (c cachedLog) StoreLog(l *raft.Log) error { return c.StoreLogs([]*raft.Log{l}) }

func (c cachedLog) StoreLogs(logs []*raft.Log) error {
	own := make([]*raft.Log, len(logs))
	for i, l := range logs {
		// Not in one slice: an entry would keep those that the cache has let go.
		entry := *l
		own[i] = &entry
	}
	return c.LogCache.StoreLogs(own)
}
