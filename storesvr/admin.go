package storesvr

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/placement"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// peerTimeout bounds asking another node for its view.
	peerTimeout = 500 * time.Millisecond
	// forwardTimeout bounds a call that is passed on without a deadline of its own.
	forwardTimeout = 30 * time.Second
)

func refusal(code seqpb.RefusalCode, format string, args ...any) *seqpb.Refusal {
	return &seqpb.Refusal{Code: code, Message: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *seqpb.Refusal {
	return refusal(seqpb.RefusalCode_REFUSAL_INVALID, format, args...)
}

// errNoForward: this node cannot pass the call on.
var errNoForward = errors.New("this node cannot pass calls on")

// toLeader passes an administrative call on to the leader.
func toLeader[R any](ctx context.Context, n *Node, call func(context.Context, AdminConn) (R, error)) (R, error) {
	var none R
	addr := n.leaderRPC()
	if addr == "" || addr == n.cfg.RPCAddr || n.cfg.DialAdmin == nil {
		return none, errNoForward
	}
	c, err := n.cfg.DialAdmin(addr)
	if err != nil {
		return none, err
	}
	defer c.Close()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, forwardTimeout)
		defer cancel()
	}
	return call(ctx, c)
}

// Status answers from any node: the leader's view where it can be had, else this node's own.
func (n *Node) Status(ctx context.Context, q *seqpb.StatusRequest) (*seqpb.StatusReply, error) {
	if !q.GetLocal() && n.leads() == nil {
		pctx, cancel := context.WithTimeout(ctx, peerTimeout)
		defer cancel()
		rep, err := toLeader(pctx, n, func(ctx context.Context, c AdminConn) (*seqpb.StatusReply, error) {
			return c.Status(ctx, &seqpb.StatusRequest{Local: true})
		})
		if err == nil && rep.GetRefusal().GetCode() == seqpb.RefusalCode_REFUSAL_NONE {
			return rep, nil
		}
	}
	return n.localStatus(ctx)
}

func (n *Node) localStatus(ctx context.Context) (*seqpb.StatusReply, error) {
	m, applied, err := n.fsm.meta()
	if err != nil {
		return nil, err
	}
	rep := &seqpb.StatusReply{Cluster: n.cfg.Cluster, ClusterId: m.Genesis.ClusterID, MapVersion: m.Published.Map.Version}
	set := &seqpb.SetStatus{Name: n.cfg.Set, RouteVersion: m.RouteVersion, Sections: uint32(len(m.Sections))}
	set.Ranges = rangeTexts(m.Genesis.Spaces, m.Ranges)
	set.Stores = n.storeStatuses(ctx, &m, applied)
	l := n.leads()
	set.Allocs = l.allocStatuses(n, &m)
	for i := range m.Sections {
		if m.Sections[i].Owner == 0 {
			set.Unowned++
		}
	}
	if l != nil {
		l.mu.Lock()
		set.Moving = uint32(len(l.moves))
		l.mu.Unlock()
	}
	rep.Sets = []*seqpb.SetStatus{set}
	return rep, nil
}

// rangeTexts are ranges as SPACE-NAME:LO-HI.
func rangeTexts(spaces []ids.Space, ranges []sets.Range) []string {
	out := make([]string, 0, len(ranges))
	for _, r := range ranges {
		out = append(out, r.In(spaces))
	}
	return out
}

// storeStatuses: a leader asks the others how far they are.
func (n *Node) storeStatuses(ctx context.Context, m *state.Meta, applied uint64) []*seqpb.StoreStatus {
	_, leader := n.raft.LeaderWithID()
	leads := n.leads() != nil
	var out []*seqpb.StoreStatus
	type answer struct {
		s       *seqpb.StoreStatus
		applied uint64
	}
	members := n.members()
	asked, answers := 0, make(chan answer, len(members))
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	for _, srv := range members {
		s := &seqpb.StoreStatus{
			Id: string(srv.ID), Addr: m.Stores[string(srv.ID)].RPCAddr, RaftAddr: string(srv.Address),
			Role: "follower", Voter: srv.Suffrage == raft.Voter,
		}
		switch {
		case srv.ID == leader:
			s.Role = "leader"
		case !s.Voter:
			s.Role = "joining"
		}
		if string(srv.ID) == n.cfg.ID {
			s.Applied = applied
		} else {
			if leads {
				s.LastContactMs = uint64(n.contact.since(srv.ID) / time.Millisecond)
			}
			if leads && n.cfg.DialAdmin != nil && s.Addr != "" && n.calls.enter() {
				asked++
				go func() {
					defer n.calls.leave()
					a, _ := n.appliedBy(ctx, s.Addr, s.Id)
					answers <- answer{s, a}
				}()
			}
		}
		out = append(out, s)
	}
	for range asked {
		select {
		case a := <-answers:
			a.s.Applied = a.applied
		case <-ctx.Done():
			return out
		}
	}
	return out
}

// appliedBy asks another store how far it has applied.
func (n *Node) appliedBy(ctx context.Context, addr, id string) (uint64, error) {
	c, err := n.cfg.DialAdmin(addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	rep, err := c.Status(ctx, &seqpb.StatusRequest{Local: true})
	if err != nil {
		return 0, err
	}
	for _, set := range rep.Sets {
		for _, s := range set.Stores {
			if s.Id == id {
				return s.Applied, nil
			}
		}
	}
	return 0, fmt.Errorf("store %s at %s does not know itself as a member yet", id, addr)
}

// allocStatuses is what is known of the AllocSvrs; without the leader's memory
// (l nil) leases and loads are not.
func (l *leadership) allocStatuses(n *Node, m *state.Meta) []*seqpb.AllocStatus {
	owned := map[ids.SessionID]uint32{}
	for i := range m.Sections {
		owned[m.Sections[i].Owner]++
	}
	var out []*seqpb.AllocStatus
	for _, ses := range liveSessions(m) {
		a := &seqpb.AllocStatus{
			Id: ses.Node, Addr: ses.Addr, State: "serving", Sections: owned[ses.ID], Session: uint64(ses.ID),
			RedisAddr: ses.RedisAddr, HttpAddr: ses.HTTPAddr, Version: ses.Version,
		}
		switch {
		case ses.Leaving:
			a.State = "leaving"
		case m.Draining[ses.Node] && a.Sections > 0:
			a.State = "draining"
		case m.Draining[ses.Node]:
			a.State = "drained"
		case a.Sections == 0:
			a.State = "idle"
		}
		if l != nil {
			l.mu.Lock()
			a.LeaseMs = max(0, int64((l.book.Deadline(ses.ID)-n.cfg.Clock.Now())/time.Millisecond))
			if ld := l.loads[ses.ID]; ld != nil {
				a.Keys, a.Rate, a.Steps = ld.keys, ld.rate, ld.steps
			}
			if l.streams[ses.ID] == nil {
				a.State = "silent"
			}
			l.mu.Unlock()
		}
		out = append(out, a)
	}
	return out
}

// Undrain lets a node have sections again.
func (n *Node) Undrain(ctx context.Context, q *seqpb.DrainRequest) (*seqpb.UndrainReply, error) {
	l := n.leads()
	if l == nil {
		rep, err := toLeader(ctx, n, func(ctx context.Context, c AdminConn) (*seqpb.UndrainReply, error) { return c.Undrain(ctx, q) })
		if errors.Is(err, errNoForward) {
			return &seqpb.UndrainReply{Refusal: n.notLeaderRefusal()}, nil
		}
		return rep, err
	}
	var known bool
	if err := n.fsm.read(func(st *state.State) { known = knowsNode(&st.Meta, q.Node) || st.Meta.Draining[q.Node] }); err != nil {
		return nil, err
	}
	if !known {
		return &seqpb.UndrainReply{Refusal: invalid("there is no allocsvr %q", q.Node)}, nil
	}
	rep, err := n.propose(ctx, state.SetDraining{Node: q.Node})
	if r := n.refusalOf(err); r != nil {
		return &seqpb.UndrainReply{Refusal: r}, nil
	}
	if err != nil {
		return nil, err
	}
	if rep.Refusal != state.OK {
		return &seqpb.UndrainReply{Refusal: invalid("node %q was refused", q.Node)}, nil
	}
	return &seqpb.UndrainReply{}, nil
}

func knowsNode(m *state.Meta, node string) bool {
	for _, s := range m.Sessions {
		if s.Node == node {
			return true
		}
	}
	return false
}

// Rebalance spreads the sections now, whatever the hysteresis and the hold-off of
// nodes that were lost say; dry: what it would move.
func (n *Node) Rebalance(ctx context.Context, q *seqpb.RebalanceRequest) (*seqpb.RebalanceReply, error) {
	l := n.leads()
	if l == nil {
		rep, err := toLeader(ctx, n, func(ctx context.Context, c AdminConn) (*seqpb.RebalanceReply, error) { return c.Rebalance(ctx, q) })
		if errors.Is(err, errNoForward) {
			return &seqpb.RebalanceReply{Refusal: n.notLeaderRefusal()}, nil
		}
		return rep, err
	}
	rep := &seqpb.RebalanceReply{}
	l.mu.Lock()
	rep.Moving = uint32(len(l.moves))
	err := n.fsm.read(func(st *state.State) {
		s := l.situation(&st.Meta, n.cfg.Clock.Now())
		s.force = true
		// All of it, not only what may move at once.
		s.limits.MovingMax = len(st.Meta.Sections) + 1
		for _, m := range placement.Plan(s.placementInput()) {
			if m.Reason != placement.Balance {
				continue
			}
			rep.Moves++
			rep.Plan = append(rep.Plan, fmt.Sprintf("section %d: %s → %s", m.Section, nodeOf(&st.Meta, m.From), nodeOf(&st.Meta, m.To)))
		}
	})
	if err == nil && !q.DryRun && rep.Moves > 0 {
		l.force = true
	}
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	l.poke()
	return rep, nil
}

func nodeOf(m *state.Meta, id ids.SessionID) string {
	if s := m.Sessions[id]; s != nil {
		return s.Node
	}
	return "nobody"
}
