package storesvr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/disk"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// Storage is everything that outlives a Node.
type Storage struct {
	Log       raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore
	Keys      Backend
	Identity  IdentityStore
	Close     func() error
	// Free bytes of the disk; nil: not known.
	Free func() (uint64, error)
	// failed tells of a disk failure that came up outside of any call; nil: there are none.
	failed *failure
}

// Backend keeps the per-key state and, beside it, the meta state. All methods
// but Get, Gaps and Cut are for the one goroutine that applies. It panics with
// its error when it cannot read or write.
type Backend interface {
	state.Keys
	// Load answers what outlived the last process: the index of the last entry in it, 0 for none.
	Load() (applied uint64, meta *state.Meta, err error)
	// Commit says that the state is now that after the entry at index.
	Commit(index uint64, meta *state.Meta)
	// Snapshot marks this moment.
	Snapshot(index uint64, meta *state.Meta) (SnapshotView, error)
	// Stage reads a snapshot that is to replace everything, which swap then does. Until
	// then, and when the snapshot or check refuses, everything stands.
	Stage(r io.Reader, check func(applied uint64, meta *state.Meta) error) (sum disk.SnapshotSummary, swap func() error, err error)
	// Cut is a page of records that the filter wants, in key order, as they are now.
	Cut(f disk.Filter, after ids.Key, limit int) Cut
	// Flush makes everything up to index outlive the process without the log.
	Flush(ctx context.Context, index uint64, meta *state.Meta) error
}

// Cut is a page of one moment. It is read or counted once, or closed.
type Cut interface {
	Read() (page []disk.KeyRecord, next ids.Key, done bool)
	Count() (n int, next ids.Key, done bool)
	Close()
}

// SnapshotView is one moment of a Backend.
type SnapshotView interface {
	disk.SnapshotSource
	Release()
}

// IdentityStore keeps what a node has learned of itself.
type IdentityStore interface {
	Identity() disk.Identity
	SaveIdentity(clusterID string, joined bool) error
}

// snapshotsRetained: one to send while the next is written.
const snapshotsRetained = 2

// OpenDisk opens a node's directory. It refuses that of another cluster, Set or
// node, a damaged one, and one of which a part is missing; it never resets one.
func OpenDisk(dir string, cfg Config) (Storage, error) {
	cfg = cfg.withDefaults()
	f := newFailure()
	o := cfg.StateFile
	o.Failed = f.set
	want := disk.Identity{Cluster: cfg.Cluster, Set: cfg.Set, Node: cfg.ID, ClusterID: cfg.ClusterID}
	d, err := disk.OpenDir(dir, want, o)
	if err != nil {
		return Storage{}, err
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsRetained, newHclog(cfg.Logger.Named("snapshots")))
	if err != nil {
		return Storage{}, errors.Join(fmt.Errorf("open %s: %w", filepath.Join(dir, "snapshots"), err), d.Close())
	}
	return Storage{
		Log:       d.Log,
		Stable:    d.Log,
		Snapshots: snaps,
		Keys:      diskBackend{d.State},
		Identity:  d,
		Close:     d.Close,
		Free:      func() (uint64, error) { return disk.Free(dir) },
		failed:    f,
	}, nil
}

// Verify checks a stopped node's directory whole. See disk.Verify.
func Verify(dir string) (disk.Report, error) {
	if _, err := os.Stat(dir); err != nil {
		return disk.Report{}, err
	}
	return disk.Verify(dir)
}

type diskBackend struct{ *disk.Store }

func (b diskBackend) Snapshot(index uint64, meta *state.Meta) (SnapshotView, error) {
	return b.Store.Snapshot(index, meta)
}

func (b diskBackend) Cut(f disk.Filter, after ids.Key, limit int) Cut {
	return b.Store.Cut(f, after, limit)
}

// failure is set once, and then for ever.
type failure struct {
	mu  sync.Mutex
	err error
	c   chan struct{}
}

func newFailure() *failure { return &failure{c: make(chan struct{})} }

func (f *failure) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
		close(f.c)
	}
}

func (f *failure) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}
