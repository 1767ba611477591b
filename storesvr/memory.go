package storesvr

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/disk"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// MemoryStorage is a disk that exists only in memory, for simulation: it
// outlives the Node that is started on it, and loses nothing in a crash but what
// a real node would have in its overlay. A restart therefore restores the last
// snapshot and replays the log.
func MemoryStorage() Storage {
	log := raft.NewInmemStore()
	return Storage{
		Log:       log,
		Stable:    log,
		Snapshots: &memorySnapshots{},
		Keys:      newMemoryKeys(),
		Identity:  &memoryIdentity{},
		Close:     func() error { return nil },
	}
}

type memoryIdentity struct {
	mu sync.Mutex
	id disk.Identity
}

func (m *memoryIdentity) Identity() disk.Identity {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id
}

func (m *memoryIdentity) SaveIdentity(clusterID string, joined bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if clusterID != "" {
		m.id.ClusterID = clusterID
	}
	m.id.Joined = m.id.Joined || joined
	return nil
}

// memoryKeys is a Backend that flushes nothing.
type memoryKeys struct {
	mu   sync.RWMutex
	keys *state.MapKeys
	// withGaps are the keys that have a ledger.
	withGaps map[ids.Key]bool
}

func newMemoryKeys() *memoryKeys {
	return &memoryKeys{keys: state.NewMapKeys(), withGaps: map[ids.Key]bool{}}
}

func (m *memoryKeys) Get(k ids.Key) (state.Record, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.keys.Get(k)
}

func (m *memoryKeys) Put(k ids.Key, r state.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys.Put(k, r)
}

func (m *memoryKeys) Gaps(k ids.Key) []state.Gap {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.keys.Gaps(k)
}

func (m *memoryKeys) PutGaps(k ids.Key, g []state.Gap) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys.PutGaps(k, g)
	m.withGaps[k] = true
}

func (m *memoryKeys) Delete(k ids.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys.Delete(k)
	delete(m.withGaps, k)
}

// Load forgets everything, as a crash does.
func (m *memoryKeys) Load() (uint64, *state.Meta, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys, m.withGaps = state.NewMapKeys(), map[ids.Key]bool{}
	return 0, nil, nil
}

func (m *memoryKeys) Commit(uint64, *state.Meta)                       {}
func (m *memoryKeys) Flush(context.Context, uint64, *state.Meta) error { return nil }

func (m *memoryKeys) Snapshot(index uint64, meta *state.Meta) (SnapshotView, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	copied := meta.Clone()
	return &memoryView{
		applied: index, meta: &copied, keys: m.keys.Clone(),
		withGaps: slices.SortedFunc(maps.Keys(m.withGaps), ids.Key.Compare),
	}, nil
}

func (m *memoryKeys) Stage(r io.Reader, check func(uint64, *state.Meta) error) (disk.SnapshotSummary, func() error, error) {
	b := &memoryBuilder{memoryKeys: newMemoryKeys(), check: check}
	sum, err := disk.ReadSnapshot(r, b)
	if err != nil {
		return sum, nil, err
	}
	return sum, func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.keys, m.withGaps = b.keys, b.withGaps
		return nil
	}, nil
}

func (m *memoryKeys) Cut(f disk.Filter, after ids.Key, limit int) Cut {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := &memoryCut{next: after, done: true}
	m.keys.Each(func(k ids.Key, r state.Record) bool {
		if after != (ids.Key{}) && k.Compare(after) <= 0 || !f.Wants(k, r) {
			return true
		}
		if len(c.page) == limit {
			c.done = false
			return false
		}
		kr := disk.KeyRecord{Key: k, Record: r}
		if f.Ledgers {
			kr.Gaps = m.keys.Gaps(k)
		}
		c.page, c.next = append(c.page, kr), k
		return true
	})
	return c
}

type memoryCut struct {
	page []disk.KeyRecord
	next ids.Key
	done bool
}

func (c *memoryCut) Read() ([]disk.KeyRecord, ids.Key, bool) { return c.page, c.next, c.done }
func (c *memoryCut) Count() (int, ids.Key, bool)             { return len(c.page), c.next, c.done }
func (c *memoryCut) Close()                                  {}

type memoryView struct {
	applied  uint64
	meta     *state.Meta
	keys     *state.MapKeys
	withGaps []ids.Key
}

func (v *memoryView) Head() (uint64, *state.Meta) { return v.applied, v.meta }
func (v *memoryView) Release()                    {}

func (v *memoryView) EachRecord(f func(ids.Key, state.Record) error) (err error) {
	v.keys.Each(func(k ids.Key, r state.Record) bool { err = f(k, r); return err == nil })
	return err
}

func (v *memoryView) EachGaps(f func(ids.Key, []state.Gap) error) error {
	for _, k := range v.withGaps {
		if err := f(k, v.keys.Gaps(k)); err != nil {
			return err
		}
	}
	return nil
}

type memoryBuilder struct {
	*memoryKeys
	check func(uint64, *state.Meta) error
}

func (b *memoryBuilder) Head(applied uint64, meta *state.Meta) error {
	if b.check == nil {
		return nil
	}
	return b.check(applied, meta)
}

func (b *memoryBuilder) Record(k ids.Key, r state.Record) error { b.Put(k, r); return nil }
func (b *memoryBuilder) Gaps(k ids.Key, g []state.Gap) error    { b.PutGaps(k, g); return nil }
func (b *memoryBuilder) Finish() error                          { return nil }

// memorySnapshots keeps the newest whole snapshot. (raft.InmemSnapshotStore
// shows one that is still being written as the newest.)
type memorySnapshots struct {
	mu   sync.Mutex
	made int
	meta *raft.SnapshotMeta
	data []byte
}

func (s *memorySnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	return &memorySink{s: s, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d-%d", term, index, s.made),
		Index: index, Term: term, Configuration: c, ConfigurationIndex: cIndex,
	}}, nil
}

func (s *memorySnapshots) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meta == nil {
		return nil, nil
	}
	m := *s.meta
	return []*raft.SnapshotMeta{&m}, nil
}

func (s *memorySnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meta == nil || s.meta.ID != id {
		return nil, nil, fmt.Errorf("snapshot %s: there is no such", id)
	}
	m := *s.meta
	return &m, io.NopCloser(bytes.NewReader(s.data)), nil
}

type memorySink struct {
	s    *memorySnapshots
	meta raft.SnapshotMeta
	buf  bytes.Buffer
	over bool
}

func (k *memorySink) Write(b []byte) (int, error) { return k.buf.Write(b) }
func (k *memorySink) ID() string                  { return k.meta.ID }
func (k *memorySink) Cancel() error               { k.over = true; return nil }

func (k *memorySink) Close() error {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	if k.over {
		return nil
	}
	k.over = true
	k.meta.Size = int64(k.buf.Len())
	if k.s.meta == nil || k.meta.Index >= k.s.meta.Index {
		k.s.meta, k.s.data = &k.meta, k.buf.Bytes()
	}
	return nil
}
