package storesvr

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/lease"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// sessionProtocol is the version that a Hello must have.
	sessionProtocol = 1
	// helloTimeout bounds how long a stream may stay silent at first.
	helloTimeout = 5 * time.Second
)

// SessionStream is the store's end of Store.Session. Recv must return when the
// handler has: its goroutine ends with it.
type SessionStream interface {
	Context() context.Context
	Recv() (*seqpb.SessionUp, error)
	Send(*seqpb.SessionDown) error
}

// lastWord is what a stream ends with.
type lastWord uint8

const (
	silence lastWord = iota
	expiredMessage
	goodbyeMessage
	// retryMessage: something could not be committed; the peer should come again.
	retryMessage
)

// stream is one AllocSvr's open session stream. What is to be sent is kept as
// the newest of each kind, so a slow peer costs nothing: it is told the present
// state when it can take it.
type stream struct {
	node        string
	session     ids.SessionID
	incarnation ids.Incarnation

	mu sync.Mutex
	// ack is the newest verified heartbeat, acked the newest acknowledged one.
	ack, acked uint64
	over       bool
	last       lastWord
	// poked has room for one: there is something to send.
	poked chan struct{}
}

func (st *stream) poke() {
	select {
	case st.poked <- struct{}{}:
	default:
	}
}

func (st *stream) finish(w lastWord) {
	st.mu.Lock()
	if !st.over {
		st.over, st.last = true, w
	}
	st.mu.Unlock()
	st.poke()
}

func (st *stream) verified(number uint64) {
	st.mu.Lock()
	st.ack = max(st.ack, number)
	st.mu.Unlock()
	st.poke()
}

// Session serves one AllocSvr for as long as this node leads.
func (n *Node) Session(s seqpb.Store_SessionServer) error { return n.ServeSession(s) }

// ServeSession is Session for any stream.
func (n *Node) ServeSession(s SessionStream) error {
	if !n.streams.enter() {
		return wire.Refusef(seqpb.Code_CODE_NOT_READY, "%v", errStopping)
	}
	defer n.streams.leave()
	select {
	case n.streamsN <- struct{}{}:
		defer func() { <-n.streamsN }()
	default:
		return s.Send(refused(seqpb.RefusalCode_REFUSAL_BUSY, fmt.Sprintf("%d sessions are open, no more are taken", streamsMax)))
	}
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	up := make(chan received)
	if !n.streams.enter() {
		return wire.Refusef(seqpb.Code_CODE_NOT_READY, "%v", errStopping)
	}
	// The receiver ends when the transport does with the stream what it does once we return.
	go func() {
		defer n.streams.leave()
		n.receive(ctx, s, up)
	}()
	h := n.awaitHello(ctx, up)
	if h.msg == nil {
		return h.err
	}
	l := n.leads()
	if l == nil {
		return s.Send(n.notLeader())
	}
	if r := n.checkHello(h.msg.Hello); r != nil {
		return s.Send(r)
	}
	st, w, r := l.attach(ctx, h.msg.Hello, h.at)
	if r != nil {
		return s.Send(r)
	}
	defer l.detach(st)
	if err := s.Send(&seqpb.SessionDown{Welcome: w}); err != nil {
		return err
	}
	n.streamsHear(ctx, cancel, l, st, up)
	return l.tell(ctx, s, st)
}

// received is a message with the time at which it was.
type received struct {
	msg *seqpb.SessionUp
	at  time.Duration
	err error
}

// receive passes on what the peer says, with the time of its arrival.
func (n *Node) receive(ctx context.Context, s SessionStream, up chan<- received) {
	for {
		m, err := s.Recv()
		r := received{msg: m, at: n.cfg.Clock.Now(), err: err}
		select {
		case up <- r:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

func (n *Node) awaitHello(ctx context.Context, up <-chan received) received {
	t := time.NewTimer(helloTimeout)
	defer t.Stop()
	select {
	case r := <-up:
		if r.err != nil {
			return received{err: r.err}
		}
		if r.msg == nil || r.msg.Hello == nil {
			return received{err: wire.Refusef(seqpb.Code_CODE_INVALID_ARGUMENT, "a session begins with a hello")}
		}
		return r
	case <-t.C:
		return received{err: wire.Refusef(seqpb.Code_CODE_INVALID_ARGUMENT, "no hello within %v", helloTimeout)}
	case <-ctx.Done():
		return received{err: ctx.Err()}
	case <-n.closing:
		return received{err: wire.Refusef(seqpb.Code_CODE_NOT_READY, "%v", errStopping)}
	}
}

func refused(code seqpb.RefusalCode, message string) *seqpb.SessionDown {
	return &seqpb.SessionDown{Refusal: &seqpb.Refusal{Code: code, Message: message}}
}

func (n *Node) notLeader() *seqpb.SessionDown {
	return &seqpb.SessionDown{Refusal: n.notLeaderRefusal()}
}

// notLeaderRefusal names the leader, or says that there is none yet.
func (n *Node) notLeaderRefusal() *seqpb.Refusal {
	r := &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_NOT_LEADER, Leader: n.leaderRPC(), Message: "this store does not lead"}
	if r.Leader == n.cfg.RPCAddr {
		// It leads, and is not ready to act, or stops.
		return &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_NOT_READY, Message: "this store has just become the leader"}
	}
	if r.Leader == "" {
		r.Message = "this store does not lead and knows no leader"
	}
	return r
}

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
		if id, used := l.nodeInUse(h.Node); used {
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
	case !l.mayResume(id, from, ses.Incarnation):
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
// has heard itself; of its predecessor's time it allows one.
func (l *leadership) mayResume(id ids.SessionID, from, now ids.Incarnation) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	acted, known := l.adopted[id]
	ok := from == now || known && from == acted && from < now || !known && from+1 == now
	if ok {
		l.adopted[id] = from
	}
	return ok
}

// nodeInUse: a live stream of the node is open.
func (l *leadership) nodeInUse(node string) (ids.SessionID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, st := range l.streams {
		if st.node == node {
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

func (l *leadership) detach(st *stream) {
	l.mu.Lock()
	if l.streams[st.session] == st {
		delete(l.streams, st.session)
	}
	l.mu.Unlock()
	l.poke()
}

// streamsHear carries out what the peer says until the stream ends.
func (n *Node) streamsHear(ctx context.Context, cancel context.CancelFunc, l *leadership, st *stream, up <-chan received) {
	if !n.streams.enter() {
		cancel()
		return
	}
	go func() {
		defer n.streams.leave()
		defer cancel()
		for {
			select {
			case r := <-up:
				if r.err != nil {
					return
				}
				l.hear(ctx, st, r)
			case <-ctx.Done():
				return
			case <-l.ctx.Done():
				return
			}
		}
	}()
}

func (l *leadership) hear(ctx context.Context, st *stream, r received) {
	switch {
	case r.msg.GetHeartbeat() != nil:
		hb := r.msg.Heartbeat
		// After the receipt, so a leader that was deposed before acknowledges nothing.
		if l.n.verify.verify(ctx) != nil {
			return
		}
		if l.heard(st, hb, r.at) {
			st.verified(hb.Number)
		}
	case r.msg.GetLeaving() != nil:
		l.log.Info("session wants to leave", zap.Uint64("session", uint64(st.session)), zap.String("reason", r.msg.Leaving.Reason))
		rep, err := l.n.propose(l.ctx, state.Leave{Session: st.session, Incarnation: st.incarnation})
		if err != nil || rep.Refusal != state.OK {
			st.finish(retryMessage)
		}
	}
}

// heard renews the lease in the book; false if it must not be acknowledged.
func (l *leadership) heard(st *stream, hb *seqpb.Heartbeat, at time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams[st.session] != st || l.doomed[lease.Session{ID: st.session, Incarnation: st.incarnation}] {
		return false
	}
	live, sections := false, uint32(0)
	if err := l.n.fsm.read(func(s *state.State) {
		ses := s.Meta.Sessions[st.session]
		live = ses != nil && ses.Incarnation == st.incarnation
		sections = s.Meta.Genesis.Sections
	}); err != nil || !live {
		return false
	}
	l.book.Heard(st.session, st.incarnation, at)
	l.adopted[st.session] = st.incarnation
	if ld := loadOf(hb, sections); ld != nil {
		l.loads[st.session] = ld
	}
	return true
}

// loadOf reads a heartbeat's load; nil if it makes no sense.
func loadOf(hb *seqpb.Heartbeat, sections uint32) *load {
	n := len(hb.Section)
	if n > int(sections) || len(hb.SectionKeys) != n || len(hb.SectionRate) != n {
		return nil
	}
	ld := &load{keys: hb.Keys, rate: hb.Rate, sections: make(map[ids.Section]sectionLoad, n)}
	for i, s := range hb.Section {
		ld.sections[ids.Section(s)] = sectionLoad{keys: hb.SectionKeys[i], rate: float64(hb.SectionRate[i])}
	}
	return ld
}

// tell sends the stream what it lacks: acknowledgements first, then what it owns, then routes.
func (l *leadership) tell(ctx context.Context, s SessionStream, st *stream) error {
	var sent *seqpb.Directive
	var known uint64
	for {
		changed, told := l.n.changed.wait(), l.told.wait()
		for {
			m, over := st.next()
			if m == nil && !over {
				m = l.news(st, &sent, &known)
			}
			if m != nil {
				if err := s.Send(m); err != nil {
					return err
				}
			}
			if over {
				return nil
			}
			if m == nil {
				break
			}
		}
		select {
		case <-st.poked:
		case <-changed:
		case <-told:
		case <-ctx.Done():
			if l.ctx.Err() != nil {
				return s.Send(l.n.notLeader())
			}
			return ctx.Err()
		case <-l.ctx.Done():
			return s.Send(l.n.notLeader())
		}
	}
}

// next is the acknowledgement that is due, or the last word.
func (st *stream) next() (m *seqpb.SessionDown, over bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.over:
		switch st.last {
		case expiredMessage:
			m = refused(seqpb.RefusalCode_REFUSAL_SESSION_EXPIRED, fmt.Sprintf("the lease of session %d ran out", st.session))
		case goodbyeMessage:
			m = &seqpb.SessionDown{Goodbye: &seqpb.Goodbye{}}
		case retryMessage:
			m = refused(seqpb.RefusalCode_REFUSAL_NOT_READY, "the wish could not be committed: come again")
		}
		return m, true
	case st.ack > st.acked:
		st.acked = st.ack
		return &seqpb.SessionDown{Ack: &seqpb.HeartbeatAck{Number: st.ack}}, false
	}
	return nil, false
}

// news is the directive if it has changed, else the routes if they have.
func (l *leadership) news(st *stream, sent **seqpb.Directive, known *uint64) *seqpb.SessionDown {
	l.mu.Lock()
	defer l.mu.Unlock()
	var m *seqpb.SessionDown
	err := l.n.fsm.read(func(s *state.State) {
		if d := l.directive(st, &s.Meta); *sent == nil || !sameDirective(d, *sent) {
			l.directives++
			d.Version = l.directives
			*sent = d
			m = &seqpb.SessionDown{Directive: d}
			return
		}
		if t := routesSince(&s.Meta, *known); t != nil {
			*known = s.Meta.RouteVersion
			m = &seqpb.SessionDown{Routes: t}
		}
	})
	if err != nil {
		return nil
	}
	return m
}

// directive is the whole truth of what a session owns and is to hand back.
func (l *leadership) directive(st *stream, m *state.Meta) *seqpb.Directive {
	d := &seqpb.Directive{}
	for i := range m.Sections {
		s := &m.Sections[i]
		if s.Owner != st.session {
			continue
		}
		d.Section = append(d.Section, uint32(i))
		d.Epoch = append(d.Epoch, uint64(s.Epoch))
		if mv, ok := l.moves[ids.Section(i)]; ok && mv.from == s.Owner && mv.epoch == s.Epoch {
			d.Revoke = append(d.Revoke, uint32(i))
		}
	}
	return d
}

func sameDirective(a, b *seqpb.Directive) bool {
	return slices.Equal(a.Section, b.Section) && slices.Equal(a.Epoch, b.Epoch) && slices.Equal(a.Revoke, b.Revoke)
}
