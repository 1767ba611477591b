package storesvr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/disk"
)

const (
	// raftCommitTimeout is after how long without a proposal a follower is told how
	// far the log is committed. It is half of what an idle leader does. Ten times as
	// much would do for serving: what the simulation once found with it were sections
	// moved to an AllocSvr that was dead, which pulses has ended. But then a follower
	// counts as applied up to 100 ms later, which not every test allows for.
	raftCommitTimeout = 5 * time.Millisecond
	// raftMaxAppendEntries bounds one request to a follower that is behind. Raft
	// bounds it by nothing else, and entries are whole batches: were it larger than
	// can be sent and synced within raftIOTimeout, the follower would never catch
	// up. It is also how many proposals go into one write of the log; there is
	// hardly more than one of each AllocSvr at a time.
	raftMaxAppendEntries = 128
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
	// newcomer is nil if the node had caught up once before it started.
	newcomer *newcomer
	// changed is given when meta state, leadership or readiness may have changed.
	changed *signal
	lead    atomic.Pointer[leadership]
	verify  *verifier
	// transferred is the last term in which handing leadership on ran out of time.
	transferred atomic.Uint64
	notify      chan bool
	// contact has when each peer was last heard from, for those that are not now.
	contact *contacts

	counts counts

	// calls are calls of Raft under way.
	calls    *gate
	streams  *gate
	streamsN chan struct{}
	executes chan struct{}
	// others are the other Sets; setWaits and setCommands bound what they ask for.
	others                *others
	moves                 progressBook
	setWaits, setCommands chan struct{}

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
		others: newOthers(cfg.DialSets), setWaits: make(chan struct{}, setWaitsMax), setCommands: make(chan struct{}, setCommandsMax),
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
		counts:  &n.counts,
		closing: n.closing,
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
	cache, err := newCachedLog(n.st.Log)
	if err != nil {
		return err
	}
	// Around the cache: what fits the log to a snapshot must not leave old entries in it.
	n.logs = &logGuard{LogStore: cache, fail: n.fail, applied: n.fsm.appliedIndex}
	snaps := &snapshotGuard{SnapshotStore: n.st.Snapshots, fail: n.fail, applied: n.raftApplied}
	n.fsm.taking, n.fsm.fit = snaps.taking, n.logs.fit
	tr = &stuckTransport{Transport: tr, log: &n.logs.writing, max: n.cfg.RaftTimeout / stuckShare}
	if !n.st.Identity.Identity().Joined {
		n.newcomer = newNewcomer(tr, quietTimeouts*n.cfg.RaftTimeout, n.log, n.join)
		tr = n.newcomer
	}
	stable := &stableGuard{StableStore: n.st.Stable, fail: n.fail}
	conf := n.raftConfig()
	if err := n.bootstrap(conf, stable, tr); err != nil {
		return errors.Join(err, closeTransport(tr))
	}
	if n.raft, err = newRaft(conf, n.fsm, n.logs, stable, snaps, tr); err != nil {
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
	if n.cfg.DialAdmin != nil {
		n.wg.Go(n.announce)
	}
	n.log.Info("store started", zap.Uint64("applied", n.fsm.appliedIndex()), zap.String("raft", n.cfg.RaftAddr))
	return nil
}

// raftApplied counts entries that are no commands, too, as soon as Raft is known to run.
func (n *Node) raftApplied() uint64 {
	applied := n.fsm.appliedIndex()
	if n.logs.running.Load() {
		applied = max(applied, n.raft.AppliedIndex())
	}
	return applied
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

// join remembers that the node has caught up with a leader, or leads itself:
// the group's first leader, too, must vote for the next one.
func (n *Node) join() error {
	if err := n.st.Identity.SaveIdentity("", true); err != nil {
		n.fail(err)
		return err
	}
	if n.newcomer != nil {
		n.newcomer.done()
	}
	return nil
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

// isMember, as far as the node has heard: one that has heard of no members is none.
func (n *Node) isMember() bool {
	return slices.ContainsFunc(n.members(), func(s raft.Server) bool { return string(s.ID) == n.cfg.ID })
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
	n.others.close()
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
