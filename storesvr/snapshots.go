package storesvr

import (
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/storesvr/disk"
)

// snapshotGuard stands between Raft and its snapshots.
//
// Raft installs whatever snapshot arrives, also one that is older than what it has:
// a request that was delayed, or that the network has doubled. It would go back in
// what it counts as applied and as its members, and look for entries that it has
// compacted. The guard refuses those; Raft then answers the leader with an error
// and nothing has changed.
//
// Nobody starves of that. A leader sends a snapshot when its log has no entry any
// more that this node has too. But what is applied here is committed: a leader has
// it, as an entry or in a snapshot that is not older, and this node has it as an
// entry too, or as the end of its own snapshot. A leader begins at its own end and
// goes back one by one, never beyond that entry. One that is just as old is not
// refused: the leader may have missed the answer, and sends it until it gets one.
type snapshotGuard struct {
	raft.SnapshotStore
	// applied is what Raft has applied.
	applied func() uint64
	fail    func(error)

	mu sync.Mutex
	// own: the state was asked for a snapshot, when it had been given the entries up
	// to ownFrom, and Raft has not created it yet.
	own     bool
	ownFrom uint64
}

// StaleSnapshotError refuses a snapshot that is older than what this node has.
type StaleSnapshotError struct{ Snapshot, Has uint64 }

func (e *StaleSnapshotError) Error() string {
	return fmt.Sprintf("the snapshot is of entry %d, and this node has %d: it was overtaken, and nothing needs to be done", e.Snapshot, e.Has)
}

// taking is told when Raft begins a snapshot of its own, before it creates it.
func (g *snapshotGuard) taking(from uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.own, g.ownFrom = true, from
}

// Create is called for a snapshot of this node's as well as for a leader's. The
// former may well be behind by now; Raft asks the state for it first, by which it
// is known. Should a stale one of a leader's arrive in that moment and not be older
// than the state was, it passes for it, and this node's own may be refused and is
// taken again later. Such a one is still not older than the newest snapshot here, so
// the log has its entry and all that follow: Raft goes over them once more, and the
// state skips them.
func (g *snapshotGuard) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, cindex uint64, tr raft.Transport) (raft.SnapshotSink, error) {
	list, err := g.List()
	if err != nil {
		return nil, err
	}
	if len(list) > 0 && index < list[0].Index {
		return nil, &StaleSnapshotError{Snapshot: index, Has: list[0].Index}
	}
	if applied := g.applied(); !g.takeOwn(index) && index < applied {
		return nil, &StaleSnapshotError{Snapshot: index, Has: applied}
	}
	sink, err := g.SnapshotStore.Create(v, index, term, c, cindex, tr)
	if err != nil {
		return nil, g.failed("create", err)
	}
	return &guardedSink{SnapshotSink: sink, guard: g}, nil
}

func (g *snapshotGuard) takeOwn(index uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.own || index < g.ownFrom {
		return false
	}
	g.own = false
	return true
}

// failed ends the node's part: a disk that takes no snapshot will not take the log for long.
func (g *snapshotGuard) failed(op string, err error) error {
	err = &disk.IOError{Path: "snapshots", Op: op, Err: err}
	g.fail(err)
	return err
}

// guardedSink tells the node what Raft would only log.
type guardedSink struct {
	raft.SnapshotSink
	guard *snapshotGuard
}

func (s *guardedSink) Write(p []byte) (int, error) {
	n, err := s.SnapshotSink.Write(p)
	if err != nil {
		err = s.guard.failed("write", err)
	}
	return n, err
}

func (s *guardedSink) Close() error {
	if err := s.SnapshotSink.Close(); err != nil {
		return s.guard.failed("close", err)
	}
	return nil
}

// Open answers a reader that says of what entry it is: see snapshotOf.
func (g *snapshotGuard) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, r, err := g.SnapshotStore.Open(id)
	if err != nil {
		return nil, nil, err
	}
	return m, &knownSnapshot{ReadCloser: r, meta: m}, nil
}

type knownSnapshot struct {
	io.ReadCloser
	meta *raft.SnapshotMeta
}

// snapshotOf finds what Raft has wrapped; nil if the snapshot is not from the guard.
func snapshotOf(r io.ReadCloser) *raft.SnapshotMeta {
	for {
		switch w := r.(type) {
		case *knownSnapshot:
			return w.meta
		case raft.ReadCloserWrapper:
			r = w.WrappedReadCloser()
		default:
			return nil
		}
	}
}

// stoppable fails writes once the node stops: nobody waits for a snapshot then.
type stoppable struct {
	io.Writer
	closing <-chan struct{}
}

func (s stoppable) Write(p []byte) (int, error) {
	select {
	case <-s.closing:
		return 0, errStopping
	default:
		return s.Writer.Write(p)
	}
}
