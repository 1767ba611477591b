package storetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/session"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// Net is the network between one node and the store. The zero value delivers at once.
type Net struct {
	mu sync.Mutex
	// delay of each message, one way.
	delay time.Duration
	cut   bool
	// fates of the Execute calls to come, in order.
	fates []Fate
	conns map[*conn]bool
	late  []*seqpb.ExecuteRequest
}

// Fate is what becomes of one Execute call.
type Fate uint8

const (
	// Deliver as usual.
	Deliver Fate = iota
	// LoseReply: the batch is applied, the caller gets an error.
	LoseReply
	// LoseRequest: the caller gets an error, nothing was applied.
	LoseRequest
	// Hold: as LoseRequest, but the request is kept for Redeliver.
	Hold
	// Copy: as Deliver, and the request is kept for Redeliver.
	Copy
)

var (
	errCut  = errors.New("storetest: no network")
	errLost = errors.New("storetest: message lost")
)

// SetDelay delays every message by d from now on.
func (n *Net) SetDelay(d time.Duration) { n.mu.Lock(); n.delay = d; n.mu.Unlock() }

// Cut makes the network swallow everything without a sign, or heals it.
func (n *Net) Cut(cut bool) { n.mu.Lock(); n.cut = cut; n.mu.Unlock() }

// Fates sets what becomes of the next Execute calls.
func (n *Net) Fates(f ...Fate) { n.mu.Lock(); n.fates = append(n.fates, f...); n.mu.Unlock() }

// Break breaks every open connection.
func (n *Net) Break() {
	n.mu.Lock()
	conns := n.conns
	n.conns = nil
	n.mu.Unlock()
	for c := range conns {
		_ = c.Close()
	}
}

func (n *Net) now() (delay time.Duration, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.delay, n.cut
}

func (n *Net) fate() Fate {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.fates) == 0 {
		return Deliver
	}
	f := n.fates[0]
	n.fates = n.fates[1:]
	return f
}

// Dial is a session.DialStore over this network.
func (s *Store) Dial(n *Net) session.DialStore {
	return func(addr string) (session.StoreConn, error) {
		c := &conn{s: s, n: n, addr: addr, closed: make(chan struct{})}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.conns == nil {
			n.conns = map[*conn]bool{}
		}
		n.conns[c] = true
		return c, nil
	}
}

type conn struct {
	s      *Store
	n      *Net
	addr   string
	once   sync.Once
	closed chan struct{}
}

func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.n.mu.Lock()
		delete(c.n.conns, c)
		c.n.mu.Unlock()
	})
	return nil
}

// travel is one message's way: it takes the delay, and for ever when cut.
func (c *conn) travel(ctx context.Context) error {
	delay, cut := c.n.now()
	var arrived <-chan time.Time
	if !cut {
		if delay <= 0 {
			return ctx.Err()
		}
		t := time.NewTimer(delay)
		defer t.Stop()
		arrived = t.C
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.closed:
		return errCut
	case <-arrived:
		return nil
	}
}

func call[Q, R any](ctx context.Context, c *conn, req Q, f func(Q) R) (R, error) {
	var none R
	if err := c.travel(ctx); err != nil {
		return none, err
	}
	rep := f(req)
	if err := c.travel(ctx); err != nil {
		return none, err
	}
	return rep, nil
}

func (c *conn) Execute(ctx context.Context, req *seqpb.ExecuteRequest) (*seqpb.ExecuteReply, error) {
	fate := c.n.fate()
	if fate == Hold || fate == Copy {
		c.n.mu.Lock()
		c.n.late = append(c.n.late, req)
		c.n.mu.Unlock()
	}
	if fate == Hold || fate == LoseRequest {
		return nil, errLost
	}
	rep, err := call(ctx, c, req, c.s.execute)
	if err == nil && fate == LoseReply {
		return nil, errLost
	}
	return rep, err
}

// Redeliver lets the kept requests arrive now, and answers what came of each.
func (s *Store) Redeliver(n *Net) []*seqpb.ExecuteReply {
	n.mu.Lock()
	late := n.late
	n.late = nil
	n.mu.Unlock()
	var reps []*seqpb.ExecuteReply
	for _, req := range late {
		reps = append(reps, s.execute(req))
	}
	return reps
}

func (c *conn) Read(ctx context.Context, req *seqpb.ReadRequest) (*seqpb.ReadReply, error) {
	return call(ctx, c, req, c.s.read)
}

func (c *conn) ReadGaps(ctx context.Context, req *seqpb.ReadGapsRequest) (*seqpb.ReadGapsReply, error) {
	return call(ctx, c, req, c.s.readGaps)
}

// Session opens a stream; the store serves it from a goroutine of its own.
func (c *conn) Session(ctx context.Context) (session.SessionStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	st := &clientStream{c: c, ctx: ctx, up: newPipe[*seqpb.SessionUp](), down: newPipe[*seqpb.SessionDown]()}
	c.s.wg.Go(func() {
		defer cancel()
		select {
		case <-c.closed:
		case <-ctx.Done():
		case <-c.s.ctx.Done():
		}
		st.up.close(errEOF)
		st.down.close(errEOF)
	})
	c.s.wg.Go(func() { c.s.serve(c, st) })
	return st, nil
}

type clientStream struct {
	c    *conn
	ctx  context.Context
	up   *pipe[*seqpb.SessionUp]
	down *pipe[*seqpb.SessionDown]
}

func (st *clientStream) Send(m *seqpb.SessionUp) error {
	delay, cut := st.c.n.now()
	if cut {
		return nil
	}
	return st.up.put(m, delay)
}

func (st *clientStream) Recv() (*seqpb.SessionDown, error) { return st.down.get(st.ctx) }

func (st *clientStream) CloseSend() error {
	st.up.close(errEOF)
	return nil
}

// push is the store's Send.
func (st *clientStream) push(m *seqpb.SessionDown) {
	delay, cut := st.c.n.now()
	if cut {
		return
	}
	_ = st.down.put(m, delay)
}
