package storesvr

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seqsvr/seqsvr/storesvr/state"
)

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
	if id == "" && !n.isMember() {
		return fmt.Errorf("%w: it is no member of the Set: let it in with seqctl nodes add-store", ErrNotReady)
	}
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
