package storesvr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// catchUpPoll is how often a joining store is asked how far it is.
	catchUpPoll = 50 * time.Millisecond
	// configTimeout bounds the wait for an earlier membership change to be committed.
	configTimeout = 5 * time.Second
	// handOverPause is between looks whether another store leads.
	handOverPause = 20 * time.Millisecond
)

func (n *Node) change(f func() raft.IndexFuture) func() error {
	return func() error {
		if err := f().Error(); err != nil {
			return proposalError(err)
		}
		return nil
	}
}

// AddStore makes a store a member: it is fed as a non-voter until it has caught
// up, so that the quorum never depends on an empty disk, and then given a vote.
// Repeating it continues where it was.
func (n *Node) AddStore(ctx context.Context, q *seqpb.AddStoreRequest) (*seqpb.StoreChangeReply, error) {
	l := n.leads()
	if l == nil {
		return n.forwardChange(ctx, func(ctx context.Context, c AdminConn) (*seqpb.StoreChangeReply, error) { return c.AddStore(ctx, q) })
	}
	if r := n.checkAdd(q); r != nil {
		return &seqpb.StoreChangeReply{Refusal: r}, nil
	}
	id, addr := raft.ServerID(q.Id), raft.ServerAddress(q.RaftAddr)
	if !n.isVoter(id) {
		if err := n.await(ctx, n.change(func() raft.IndexFuture { return n.raft.AddNonvoter(id, addr, 0, configTimeout) })); err != nil {
			return n.changeFailed(err)
		}
		if err := n.waitCaughtUp(ctx, l, q); err != nil {
			return n.changeFailed(err)
		}
	}
	if err := n.await(ctx, n.change(func() raft.IndexFuture { return n.raft.AddVoter(id, addr, 0, configTimeout) })); err != nil {
		return n.changeFailed(err)
	}
	node := state.StoreNode{ID: q.Id, RaftAddr: q.RaftAddr, RPCAddr: q.Addr}
	if err := n.fsm.read(func(st *state.State) { node.HTTPAddr = st.Meta.Stores[q.Id].HTTPAddr }); err != nil {
		return n.changeFailed(err)
	}
	if _, err := n.propose(ctx, state.PutStore{Node: node}); err != nil {
		return n.changeFailed(err)
	}
	n.log.Info("store added", zap.String("node", q.Id), zap.String("raft", q.RaftAddr))
	return &seqpb.StoreChangeReply{Members: n.memberTexts()}, nil
}

func (n *Node) checkAdd(q *seqpb.AddStoreRequest) *seqpb.Refusal {
	if q.Id == "" || len(q.Id) > preambleTextMax {
		return invalid("a store needs an id of 1 to %d bytes", preambleTextMax)
	}
	for _, a := range []string{q.RaftAddr, q.Addr} {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return invalid("address %q of store %q: %v", a, q.Id, err)
		}
	}
	for _, s := range n.members() {
		switch {
		case string(s.ID) == q.Id && string(s.Address) != q.RaftAddr && n.contact.since(s.ID) == 0:
			return invalid("store %q is a member at %s and answers there: stop it first", q.Id, s.Address)
		case string(s.ID) != q.Id && string(s.Address) == q.RaftAddr:
			return invalid("raft address %s is that of store %q", q.RaftAddr, s.ID)
		}
	}
	return nil
}

func (n *Node) isVoter(id raft.ServerID) bool {
	for _, s := range n.members() {
		if s.ID == id {
			return s.Suffrage == raft.Voter
		}
	}
	return false
}

// waitCaughtUp waits until the store has applied what was committed when it was added.
func (n *Node) waitCaughtUp(ctx context.Context, l *leadership, q *seqpb.AddStoreRequest) error {
	if n.cfg.DialAdmin == nil {
		return nil // nobody to ask; Raft feeds it all the same
	}
	target := n.fsm.appliedIndex()
	for {
		pctx, cancel := context.WithTimeout(ctx, peerTimeout)
		applied, err := n.appliedBy(pctx, q.Addr, q.Id)
		cancel()
		if err == nil && applied >= target {
			return nil
		}
		if l.ctx.Err() != nil {
			return errNotLeader
		}
		if !pause(ctx, catchUpPoll) {
			return fmt.Errorf("store %q at %s has not caught up (applied %d of %d): is it running, with this cluster's name and an empty directory? %w",
				q.Id, q.Addr, applied, target, errors.Join(ctx.Err(), err))
		}
	}
}

// RemoveStore takes a store's membership away. A leader that is to go first
// hands leadership on and passes the call to its successor.
func (n *Node) RemoveStore(ctx context.Context, q *seqpb.RemoveStoreRequest) (*seqpb.StoreChangeReply, error) {
	l := n.leads()
	if l == nil {
		return n.forwardChange(ctx, func(ctx context.Context, c AdminConn) (*seqpb.StoreChangeReply, error) { return c.RemoveStore(ctx, q) })
	}
	if !n.halfRemoved(q.Id) {
		if r := n.checkRemove(ctx, q.Id); r != nil {
			return &seqpb.StoreChangeReply{Refusal: r}, nil
		}
		if q.Id == n.cfg.ID {
			return n.removeSelf(ctx, q)
		}
		if err := n.await(ctx, n.change(func() raft.IndexFuture { return n.raft.RemoveServer(raft.ServerID(q.Id), 0, configTimeout) })); err != nil {
			return n.changeFailed(err)
		}
	}
	if _, err := n.propose(ctx, state.DropStore{ID: q.Id}); err != nil {
		return n.changeFailed(err)
	}
	n.log.Info("store removed", zap.String("node", q.Id))
	return &seqpb.StoreChangeReply{Members: n.memberTexts()}, nil
}

// halfRemoved: the membership is gone already, and the leader that took it away
// was lost before it struck the store off the list that everybody reads.
func (n *Node) halfRemoved(id string) (yes bool) {
	_ = n.fsm.read(func(st *state.State) { _, yes = st.Meta.Stores[id] })
	return yes && !slices.ContainsFunc(n.members(), func(s raft.Server) bool { return string(s.ID) == id })
}

// checkRemove refuses what would leave a group without a working majority.
func (n *Node) checkRemove(ctx context.Context, id string) *seqpb.Refusal {
	known, voters, alive := false, 0, 0
	for _, s := range n.members() {
		if string(s.ID) == id {
			known = true
			continue
		}
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if string(s.ID) == n.cfg.ID || n.answers(ctx, s.ID) {
			alive++
		}
	}
	switch {
	case !known:
		return invalid("there is no store %q: members are %s", id, strings.Join(n.memberTexts(), ", "))
	case voters == 0:
		return invalid("store %q is the last one", id)
	case alive < voters/2+1:
		return invalid("without store %q, %d of %d stores would answer, and %d are needed: bring one back, or add one, first", id, alive, voters, voters/2+1)
	}
	return nil
}

// answers asks a member, too: Raft notices one that has gone without a word only
// when a request to it times out, and a new leader has not noticed anything yet.
func (n *Node) answers(ctx context.Context, id raft.ServerID) bool {
	if n.contact.since(id) != 0 {
		return false
	}
	var addr string
	if err := n.fsm.read(func(st *state.State) { addr = st.Meta.Stores[string(id)].RPCAddr }); err != nil {
		return false
	}
	if n.cfg.DialAdmin == nil || addr == "" {
		return true // nobody to ask
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	_, err := n.appliedBy(ctx, addr, string(id))
	return err == nil
}

func (n *Node) removeSelf(ctx context.Context, q *seqpb.RemoveStoreRequest) (*seqpb.StoreChangeReply, error) {
	if n.cfg.DialAdmin == nil {
		return &seqpb.StoreChangeReply{Refusal: invalid("store %q leads and cannot pass the call on: ask again once another one leads", q.Id)}, nil
	}
	if err := n.transfer(ctx); err != nil {
		return n.changeFailed(fmt.Errorf("leadership could not be handed on: %w", err))
	}
	for {
		rep, err := n.forwardChange(ctx, func(ctx context.Context, c AdminConn) (*seqpb.StoreChangeReply, error) { return c.RemoveStore(ctx, q) })
		again := err == nil && (rep.Refusal.GetCode() == seqpb.RefusalCode_REFUSAL_NOT_LEADER || rep.Refusal.GetCode() == seqpb.RefusalCode_REFUSAL_NOT_READY)
		if !again {
			return rep, err
		}
		if !pause(ctx, handOverPause) {
			return nil, ctx.Err()
		}
	}
}

func (n *Node) forwardChange(ctx context.Context, call func(context.Context, AdminConn) (*seqpb.StoreChangeReply, error)) (*seqpb.StoreChangeReply, error) {
	rep, err := toLeader(ctx, n, call)
	if errors.Is(err, errNoForward) {
		return &seqpb.StoreChangeReply{Refusal: n.notLeaderRefusal()}, nil
	}
	return rep, err
}

func (n *Node) changeFailed(err error) (*seqpb.StoreChangeReply, error) {
	if r := n.refusalOf(err); r != nil {
		return &seqpb.StoreChangeReply{Refusal: r}, nil
	}
	return nil, err
}

func (n *Node) memberTexts() []string {
	var out []string
	for _, s := range n.members() {
		out = append(out, fmt.Sprintf("%s@%s", s.ID, s.Address))
	}
	return out
}
