package storesvr

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

func (n *Node) checkHello(h *seqpb.Hello) *seqpb.SessionDown {
	var clusterID string
	if err := n.fsm.read(func(st *state.State) { clusterID = st.Meta.Genesis.ClusterID }); err != nil {
		return refused(seqpb.RefusalCode_REFUSAL_NOT_READY, err.Error())
	}
	switch {
	case h.Protocol != sessionProtocol:
		return refused(seqpb.RefusalCode_REFUSAL_WRONG_VERSION,
			fmt.Sprintf("session protocol %d, this store speaks %d: run versions that go together", h.Protocol, sessionProtocol))
	case h.Cluster != n.cfg.Cluster:
		return refused(seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER,
			fmt.Sprintf("this store is of cluster %q, not %q: check the addresses of the stores", n.cfg.Cluster, h.Cluster))
	case h.ClusterId != "" && h.ClusterId != clusterID:
		return refused(seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER,
			fmt.Sprintf("cluster %q has id %s, not %s: it was founded anew or restored; stop the allocsvr and remove its arena", n.cfg.Cluster, clusterID, h.ClusterId))
	case h.Node == "" || h.Addr == "":
		return refused(seqpb.RefusalCode_REFUSAL_INVALID, "a hello needs a node name and an address")
	}
	for _, s := range []string{h.Node, h.Addr, h.RedisAddr, h.HttpAddr, h.Version} {
		if len(s) > preambleTextMax {
			return refused(seqpb.RefusalCode_REFUSAL_INVALID, fmt.Sprintf("a text of %d bytes, at most %d are allowed", len(s), preambleTextMax))
		}
	}
	return nil
}

// attach registers or resumes, and makes the stream the session's.
func (l *leadership) attach(ctx context.Context, h *seqpb.Hello, at time.Duration) (*stream, *seqpb.Welcome, *seqpb.SessionDown) {
	l.mu.Lock()
	if l.greeting[h.Node] {
		l.mu.Unlock()
		return nil, nil, refused(seqpb.RefusalCode_REFUSAL_NODE_IN_USE, fmt.Sprintf("another hello of node %q is being answered", h.Node))
	}
	l.greeting[h.Node] = true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.greeting, h.Node)
		l.mu.Unlock()
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()

	rep, whyNot, err := l.resume(ctx, h)
	resumed := err == nil && whyNot == "" && h.ResumeSession != 0
	if err == nil && !resumed {
		if id, used := l.nodeInUse(h.Node, at); used {
			return nil, nil, refused(seqpb.RefusalCode_REFUSAL_NODE_IN_USE,
				fmt.Sprintf("node %q has a live session (%d): give each allocsvr its own name, or wait until the lease of the other has run out", h.Node, id))
		}
		rep, err = l.n.propose(ctx, state.Register{Node: h.Node, Addr: h.Addr, RedisAddr: h.RedisAddr, HTTPAddr: h.HttpAddr, Version: h.Version})
		if err == nil && rep.Refusal != state.OK {
			return nil, nil, refused(seqpb.RefusalCode_REFUSAL_INVALID, "the registration was refused")
		}
	}
	if err != nil {
		if l.ctx.Err() != nil {
			return nil, nil, l.n.notLeader()
		}
		return nil, nil, refused(seqpb.RefusalCode_REFUSAL_NOT_READY, err.Error())
	}
	st := &stream{node: h.Node, session: rep.Session.ID, incarnation: rep.Session.Incarnation, poked: make(chan struct{}, 1)}
	l.enter(st, at)
	l.log.Info("session attached", zap.Uint64("session", uint64(st.session)), zap.String("node", h.Node),
		zap.Uint32("incarnation", uint32(st.incarnation)), zap.Bool("resumed", resumed), zap.String("not_resumed", whyNot))
	return st, l.welcome(&rep.Session, resumed, whyNot), nil
}

// enter makes st the session's stream. That it was committed after the Hello
// came proves leadership, so the Hello counts as a heartbeat.
func (l *leadership) enter(st *stream, at time.Duration) {
	l.mu.Lock()
	old := l.streams[st.session]
	l.streams[st.session] = st
	if _, known := l.adopted[st.session]; !known {
		l.adopted[st.session] = st.incarnation
	}
	l.book.Heard(st.session, st.incarnation, at)
	l.pulses.heard(st.session, at)
	l.mu.Unlock()
	if old != nil {
		old.finish(silence)
	}
	l.poke()
}

// resume continues a session, if that is what the Hello asks. whyNot says what
// is against it; then the process starts as a new session.
func (l *leadership) resume(ctx context.Context, h *seqpb.Hello) (rep state.Reply, whyNot string, err error) {
	if h.ResumeSession == 0 {
		return rep, "", nil
	}
	id, from := ids.SessionID(h.ResumeSession), ids.Incarnation(h.ResumeIncarnation)
	var ses *state.SessionState
	if err := l.n.fsm.read(func(st *state.State) {
		if s := st.Meta.Sessions[id]; s != nil {
			c := *s
			ses = &c
		}
	}); err != nil {
		return rep, "", err
	}
	switch {
	case ses == nil:
		return rep, fmt.Sprintf("session %d has ended", id), nil
	case ses.Node != h.Node:
		return rep, fmt.Sprintf("session %d is of node %q", id, ses.Node), nil
	case !l.mayResume(ses, from):
		return rep, fmt.Sprintf("session %d is at incarnation %d, not %d", id, ses.Incarnation, from), nil
	}
	rep, err = l.n.propose(ctx, state.Resume{
		Session: id, From: ses.Incarnation,
		Addr: h.Addr, RedisAddr: h.RedisAddr, HTTPAddr: h.HttpAddr, Version: h.Version,
	})
	switch {
	case err != nil:
		return rep, "", err
	case rep.Refusal != state.OK:
		return rep, fmt.Sprintf("session %d has ended or was resumed meanwhile", id), nil
	}
	return rep, "", nil
}

// mayResume: the process knows the newest incarnation that has acted. The
// session's own may be newer when the answers to earlier Hellos were lost: such
// an incarnation never did anything. By how many, this leader knows from what it
// has heard itself; of its predecessors' time it knows whose batches were applied.
func (l *leadership) mayResume(ses *state.SessionState, from ids.Incarnation) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	oldest := max(ses.Acted, 1)
	if acted, known := l.adopted[ses.ID]; known {
		oldest = acted
	}
	ok := oldest <= from && from <= ses.Incarnation
	if ok {
		l.adopted[ses.ID] = from
	}
	return ok
}

// nodeInUse: a live stream of the node is open. Since another process said Hello
// at the given time it is doubted: a machine that is lost is often back, with
// nothing, long before its lease has ended.
func (l *leadership) nodeInUse(node string, at time.Duration) (ids.SessionID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, st := range l.streams {
		if st.node == node {
			l.pulses.doubt(id, at)
			l.poke()
			return id, true
		}
	}
	return 0, false
}

func (l *leadership) welcome(ses *state.SessionState, resumed bool, whyNot string) *seqpb.Welcome {
	cfg := &l.n.cfg
	w := &seqpb.Welcome{
		Set: cfg.Set, Session: uint64(ses.ID), Incarnation: uint32(ses.Incarnation), Resumed: resumed, NotResumed: whyNot,
		TtlMs: millis(cfg.LeaseTTL), MarginMs: millis(cfg.margin()), HeartbeatMs: millis(cfg.heartbeat()),
		BatchSeq: uint64(ses.LastBatch),
	}
	// A failed state machine refuses everything that follows.
	_ = l.n.fsm.read(func(st *state.State) {
		g := &st.Meta.Genesis
		w.ClusterId, w.Sections, w.Spaces = g.ClusterID, g.Sections, wire.Spaces(g.Spaces)
	})
	return w
}

func millis(d time.Duration) uint32 { return uint32(d / time.Millisecond) }
