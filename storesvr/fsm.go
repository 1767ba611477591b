package storesvr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/disk"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// fsm applies Raft's entries to the state. Raft calls ApplyBatch, Snapshot and
// Restore from one goroutine; read is for everyone else.
type fsm struct {
	keys     Backend
	identity IdentityStore
	bugs     state.Bugs
	want     disk.Identity
	log      *zap.Logger
	// fail is told once why applying has stopped for good.
	fail func(error)
	// changed is told when something in the meta state may have changed.
	changed func()
	counts  *counts
	// taking is told of a snapshot that begins; nil: nobody is.
	taking func(from uint64)
	// fit makes the log fit a snapshot that was installed; nil: there is no log.
	fit func(*raft.SnapshotMeta) error
	// closing: a snapshot under way is given up.
	closing <-chan struct{}
	// seen is the last entry that Raft has given, or restored. Raft's goroutine has it.
	seen uint64

	mu sync.RWMutex
	st *state.State
	// applied is the index of the last command in st; entries up to it are skipped in a replay.
	applied uint64
	// restores counts the snapshots of a leader's that were installed.
	restores uint64
	err      error
	// lost has the last epoch of a section that was seen to end uncleanly: its
	// settling may be done before anybody has looked.
	lost map[ids.Section]ids.Epoch
}

var _ raft.BatchingFSM = (*fsm)(nil)

// errFailed wraps what made the node stop applying.
var errFailed = errors.New("this store has failed and applies nothing")

// load takes what the backend has kept.
func (f *fsm) load() error {
	applied, meta, err := f.keys.Load()
	if err != nil {
		return err
	}
	f.st = state.New(f.keys)
	f.st.Bugs = f.bugs
	if meta != nil {
		f.st.Meta = *meta
	}
	f.applied = applied
	return nil
}

// read runs g on the state while nothing is applied. g must not keep what it
// sees. A disk failure inside fails the node and is answered as an error.
func (f *fsm) read(g func(st *state.State)) (err error) {
	defer f.recovered(&err)
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.err != nil {
		return f.err
	}
	g(f.st)
	return nil
}

// recovered turns a panic of the backend, or of apply, into the end of this node's part.
func (f *fsm) recovered(err *error) {
	r := recover()
	if r == nil {
		return
	}
	cause, ok := r.(error)
	if !ok {
		cause = fmt.Errorf("%v", r)
	}
	f.log.Error("state machine panicked", zap.Error(cause), zap.ByteString("stack", debug.Stack()))
	*err = f.failed(cause)
}

// failed must not be called with f.mu held.
func (f *fsm) failed(cause error) error {
	err := fmt.Errorf("%w: %w", errFailed, cause)
	f.mu.Lock()
	if f.err == nil {
		f.err = err
	}
	f.mu.Unlock()
	f.fail(cause)
	return err
}

// Apply is ApplyBatch of one.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch answers a state.Reply for each command, or an error for each from
// the first on that could not be applied: an entry is never skipped.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	visible := false
	for i, l := range logs {
		f.seen = max(f.seen, l.Index)
		if l.Type != raft.LogCommand {
			continue
		}
		rep, seen, err := f.apply(l)
		if err != nil {
			out[i] = err
			continue
		}
		out[i] = rep
		visible = visible || seen
	}
	if visible {
		f.changed()
	}
	return out
}

func (f *fsm) apply(l *raft.Log) (rep state.Reply, visible bool, err error) {
	defer f.recovered(&err)
	c, derr := state.DecodeCommand(l.Data)
	if derr != nil {
		return rep, false, f.failed(fmt.Errorf("log entry %d of term %d: %w: it was written by a newer program, or is damaged; "+
			"run the version that the other nodes run", l.Index, l.Term, derr))
	}
	rep, done, err := f.change(l.Index, c)
	if err != nil || done {
		return rep, false, err
	}
	if g, ok := c.(state.Genesis); ok && rep.Refusal == state.OK {
		if err := f.identity.SaveIdentity(g.ClusterID, false); err != nil {
			return rep, false, f.failed(err)
		}
	}
	// It may wait for the disk, so not under mu: readers go on.
	f.keys.Commit(l.Index, &f.st.Meta)
	return rep, metaMayChange(c), nil
}

// change carries a command out; done says that it was, before a restart.
func (f *fsm) change(index uint64, c state.Command) (rep state.Reply, done bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return rep, false, f.err
	}
	if index <= f.applied {
		return rep, true, nil
	}
	rep = f.st.Apply(index, c)
	f.applied = index
	if _, ok := c.(state.Expire); ok {
		f.noteLost()
	}
	return rep, false, nil
}

func (f *fsm) noteLost() {
	if f.lost == nil {
		f.lost = map[ids.Section]ids.Epoch{}
	}
	for i := range f.st.Meta.Sections {
		if u := f.st.Meta.Sections[i].Unclean; len(u) > 0 {
			f.lost[ids.Section(i)] = u[len(u)-1]
		}
	}
}

// metaMayChange: all commands but batches without a release or a vacation.
func metaMayChange(c state.Command) bool {
	b, ok := c.(state.Batch)
	if !ok {
		return true
	}
	for i := range b.Ops {
		if k := b.Ops[i].Kind; k == state.OpRelease || k == state.OpVacate {
			return true
		}
	}
	return false
}

// Snapshot marks this moment; the work is in Persist.
func (f *fsm) Snapshot() (snap raft.FSMSnapshot, err error) {
	defer f.recovered(&err)
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.err != nil {
		return nil, f.err
	}
	v, err := f.keys.Snapshot(f.applied, &f.st.Meta)
	if err != nil {
		return nil, err
	}
	if f.taking != nil {
		f.taking(max(f.seen, f.applied))
	}
	return &fsmSnapshot{fsm: f, view: v, applied: f.applied, restores: f.restores}, nil
}

type fsmSnapshot struct {
	fsm  *fsm
	view SnapshotView
	// applied and restores are as they were.
	applied, restores uint64
}

// outdated: a snapshot of the leader's was installed meanwhile. Raft would take
// this older one for its last, and forget how far its log goes.
func (s *fsmSnapshot) outdated() error {
	s.fsm.mu.RLock()
	defer s.fsm.mu.RUnlock()
	if s.fsm.restores != s.restores {
		return fmt.Errorf("the snapshot is of entry %d, and a newer one was restored meanwhile", s.applied)
	}
	return nil
}

func (s *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	sum, err := disk.WriteSnapshot(stoppable{sink, s.fsm.closing}, s.view)
	if err == nil {
		err = s.outdated()
	}
	if err == nil {
		err = sink.Close()
	}
	if err != nil {
		return errors.Join(err, sink.Cancel())
	}
	s.fsm.counts.snapshots.Add(1)
	s.fsm.log.Info("snapshot taken", zap.Uint64("applied", sum.Applied), zap.Uint64("keys", sum.Records), zap.Uint64("bytes", sum.Bytes))
	return nil
}

func (s *fsmSnapshot) Release() { s.view.Release() }

// Restore takes a snapshot that the leader sent, unless this node is past it, and
// fits the log to it. A bad snapshot leaves everything as it was; a disk that fails
// ends the node.
func (f *fsm) Restore(r io.ReadCloser) (err error) {
	defer f.recovered(&err)
	err = f.restore(r)
	past := errors.As(err, new(*alreadyAppliedError))
	if past {
		err = nil
	}
	if err == nil {
		// After the state, so that a node that dies between has what leads to it.
		err = f.fitLog(snapshotOf(r))
	}
	if errors.As(err, new(*disk.IOError)) || errors.As(err, new(*disk.CorruptError)) {
		return f.failed(err)
	}
	if err == nil && !past {
		f.changed()
	}
	return err
}

func (f *fsm) fitLog(snap *raft.SnapshotMeta) error {
	if snap == nil {
		return nil
	}
	f.seen = max(f.seen, snap.Index)
	if f.fit == nil {
		return nil
	}
	if err := f.fit(snap); err != nil {
		return f.failed(fmt.Errorf("fit the log to the snapshot of entry %d: %w", snap.Index, err))
	}
	return nil
}

func (f *fsm) restore(r io.Reader) error {
	if err := f.stopped(); err != nil {
		return err
	}
	// It may take long, so not under mu: readers go on.
	sum, swap, err := f.keys.Stage(r, func(applied uint64, meta *state.Meta) error {
		if own := f.appliedIndex(); applied <= own {
			return &alreadyAppliedError{snapshot: applied, applied: own}
		}
		return f.fits(meta)
	})
	if err != nil {
		return err
	}
	if err := f.install(&sum, swap); err != nil {
		return err
	}
	if err := f.identity.SaveIdentity(sum.Meta.Genesis.ClusterID, false); err != nil {
		return err
	}
	f.log.Info("snapshot restored", zap.Uint64("applied", sum.Applied), zap.Uint64("keys", sum.Records))
	return nil
}

// install changes everything that a reader can see at once.
func (f *fsm) install(sum *disk.SnapshotSummary, swap func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := swap(); err != nil {
		return err
	}
	f.st.Meta = *sum.Meta
	f.applied = sum.Applied
	f.restores++
	return nil
}

// stopped is why nothing is applied any more.
func (f *fsm) stopped() error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.err
}

// fits refuses the state of another cluster or Set.
func (f *fsm) fits(meta *state.Meta) error {
	g := &meta.Genesis
	found := disk.Identity{Cluster: g.Cluster, Set: g.Set, ClusterID: g.ClusterID, Node: f.want.Node}
	want := f.want
	if id := f.identity.Identity().ClusterID; id != "" {
		want.ClusterID = id
	}
	return found.Check("snapshot", want)
}

type alreadyAppliedError struct{ snapshot, applied uint64 }

func (e *alreadyAppliedError) Error() string {
	return fmt.Sprintf("the snapshot is of entry %d, and %d is applied already", e.snapshot, e.applied)
}

// meta is a copy of the meta state.
func (f *fsm) meta() (m state.Meta, applied uint64, err error) {
	err = f.read(func(st *state.State) { m, applied = st.Meta.Clone(), f.applied })
	return m, applied, err
}

func (f *fsm) appliedIndex() uint64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.applied
}

// flush is for when nothing is applied any more.
func (f *fsm) flush(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	return f.keys.Flush(ctx, f.applied, &f.st.Meta)
}

// scan reads a page of records while applying goes on.
func (f *fsm) scan(q disk.Filter, after ids.Key, limit int) (page []disk.KeyRecord, next ids.Key, done bool, err error) {
	defer f.recovered(&err)
	page, next, done = f.keys.Cut(q, after, limit).Read()
	return page, next, done, nil
}

// count is how many records a page of a scan would have.
func (f *fsm) count(q disk.Filter, after ids.Key, limit int) (n int, next ids.Key, done bool, err error) {
	defer f.recovered(&err)
	n, next, done = f.keys.Cut(q, after, limit).Count()
	return n, next, done, nil
}

// scanAt is scan with the meta state of the same moment, between two entries.
func (f *fsm) scanAt(q disk.Filter, after ids.Key, limit int) (page []disk.KeyRecord, next ids.Key, done bool, meta state.Meta, err error) {
	defer f.recovered(&err)
	var c Cut
	if err = f.read(func(st *state.State) {
		q.Sections, meta = st.Meta.Genesis.Sections, st.Meta.Clone()
		c = f.keys.Cut(q, after, limit)
	}); err != nil {
		return nil, next, false, meta, err
	}
	page, next, done = c.Read()
	return page, next, done, meta, nil
}
