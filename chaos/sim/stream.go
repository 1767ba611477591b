package sim

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/cloudwego/kitex/pkg/streaming"
)

// streamQueue bounds what may be on its way in one direction of a stream; a
// sender past it waits, as it would for a full window.
const streamQueue = 256

// end is one side of a stream: its errors, and its context.
type end struct {
	ctx    context.Context
	cancel context.CancelFunc
	mu     sync.Mutex
	err    error
}

func newEnd(parent context.Context) *end {
	e := &end{}
	e.ctx, e.cancel = context.WithCancel(parent)
	return e
}

// fail ends the side with err; the first error stays.
func (e *end) fail(err error) {
	e.mu.Lock()
	if e.err == nil {
		e.err = err
	}
	e.mu.Unlock()
	e.cancel()
}

func (e *end) reason() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	return e.ctx.Err()
}

// item is one message on its way, or the orderly end of its direction.
type item[P any] struct {
	m      *Message
	body   P
	plan   plan
	last   bool
	err    error
	sentAt time.Time
}

// lane is one direction of a stream: ordered, lossless until it breaks.
type lane[T any, P pointer[T]] struct {
	net        *Network
	from, to   string
	method     string
	sender     *end
	receiver   *end
	queue      chan item[P]
	out        chan item[P]
	patience   time.Duration
	breakAfter time.Duration
}

func newLane[T any, P pointer[T]](n *Network, from, to, method string, sender, receiver *end) *lane[T, P] {
	return &lane[T, P]{
		net: n, from: from, to: to, method: method, sender: sender, receiver: receiver,
		queue: make(chan item[P], streamQueue), out: make(chan item[P], streamQueue),
	}
}

func (l *lane[T, P]) send(body P) error {
	m := &Message{From: l.from, To: l.to, Method: l.method, Body: clone[T, P](body)}
	return l.put(item[P]{m: m, body: m.Body.(P), plan: l.net.plan(m)})
}

// finish says that nothing more comes; err is what the receiver is told (nil: io.EOF).
func (l *lane[T, P]) finish(err error) { _ = l.put(item[P]{last: true, err: err}) }

func (l *lane[T, P]) put(it item[P]) error {
	if l.sender.ctx.Err() != nil {
		return l.sender.reason() // also of a dead process's handler: it has no last word
	}
	it.sentAt = time.Now()
	select {
	case l.queue <- it:
		return nil
	case <-l.sender.ctx.Done():
		return l.sender.reason()
	}
}

func (l *lane[T, P]) recv() (P, error) {
	// What arrived before the stream broke is still read, in order.
	select {
	case it := <-l.out:
		return l.take(it)
	default:
	}
	select {
	case it := <-l.out:
		return l.take(it)
	case <-l.receiver.ctx.Done():
		return nil, l.receiver.reason()
	}
}

func (l *lane[T, P]) take(it item[P]) (P, error) {
	if !l.net.passGate(l.to) {
		return nil, ErrReset
	}
	if it.last {
		if it.err == nil {
			it.err = io.EOF
		}
		l.receiver.fail(it.err)
		return nil, it.err
	}
	return it.body, nil
}

// pump moves messages until the stream ends. A link that stays cut longer than
// the connection's patience breaks the stream; the two sides notice at
// different times.
func (l *lane[T, P]) pump() {
	n := l.net
	for {
		var it item[P]
		select {
		case it = <-l.queue:
		case <-l.receiver.ctx.Done():
			return
		case <-n.down:
			return
		}
		if it.plan.verdict.Drop {
			continue // a scenario's choice; a real stream would not lose it
		}
		if it.plan.verdict.Hold != nil && !n.await(it.plan.verdict.Hold) {
			return
		}
		if !n.passGate(l.from) || !n.sleep(time.Until(it.sentAt.Add(it.plan.delay))) {
			return
		}
		if !l.cross() {
			l.sender.fail(ErrTimeout)
			if n.sleep(l.breakAfter) {
				l.receiver.fail(ErrReset)
			}
			return
		}
		if !n.passGate(l.to) {
			return
		}
		if it.m != nil {
			n.events.add("stream      %s", describe{it.m})
		}
		select {
		case l.out <- it:
		case <-l.receiver.ctx.Done():
			return
		case <-n.down:
			return
		}
	}
}

// cross waits out a cut link, up to the connection's patience.
func (l *lane[T, P]) cross() bool {
	n := l.net
	timer := time.NewTimer(l.patience)
	defer timer.Stop()
	for {
		n.mu.Lock()
		cut := n.linkLocked(l.from, l.to).cut
		n.mu.Unlock()
		if cut == nil {
			return true
		}
		select {
		case <-cut:
		case <-timer.C:
			return false
		case <-l.receiver.ctx.Done():
			return false
		case <-n.down:
			return false
		}
	}
}

// stream is a bidirectional stream between a caller and a server.
type stream[U, D any, UP pointer[U], DP pointer[D]] struct {
	up   *lane[U, UP]
	down *lane[D, DP]
}

// open connects to the process at addr and runs its handler with the server's
// side. The caller's context ends the stream, the deaths of both processes
// break it.
func open[U, D any, UP pointer[U], DP pointer[D]](
	n *Network, ctx context.Context, from *process, addr, method string,
	handler func(*process) func(*serverSide[U, D, UP, DP]) error,
) (*clientSide[U, D, UP, DP], error) {
	dialing := &Message{From: from.host, To: hostOf(addr), Method: method + " open"}
	p := n.plan(dialing)
	if p.lost || from.ctx.Err() != nil {
		n.sleep(p.delay)
		return nil, ErrRefused
	}
	arrived := make(chan bool, 1)
	n.fly(func() { arrived <- n.carry(dialing, plan{delay: p.delay}) })
	timer := time.NewTimer(callTimeout)
	defer timer.Stop()
	select {
	case ok := <-arrived:
		if !ok {
			return nil, ErrRefused
		}
	case <-timer.C:
		return nil, ErrTimeout
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-from.ctx.Done():
		return nil, ErrReset
	}
	srv := n.enter(addr)
	if srv == nil {
		return nil, ErrRefused
	}
	h := handler(srv)
	if h == nil {
		srv.handlers.Done()
		return nil, ErrRefused
	}

	r := newSource(n.seed, nameHash(from.host+addr+method), uint64(time.Since(n.events.start)))
	caller, server := newEnd(ctx), newEnd(srv.ctx)
	s := &stream[U, D, UP, DP]{
		up:   newLane[U, UP](n, from.host, srv.host, method, caller, server),
		down: newLane[D, DP](n, srv.host, from.host, method, server, caller),
	}
	s.up.patience, s.down.patience = r.between(200*time.Millisecond, 4*time.Second), r.between(200*time.Millisecond, 4*time.Second)
	s.up.breakAfter, s.down.breakAfter = r.between(0, 3*time.Second), r.between(0, 3*time.Second)

	n.mu.Lock()
	n.downs[[2]string{from.host, method}] = s.down
	n.mu.Unlock()

	// One side going away is news to the other after a moment; after a long one if its machine is gone.
	watch := func(self, peer *end, proc *process) {
		select {
		case <-self.ctx.Done():
		case <-proc.ctx.Done():
			self.fail(ErrReset)
		case <-n.down:
			self.fail(ErrReset)
		}
		wait := p.delay
		n.mu.Lock()
		if proc.silent {
			wait = s.up.patience
		}
		n.mu.Unlock()
		n.sleep(wait)
		peer.fail(ErrReset)
	}
	if !n.fly(s.up.pump) || !n.fly(s.down.pump) ||
		!n.fly(func() { watch(caller, server, from) }) || !n.fly(func() { watch(server, caller, srv) }) {
		caller.fail(ErrReset)
		server.fail(ErrReset)
		srv.handlers.Done()
		return nil, ErrReset
	}
	started := n.fly(func() {
		defer srv.handlers.Done()
		err := h(&serverSide[U, D, UP, DP]{s: s})
		s.down.finish(err)
		// The last messages get the time to arrive before the connection goes.
		go func() {
			n.sleep(100 * time.Millisecond)
			server.fail(ErrReset)
		}()
	})
	if !started {
		srv.handlers.Done()
	}
	return &clientSide[U, D, UP, DP]{s: s}, nil
}

// clientSide is the caller's side of a stream.
type clientSide[U, D any, UP pointer[U], DP pointer[D]] struct {
	streaming.Stream
	s *stream[U, D, UP, DP]
}

func (c *clientSide[U, D, UP, DP]) Context() context.Context { return c.s.up.sender.ctx }
func (c *clientSide[U, D, UP, DP]) Send(m UP) error          { return c.s.up.send(m) }
func (c *clientSide[U, D, UP, DP]) Recv() (DP, error)        { return c.s.down.recv() }
func (c *clientSide[U, D, UP, DP]) CloseSend() error         { c.s.up.finish(nil); return nil }
func (c *clientSide[U, D, UP, DP]) Close() error             { return c.CloseSend() }

// serverSide is what a handler gets.
type serverSide[U, D any, UP pointer[U], DP pointer[D]] struct {
	streaming.Stream
	s *stream[U, D, UP, DP]
}

func (v *serverSide[U, D, UP, DP]) Context() context.Context { return v.s.down.sender.ctx }
func (v *serverSide[U, D, UP, DP]) Send(m DP) error          { return v.s.down.send(m) }
func (v *serverSide[U, D, UP, DP]) Recv() (UP, error)        { return v.s.up.recv() }
func (v *serverSide[U, D, UP, DP]) Close() error             { return nil }
