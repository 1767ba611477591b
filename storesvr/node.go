package storesvr

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/disk"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	raftCommitTimeout    = 5 * time.Millisecond
	raftMaxAppendEntries = 512
	raftLogCache         = 512
	// executesMax bounds the batches of AllocSvrs under way; more are told Busy.
	executesMax = 256
	// streamsMax bounds open session streams.
	streamsMax = 4096
	// quietTimeouts: how many Raft timeouts a newcomer listens to no leader. A
	// leader without a quorum steps down within less than one.
	quietTimeouts = 3
	// quiesceMax bounds the wait for Raft's answers when stopping.
	quiesceMax = 5 * time.Second
	// quiesceFailed is the same after a failure, when some answers will never come.
	quiesceFailed = time.Second
)

// Node is a running StoreSvr.
type Node struct {
	cfg  Config
	st   Storage
	log  *zap.Logger
	fsm  *fsm
	raft *raft.Raft
	logs *logGuard
	// changed is given when meta state, leadership or readiness may have changed.
	changed *signal
	lead    atomic.Pointer[leadership]
	verify  *verifier
	notify  chan bool
	// contact has when each peer was last heard from, for those that are not now.
	contact *contacts

	// calls are calls of Raft under way.
	calls    *gate
	streams  *gate
	streamsN chan struct{}
	executes chan struct{}

	closing  chan struct{}
	stopOnce sync.Once
	stopped  chan struct{}
	stopErr  error
	wg       sync.WaitGroup

	failure *failure
	failed  chan error
}

var (
	_ seqpb.Store = (*Node)(nil)
	_ seqpb.Admin = (*Node)(nil)
)

// Start runs a node on its storage, which it closes when it stops. On an error
// the storage and the transport are closed.
func Start(cfg Config, st Storage, tr raft.Transport) (*Node, error) {
	cfg = cfg.withDefaults()
	n := &Node{
		cfg: cfg, st: st, log: cfg.Logger.With(zap.String("set", cfg.Set), zap.String("store", cfg.ID)),
		changed: newSignal(), notify: make(chan bool, 16), contact: newContacts(),
		calls: newGate(), streams: newGate(),
		streamsN: make(chan struct{}, streamsMax), executes: make(chan struct{}, executesMax),
		closing: make(chan struct{}), stopped: make(chan struct{}),
		failure: newFailure(), failed: make(chan error, 1),
	}
	n.verify = &verifier{n: n}
	if err := n.start(tr); err != nil {
		if c, ok := tr.(raft.WithClose); ok {
			err = errors.Join(err, c.Close())
		}
		return nil, errors.Join(err, st.Close())
	}
	return n, nil
}

func (n *Node) start(tr raft.Transport) error {
	if err := n.cfg.validate(); err != nil {
		return err
	}
	n.fsm = &fsm{
		keys: n.st.Keys, identity: n.st.Identity, bugs: n.cfg.Bugs.State, log: n.log,
		want:    disk.Identity{Cluster: n.cfg.Cluster, Set: n.cfg.Set, Node: n.cfg.ID, ClusterID: n.cfg.ClusterID},
		fail:    n.fail,
		changed: n.changed.give,
	}
	if err := n.fsm.load(); err != nil {
		return err
	}
	if err := n.catchUp(); err != nil {
		return err
	}
	if t, ok := tr.(*Transport); ok {
		t.setNames(n.nodeAt)
	}
	if !n.st.Identity.Identity().Joined {
		tr = newNewcomer(tr, quietTimeouts*n.cfg.RaftTimeout, n.log, n.join)
	}
	n.logs = &logGuard{LogStore: n.st.Log, fail: n.fail, applied: n.fsm.appliedIndex}
	stable := &stableGuard{StableStore: n.st.Stable, fail: n.fail}
	cache, err := raft.NewLogCache(raftLogCache, n.logs)
	if err != nil {
		return err
	}
	conf := n.raftConfig()
	if err := n.bootstrap(conf, stable, tr); err != nil {
		return errors.Join(err, closeTransport(tr))
	}
	if n.raft, err = newRaft(conf, n.fsm, cache, stable, n.st.Snapshots, tr); err != nil {
		// Raft's text has lost the type of what the log said.
		if cause := n.failure.get(); cause != nil {
			err = fmt.Errorf("start raft: %w", cause)
		}
		return errors.Join(err, closeTransport(tr))
	}
	n.logs.running.Store(true)
	stable.running.Store(true)
	n.raft.RegisterObserver(n.contact.observer)
	n.wg.Go(n.run)
	n.wg.Go(func() { n.contact.run(n.closing) })
	n.log.Info("store started", zap.Uint64("applied", n.fsm.appliedIndex()), zap.String("raft", n.cfg.RaftAddr))
	return nil
}

func closeTransport(tr raft.Transport) error {
	if c, ok := tr.(raft.WithClose); ok {
		return c.Close()
	}
	return nil
}

// newRaft gives Raft's panics at its start, which mean an unreadable log, back as errors.
func newRaft(conf *raft.Config, f raft.FSM, logs raft.LogStore, stable raft.StableStore, snaps raft.SnapshotStore, tr raft.Transport) (r *raft.Raft, err error) {
	defer func() {
		if p := recover(); p != nil {
			cause, ok := p.(error)
			if !ok {
				cause = fmt.Errorf("%v", p)
			}
			err = fmt.Errorf("start raft: %w", cause)
		}
	}()
	return raft.NewRaft(conf, f, logs, stable, snaps, tr)
}

func (n *Node) raftConfig() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(n.cfg.ID)
	c.HeartbeatTimeout = n.cfg.RaftTimeout
	c.ElectionTimeout = n.cfg.RaftTimeout
	// The longest that Raft allows: what rests on leadership is verified each
	// time, so a short lease would only make a busy machine lose its leader.
	c.LeaderLeaseTimeout = n.cfg.RaftTimeout
	c.CommitTimeout = raftCommitTimeout
	c.MaxAppendEntries = raftMaxAppendEntries
	c.BatchApplyCh = true
	c.ShutdownOnRemove = false
	c.SnapshotThreshold = n.cfg.SnapshotThreshold
	c.SnapshotInterval = n.cfg.SnapshotInterval
	c.TrailingLogs = n.cfg.TrailingLogs
	// The state is in state.db; catchUp has seen to it that it is not behind the snapshots.
	c.NoSnapshotRestoreOnStart = true
	c.NoLegacyTelemetry = true
	c.NotifyCh = n.notify
	c.Logger = newHclog(n.log.Named("raft"))
	return c
}

func (n *Node) bootstrap(conf *raft.Config, stable raft.StableStore, tr raft.Transport) error {
	if !n.cfg.Bootstrap {
		return nil
	}
	has, err := raft.HasExistingState(n.st.Log, stable, n.st.Snapshots)
	if err != nil {
		return fmt.Errorf("look for raft state: %w", err)
	}
	if has {
		return nil
	}
	var c raft.Configuration
	for _, p := range n.cfg.Peers {
		c.Servers = append(c.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.RaftAddr)})
	}
	if err := raft.BootstrapCluster(conf, n.st.Log, stable, n.st.Snapshots, tr, c); err != nil {
		return fmt.Errorf("bootstrap raft: %w", err)
	}
	return nil
}

// catchUp restores the newest snapshot if the state is behind it — the process
// died between receiving the snapshot and restoring it — and refuses a storage
// whose parts do not fit together.
func (n *Node) catchUp() error {
	list, err := n.st.Snapshots.List()
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	var snapIndex uint64
	if len(list) > 0 {
		snapIndex = list[0].Index
		if err := n.restoreNewest(list[0].ID); err != nil {
			return fmt.Errorf("snapshot %s: %w", list[0].ID, err)
		}
	}
	first, err := n.st.Log.FirstIndex()
	if err != nil {
		return fmt.Errorf("read the raft log: %w", err)
	}
	last, err := n.st.Log.LastIndex()
	if err != nil {
		return fmt.Errorf("read the raft log: %w", err)
	}
	const remedy = "move the whole directory away and start the node again, so that it takes the state from its peers"
	if first > snapIndex+1 {
		return &disk.MissingError{Path: "raft log", Remedy: remedy,
			Reason: fmt.Sprintf("it begins at entry %d, but the newest snapshot is of %d", first, snapIndex)}
	}
	if applied := n.fsm.appliedIndex(); applied > max(last, snapIndex) {
		return &disk.MissingError{Path: "raft log", Remedy: remedy,
			Reason: fmt.Sprintf("it ends at entry %d, but %d was applied", max(last, snapIndex), applied)}
	}
	return nil
}

func (n *Node) restoreNewest(id string) error {
	_, r, err := n.st.Snapshots.Open(id)
	if err != nil {
		return err
	}
	defer r.Close()
	return n.fsm.Restore(r)
}

// run follows leadership and failures until the node stops.
func (n *Node) run() {
	var storageFailed chan struct{}
	if n.st.failed != nil {
		storageFailed = n.st.failed.c
	}
	failed := n.failure.c
	end := func() {
		if l := n.lead.Swap(nil); l != nil {
			l.end()
		}
		n.changed.give()
	}
	defer end()
	for {
		select {
		case leads := <-n.notify:
			end()
			if leads {
				n.lead.Store(n.beginLeadership())
				n.changed.give()
			}
		case <-storageFailed:
			storageFailed = nil
			n.fail(n.st.failed.get())
		case <-failed:
			failed = nil
			err := n.failure.get()
			n.log.Error("store failed and takes no more part", zap.Error(err))
			n.failed <- err
			end()
			// Off the quorum, so that the others elect a leader.
			n.wg.Go(n.leaveQuorum)
			n.changed.give()
		case <-n.closing:
			return
		}
	}
}

// leaveQuorum ends Raft after a failure. Raft answers what it still can before.
func (n *Node) leaveQuorum() {
	ctx, cancel := context.WithTimeout(context.Background(), quiesceFailed)
	defer cancel()
	n.calls.close(ctx)
	if err := n.raft.Shutdown().Error(); err != nil {
		n.log.Warn("raft did not shut down cleanly", zap.Error(err))
	}
}

// fail ends the node's part for good. It may be called from any goroutine.
func (n *Node) fail(err error) { n.failure.set(err) }

// Failed tells once why the node has stopped taking part: its process should
// end, loudly.
func (n *Node) Failed() <-chan error { return n.failed }

// join remembers that the node has caught up with a leader.
func (n *Node) join() error {
	err := n.st.Identity.SaveIdentity("", true)
	if err != nil {
		n.fail(err)
	}
	return err
}

// nodeAt is the id of the member with a Raft address; empty if it is not known.
func (n *Node) nodeAt(addr raft.ServerAddress) string {
	for _, s := range n.members() {
		if s.Address == addr {
			return string(s.ID)
		}
	}
	return ""
}

func (n *Node) members() []raft.Server {
	if n.raft == nil {
		return nil
	}
	f := n.raft.GetConfiguration()
	if f.Error() != nil {
		return nil
	}
	return f.Configuration().Servers
}

// Stop hands leadership on, ends everything in order, flushes the state and
// closes the storage. What it could not do in time it names; the storage is
// closed and nothing is lost in any case.
func (n *Node) Stop(ctx context.Context) error {
	n.stopOnce.Do(func() {
		n.stopErr = n.stop(ctx, true)
		close(n.stopped)
	})
	<-n.stopped
	return n.stopErr
}

// Kill stops as a crash does: nothing is handed on or flushed.
func (n *Node) Kill() {
	n.stopOnce.Do(func() {
		n.stopErr = n.stop(context.Background(), false)
		close(n.stopped)
	})
	<-n.stopped
}

func (n *Node) stop(ctx context.Context, orderly bool) error {
	if orderly {
		n.handOn(ctx)
	}
	close(n.closing)
	var errs []error
	// Raft answers all that was asked while it runs; afterwards some answers get lost.
	qctx, cancel := context.WithTimeout(ctx, quiesceMax)
	if !n.calls.close(qctx) {
		errs = append(errs, errors.New("calls of raft did not end in time"))
	}
	cancel()
	if err := n.raft.Shutdown().Error(); err != nil {
		errs = append(errs, fmt.Errorf("raft: %w", err))
	}
	n.raft.DeregisterObserver(n.contact.observer)
	n.wg.Wait()
	sctx, cancel := context.WithTimeout(ctx, quiesceMax)
	if !n.streams.close(sctx) {
		errs = append(errs, errors.New("session streams did not end in time"))
	}
	cancel()
	if orderly && n.failure.get() == nil {
		if err := n.fsm.flush(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, n.st.Close())
	n.log.Info("store stopped")
	return errors.Join(errs...)
}

// handOn gives leadership to a peer, if there is one, so that nobody has to wait for an election.
func (n *Node) handOn(ctx context.Context) {
	if n.raft.State() != raft.Leader || len(n.members()) < 2 || n.failure.get() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 4*n.cfg.RaftTimeout)
	defer cancel()
	if err := n.await(ctx, func() error { return n.raft.LeadershipTransfer().Error() }); err != nil {
		n.log.Warn("leadership could not be handed on", zap.Error(err))
	}
}

// ErrNotReady is wrapped by Ready's answers.
var ErrNotReady = errors.New("store is not ready")

// Ready answers nil when the node takes part in a founded Set with a leader.
func (n *Node) Ready() error {
	if err := n.failure.get(); err != nil {
		return fmt.Errorf("%w: it has failed: %w", ErrNotReady, err)
	}
	select {
	case <-n.closing:
		return fmt.Errorf("%w: %w", ErrNotReady, errStopping)
	default:
	}
	_, id := n.raft.LeaderWithID()
	if id == "" {
		return fmt.Errorf("%w: there is no leader: are a majority of the peers up?", ErrNotReady)
	}
	if l := n.lead.Load(); string(id) == n.cfg.ID && (l == nil || !l.isReady()) {
		return fmt.Errorf("%w: it has just become the leader", ErrNotReady)
	}
	founded := false
	if err := n.fsm.read(func(st *state.State) { founded = st.Meta.Genesis.Sections != 0 }); err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	if !founded {
		return fmt.Errorf("%w: it has not caught up with the leader yet", ErrNotReady)
	}
	return nil
}

// WaitReady waits for Ready to answer nil.
func (n *Node) WaitReady(ctx context.Context) error {
	for {
		changed := n.changed.wait()
		err := n.Ready()
		if err == nil {
			return nil
		}
		// Learning of another node's leadership is no event here, so look again now and then.
		t := time.NewTimer(n.cfg.RaftTimeout / 10)
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return errors.Join(err, ctx.Err())
		}
		t.Stop()
	}
}

// Leading tells whether the node leads and acts as the leader, and its Raft term.
func (n *Node) Leading() (bool, uint64) {
	l := n.lead.Load()
	return l != nil && l.isReady(), n.raft.CurrentTerm()
}

// leaderRPC is the leader's RPC address, as far as this node knows; empty if not.
func (n *Node) leaderRPC() string {
	_, id := n.raft.LeaderWithID()
	if id == "" {
		return ""
	}
	addr := ""
	_ = n.fsm.read(func(st *state.State) { addr = st.Meta.Stores[string(id)].RPCAddr })
	if addr != "" {
		return addr
	}
	for _, p := range n.cfg.Peers {
		if p.ID == string(id) {
			return p.RPCAddr
		}
	}
	return ""
}
