package storesvr

import (
	"context"
	"fmt"
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
		return n.refuse(s, refused(seqpb.RefusalCode_REFUSAL_BUSY, fmt.Sprintf("%d sessions are open, no more are taken", streamsMax)))
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
		return n.refuse(s, n.notLeader())
	}
	if r := n.checkHello(h.msg.Hello); r != nil {
		return n.refuse(s, r)
	}
	st, w, r := l.attach(ctx, h.msg.Hello, h.at)
	if r != nil {
		return n.refuse(s, r)
	}
	defer l.detach(st)
	if err := s.Send(&seqpb.SessionDown{Welcome: w}); err != nil {
		return err
	}
	n.streamsHear(ctx, cancel, l, st, up)
	return l.tell(ctx, s, st)
}

func (n *Node) refuse(s SessionStream, m *seqpb.SessionDown) error {
	n.counts.refused(m.GetRefusal())
	return s.Send(m)
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
	if l.pulses.silent(st.session, at) {
		l.poke() // it may have sections again
	}
	l.pulses.heard(st.session, at)
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
	ld := &load{keys: hb.Keys, rate: hb.Rate, steps: hb.Steps, sections: make(map[ids.Section]sectionLoad, n)}
	for i, s := range hb.Section {
		ld.sections[ids.Section(s)] = sectionLoad{keys: hb.SectionKeys[i], rate: float64(hb.SectionRate[i])}
	}
	return ld
}
