package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/clock"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/lease"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// Handler carries out what the session learns. Its methods are called from one
// goroutine, in order; none may block for longer than a few milliseconds, since
// heartbeats wait meanwhile.
type Handler interface {
	// Welcomed persists the identity before anything is done in its name. With
	// an error the stream is given up and another tried.
	Welcomed(w *seqpb.Welcome) error
	// Directed is told the whole truth of what the session owns.
	Directed(d *seqpb.Directive)
	// Routed is told what has changed of the routes since it was told last on the
	// stream, at first all. An error says that it could make nothing of it.
	Routed(t *seqpb.RouteTable) error
	// Renewed: the lease holds again after a stream was opened; not told each time it is renewed.
	Renewed()
	// Lost: the session is over; nothing is owned any more. Serving stops
	// before it returns. A new session will follow.
	Lost(reason string)
	// Ended: the leader said goodbye after Leave, or there was nothing to leave.
	Ended()
	// Refused: this process must not run as it is configured.
	Refused(err *RefusedError)
	// Load fills in what a heartbeat reports.
	Load(hb *seqpb.Heartbeat)
}

// Config of a Session.
type Config struct {
	Peer   Peer
	Stores []string
	Dial   DialStore
	// Resume is the identity to resume; its Session is 0 to register anew.
	Resume  Identity
	Handler Handler
	Clock   clock.Clock
	Logger  *zap.Logger
	// Jitter spreads back-offs; nil leaves them as they are.
	Jitter func(time.Duration) time.Duration
	// Bugs is for fault-injection tests.
	Bugs lease.Bugs
}

// Session keeps one session alive. It owns its goroutines; Close ends them.
type Session struct {
	cfg Config
	log *zap.Logger

	// lease is nil until the first Welcome. The machine renews it, callers read it.
	lease atomic.Pointer[lease.Holder]

	mu      sync.Mutex
	link    *link         // nil while there is no leader
	changed chan struct{} // closed when link changes, and replaced
	seq     ids.BatchSeq  // of the last batch sent

	events chan event
	cancel context.CancelFunc
	done   chan struct{}
	wg     sync.WaitGroup // stream goroutines
}

// link is the attached stream's connection, with the identity that it was welcomed under.
type link struct {
	id   Identity
	addr string
	conn StoreConn
	gen  uint64
	// patience bounds one call: an answer may be lost without the stream noticing.
	patience time.Duration
	// ctx ends when the stream is given up, and with it every call on the link.
	ctx context.Context
}

// stream is one attempt at a session stream.
type stream struct {
	gen    uint64
	addr   string
	conn   StoreConn
	out    chan *seqpb.SessionUp
	ctx    context.Context
	cancel context.CancelFunc
	// routed: routes have been told on it.
	routed bool
}

// event is something for the machine; exactly one of its fields is used.
type event struct {
	gen    uint64
	opened StoreConn
	broken error
	down   *seqpb.SessionDown
	leave  string
	// abandon is why.
	abandon string
}

// outMax bounds the messages waiting to be sent on a stream. A peer that lets
// them pile up is as good as gone.
const outMax = 8

// New makes a session that does nothing yet. cfg.Stores must not be empty.
func New(cfg Config) *Session {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	return &Session{
		cfg:     cfg,
		log:     cfg.Logger,
		changed: make(chan struct{}),
		events:  make(chan event, 16),
		done:    make(chan struct{}),
	}
}

// Start begins to look for the leader.
func (s *Session) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go s.run(ctx)
}

// Alive tells whether the lease holds now. It is the one lease check there is.
func (s *Session) Alive() bool {
	h := s.lease.Load()
	return h != nil && h.Valid(s.cfg.Clock.Now())
}

// Remaining is for how long the lease still holds; 0 when it does not.
func (s *Session) Remaining() time.Duration {
	h, now := s.lease.Load(), s.cfg.Clock.Now()
	if h == nil || h.Deadline() <= now {
		return 0
	}
	return h.Deadline() - now
}

// Leader is the address of the leader that the session is attached to; "" for none.
func (s *Session) Leader() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == nil {
		return ""
	}
	return s.link.addr
}

// Leave asks the leader to move everything away; Handler.Ended follows.
func (s *Session) Leave(reason string) {
	select {
	case s.events <- event{leave: reason}:
	case <-s.done:
	}
}

// Abandon gives the session up, as if its memory were lost: Handler.Lost follows,
// and another session, or Handler.Ended if it was leaving. It does not wait: false
// if the session is too busy to hear it now.
func (s *Session) Abandon(reason string) bool {
	select {
	case s.events <- event{abandon: reason}:
		return true
	default:
		return false
	}
}

// Close drops the stream without a word and waits for the goroutines. Call it once Start was.
func (s *Session) Close() {
	s.cancel()
	<-s.done
}

func (s *Session) post(ctx context.Context, e event) {
	select {
	case s.events <- e:
	case <-ctx.Done():
	}
}

// run is the loop: events into the machine, its actions out.
func (s *Session) run(ctx context.Context) {
	defer close(s.done)
	m := newMachine(s.cfg.Peer, s.cfg.Stores, s.cfg.Resume, s.cfg.Bugs, s.cfg.Jitter)
	l := loop{s: s, m: m, ctx: ctx}
	defer l.finish()
	l.carryOut(m.start(s.cfg.Clock.Now()))
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if at, ok := m.wake(); ok {
			// At least a millisecond: the timer's clock and ours may disagree.
			timer.Reset(max(at-s.cfg.Clock.Now(), time.Millisecond))
		} else {
			timer.Stop()
		}
		var acts []action
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			acts = m.tick(s.cfg.Clock.Now())
		case e := <-s.events:
			acts = l.take(e)
		}
		l.carryOut(acts)
	}
}

// loop is the state of run that is not the machine's.
type loop struct {
	s   *Session
	m   *machine
	ctx context.Context
	cur *stream
}

func (l *loop) take(e event) []action {
	now := l.s.cfg.Clock.Now()
	switch {
	case e.leave != "":
		return l.m.leave(e.leave)
	case e.abandon != "":
		return l.m.abandon(now, e.abandon)
	case e.broken != nil:
		if l.cur != nil && l.cur.gen == e.gen {
			l.s.log.Info("session stream broken", zap.String("store", l.cur.addr), zap.Error(e.broken))
		}
		return l.m.broken(now, e.gen)
	case e.opened != nil:
		if l.cur == nil || l.cur.gen != e.gen {
			return nil // given up meanwhile; its goroutine closes it
		}
		l.cur.conn = e.opened
		return l.m.opened(e.gen)
	}
	return l.m.down(now, e.gen, e.down)
}

func (l *loop) carryOut(acts []action) {
	for _, a := range acts {
		switch a := a.(type) {
		case connect:
			l.connect(a)
		case disconnect:
			l.disconnect(a.gen)
		case send:
			l.send(a.gen, a.up)
		case beat:
			hb := &seqpb.Heartbeat{Number: a.number}
			l.s.cfg.Handler.Load(hb)
			l.send(a.gen, &seqpb.SessionUp{Heartbeat: hb})
		case welcomed:
			if !l.welcomed(a) {
				return // the rest speaks of a stream that is given up
			}
		case leased:
			l.s.lease.Store(a.holder)
		case renewed:
			l.s.cfg.Handler.Renewed()
		case lost:
			l.s.log.Warn("session lost", zap.String("reason", a.reason))
			l.s.setLink(nil)
			l.s.cfg.Handler.Lost(a.reason)
		case directed:
			l.s.cfg.Handler.Directed(a.directive)
		case routed:
			if !l.routed(a) {
				return
			}
		case ended:
			l.s.log.Info("session ended")
			l.s.setLink(nil)
			l.s.cfg.Handler.Ended()
		case refused:
			l.s.cfg.Handler.Refused(a.err)
		}
	}
}

func (l *loop) connect(a connect) {
	ctx, cancel := context.WithCancel(l.ctx)
	st := &stream{gen: a.gen, addr: a.addr, out: make(chan *seqpb.SessionUp, outMax), ctx: ctx, cancel: cancel}
	l.cur = st
	l.s.wg.Go(func() { l.s.serve(st) })
}

func (l *loop) disconnect(gen uint64) {
	if l.cur == nil || l.cur.gen != gen {
		return
	}
	l.s.setLink(nil)
	l.cur.cancel()
	l.cur = nil
}

func (l *loop) send(gen uint64, up *seqpb.SessionUp) {
	if l.cur == nil || l.cur.gen != gen {
		return
	}
	select {
	case l.cur.out <- up:
	default:
		l.carryOut(l.m.broken(l.s.cfg.Clock.Now(), gen))
	}
}

// welcomed has the identity persisted, and only then lets it be used.
func (l *loop) welcomed(a welcomed) bool {
	if l.cur == nil || l.cur.gen != a.gen {
		return false
	}
	w := a.welcome
	if err := l.s.cfg.Handler.Welcomed(w); err != nil {
		l.s.log.Error("cannot take up the session", zap.Uint64("session", w.Session), zap.Error(err))
		l.carryOut(l.m.broken(l.s.cfg.Clock.Now(), a.gen))
		return false
	}
	l.s.log.Info("session attached", zap.Uint64("session", w.Session), zap.Uint32("incarnation", w.Incarnation),
		zap.Bool("resumed", w.Resumed), zap.String("store", a.addr))
	l.s.mu.Lock()
	l.s.seq = max(l.s.seq, ids.BatchSeq(w.BatchSeq))
	l.s.mu.Unlock()
	l.s.setLink(&link{id: l.m.id, addr: a.addr, conn: l.cur.conn, gen: a.gen, patience: l.m.ttl, ctx: l.cur.ctx})
	return true
}

// routed passes routes on. A stream that has told of routes before and now tells
// what does not follow from them is given up: the next one begins with all of
// them. If it is that which makes no sense, a further stream would not help.
func (l *loop) routed(a routed) bool {
	err := l.s.cfg.Handler.Routed(a.routes)
	switch {
	case l.cur == nil:
		return false
	case err == nil:
		l.cur.routed = true
	case l.cur.routed:
		l.s.log.Warn("session stream begins anew, to be told all routes", zap.String("store", l.cur.addr), zap.Error(err))
		l.carryOut(l.m.broken(l.s.cfg.Clock.Now(), l.cur.gen))
		return false
	default:
		l.s.log.Error("routes not taken", zap.String("store", l.cur.addr), zap.Error(err))
	}
	return true
}

func (l *loop) finish() {
	l.m.revoke()
	l.carryOut(l.m.close())
	l.s.wg.Wait()
}

func (s *Session) setLink(k *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == k {
		return
	}
	s.link = k
	close(s.changed)
	s.changed = make(chan struct{})
}

var errStreamEnded = errors.New("the store ended the stream")

// serve opens a stream and reads from it until it is given up or breaks.
func (s *Session) serve(st *stream) {
	defer st.cancel()
	conn, err := s.cfg.Dial(st.addr)
	if err != nil {
		s.post(st.ctx, event{gen: st.gen, broken: fmt.Errorf("dial: %w", err)})
		return
	}
	// The connection is closed with the stream, not kept for another try: a
	// stuck one would be stuck then too.
	defer conn.Close()
	rpc, err := conn.Session(st.ctx)
	if err != nil {
		s.post(st.ctx, event{gen: st.gen, broken: fmt.Errorf("open: %w", err)})
		return
	}
	s.post(st.ctx, event{gen: st.gen, opened: conn})
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		s.sendLoop(st, rpc)
	}()
	// Recv must end when the stream is given up, also where the transport does
	// not look at the context.
	stop := context.AfterFunc(st.ctx, func() { _ = conn.Close() })
	for {
		d, err := rpc.Recv()
		if err == nil && d == nil {
			err = errStreamEnded
		}
		if err != nil {
			s.post(st.ctx, event{gen: st.gen, broken: err})
			break
		}
		s.post(st.ctx, event{gen: st.gen, down: d})
		if st.ctx.Err() != nil {
			break
		}
	}
	st.cancel()
	stop()
	<-sent
}

func (s *Session) sendLoop(st *stream, rpc SessionStream) {
	for {
		select {
		case <-st.ctx.Done():
			_ = rpc.CloseSend()
			return
		case up := <-st.out:
			if err := rpc.Send(up); err != nil {
				s.post(st.ctx, event{gen: st.gen, broken: fmt.Errorf("send: %w", err)})
				return
			}
		}
	}
}
