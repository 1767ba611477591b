package storesvr

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
)

// newcomer stands between the network and a Raft node whose directory was empty.
//
// Such a node may be new, or a voter that was wiped and has forgotten which
// entries it acknowledged and for whom it voted. Were it to take part at once, a
// stale node and the wiped one could form a quorum without an entry that the
// wiped one had helped to commit: a number would be issued twice. Therefore,
// until it has caught up with a leader:
//
//   - it votes only for candidates with an unborn log (the bootstrap entry and
//     nothing else), which is what the first election of a new group looks like,
//     and stands for election only while its own log is unborn;
//   - it takes nothing from a leader during its first moments, unless the term
//     is a group's first: by then, a leader that needed this node's voice for its
//     quorum has stepped down.
//
// It has caught up when it holds the end of a leader's log, and that end is of the
// leader's own term: that leader was elected without this node, so its log has all
// that was ever committed, and all of its own entries that this node has ever
// acknowledged. An earlier part of the log will not do: what follows may have been
// committed with this node's help. From then on the newcomer only passes things
// through, and this is remembered on disk.
type newcomer struct {
	raft.Transport
	log   *zap.Logger
	quiet time.Duration
	since time.Time
	// joined is called once; an error fails the node.
	joined func() error

	caughtUp atomic.Bool
	out      chan raft.RPC
	stop     chan struct{}
	once     sync.Once
	wg       sync.WaitGroup

	mu        sync.Mutex
	heartbeat func(raft.RPC)
}

const (
	// unbornIndex and unbornTerm are of the entry that raft.BootstrapCluster writes.
	unbornIndex = 1
	unbornTerm  = 1
	// wholeBelow: a request with fewer entries ends where the leader's log does. Raft
	// sends all that there is, up to raftMaxAppendEntries, which was never lower.
	wholeBelow = 16
	// firstTerm is the term of a group's first election, if it succeeds.
	firstTerm = 2
)

var (
	errNotElected  = errors.New("this node has not caught up yet and does not stand for election")
	errNotJoined   = errors.New("this node has not caught up yet and does not vote")
	errStillQuiet  = errors.New("this node has just started on an empty directory and listens to no leader yet")
	errRaftStopped = errors.New("this node is stopping")
)

func newNewcomer(tr raft.Transport, quiet time.Duration, log *zap.Logger, joined func() error) *newcomer {
	n := &newcomer{
		Transport: tr, log: log, quiet: quiet, since: time.Now(), joined: joined,
		out: make(chan raft.RPC), stop: make(chan struct{}),
	}
	tr.SetHeartbeatHandler(n.fast)
	n.wg.Go(n.run)
	return n
}

// Consumer is what Raft reads.
func (n *newcomer) Consumer() <-chan raft.RPC { return n.out }

// SetHeartbeatHandler keeps Raft's fast path for later.
func (n *newcomer) SetHeartbeatHandler(f func(raft.RPC)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heartbeat = f
}

// mayStand: a log that was caught up half way must not win over one that is older still.
func (n *newcomer) mayStand(lastIndex, lastTerm uint64) bool {
	return n.caughtUp.Load() || lastIndex <= unbornIndex && lastTerm <= unbornTerm
}

// RequestVote asks for a vote, if this node may have it.
func (n *newcomer) RequestVote(id raft.ServerID, to raft.ServerAddress, q *raft.RequestVoteRequest, r *raft.RequestVoteResponse) error {
	if !n.mayStand(q.LastLogIndex, q.LastLogTerm) {
		return errNotElected
	}
	return n.Transport.RequestVote(id, to, q, r)
}

// RequestPreVote is the same for the vote before; embedding the interface hides it.
func (n *newcomer) RequestPreVote(id raft.ServerID, to raft.ServerAddress, q *raft.RequestPreVoteRequest, r *raft.RequestPreVoteResponse) error {
	if !n.mayStand(q.LastLogIndex, q.LastLogTerm) {
		return errNotElected
	}
	pv, ok := n.Transport.(raft.WithPreVote)
	if !ok {
		return errors.New("the transport has no pre-vote")
	}
	return pv.RequestPreVote(id, to, q, r)
}

// Close ends the forwarding and the transport.
func (n *newcomer) Close() error {
	n.once.Do(func() { close(n.stop) })
	n.wg.Wait()
	if c, ok := n.Transport.(raft.WithClose); ok {
		return c.Close()
	}
	return nil
}

func (n *newcomer) run() {
	for {
		select {
		case <-n.stop:
			return
		case rpc, ok := <-n.Transport.Consumer():
			if !ok {
				return
			}
			n.take(rpc)
		}
	}
}

// fast takes heartbeats that the transport delivers on goroutines of its own.
func (n *newcomer) fast(rpc raft.RPC) {
	if err := n.refuses(rpc.Command); err != nil {
		rpc.Respond(nil, err)
		return
	}
	n.mu.Lock()
	f := n.heartbeat
	n.mu.Unlock()
	if f != nil {
		f(rpc)
		return
	}
	rpc.Respond(nil, errStillQuiet)
}

func (n *newcomer) take(rpc raft.RPC) {
	if n.caughtUp.Load() {
		n.pass(rpc)
		return
	}
	if err := n.refuses(rpc.Command); err != nil {
		if rpc.Reader != nil {
			// The sender streams a snapshot, whatever we say.
			_, _ = io.Copy(io.Discard, rpc.Reader)
		}
		rpc.Respond(nil, err)
		return
	}
	q, ok := rpc.Command.(*raft.AppendEntriesRequest)
	if !ok {
		n.pass(rpc)
		return
	}
	inner := make(chan raft.RPCResponse, 1)
	if !n.pass(raft.RPC{Command: q, RespChan: inner}) {
		rpc.Respond(nil, errRaftStopped)
		return
	}
	select {
	case a := <-inner:
		if r, ok := a.Response.(*raft.AppendEntriesResponse); ok && a.Error == nil && r.Success && reachesEnd(q) {
			n.join()
		}
		rpc.RespChan <- a
	case <-n.stop:
		rpc.Respond(nil, errRaftStopped)
	}
}

// reachesEnd: with a success, the follower holds the end of the leader's log, and
// it is of the leader's term.
func reachesEnd(q *raft.AppendEntriesRequest) bool {
	if k := len(q.Entries); k > 0 {
		return k < wholeBelow && q.Entries[k-1].Term == q.Term
	}
	return q.PrevLogEntry > 0 && q.PrevLogTerm == q.Term
}

func (n *newcomer) join() {
	if !n.caughtUp.Load() && n.joined() == nil {
		n.done()
	}
}

// done lets everything through from now on.
func (n *newcomer) done() {
	if n.caughtUp.CompareAndSwap(false, true) {
		n.log.Info("caught up, taking part from now on")
	}
}

func (n *newcomer) pass(rpc raft.RPC) bool {
	select {
	case n.out <- rpc:
		return true
	case <-n.stop:
		return false
	}
}

// refuses says why the request must not reach Raft yet.
func (n *newcomer) refuses(cmd any) error {
	if n.caughtUp.Load() {
		return nil
	}
	quiet := time.Since(n.since) < n.quiet
	switch q := cmd.(type) {
	case *raft.RequestVoteRequest:
		if q.LastLogIndex > unbornIndex || q.LastLogTerm > unbornTerm {
			return errNotJoined
		}
	case *raft.RequestPreVoteRequest:
		if q.LastLogIndex > unbornIndex || q.LastLogTerm > unbornTerm {
			return errNotJoined
		}
	case *raft.AppendEntriesRequest:
		if quiet && q.Term > firstTerm {
			return errStillQuiet
		}
	case *raft.InstallSnapshotRequest:
		if quiet {
			return errStillQuiet
		}
	case *raft.TimeoutNowRequest:
		return errNotJoined
	}
	return nil
}
