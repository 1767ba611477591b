package handover

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr/dedupe"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

const (
	// callPatience, and patiencePerMB for what is sent, is how long a move waits for
	// all messages to one next owner. It is within the time that callers are kept for a move, and a next
	// owner that takes longer would not serve the section sooner either.
	callPatience  = 200 * time.Millisecond
	patiencePerMB = 50 * time.Millisecond
	// pauseMin is the first of the pauses between tries; they double.
	pauseMin = 2 * time.Millisecond
	// restAfterFailure is for how long a next owner is not tried again.
	restAfterFailure = time.Second
	// connIdle is how long a connection is kept for more.
	connIdle = 5 * time.Second
)

// Config of a Carrier. All fields are needed.
type Config struct {
	ClusterID string
	Session   ids.SessionID
	Window    *dedupe.Table
	Dial      DialPeer
	// Submit is told the Then of Items; it must not block.
	Submit func([]raise.Item)
	// Sent is told how many windows arrived, and how many did not.
	Sent   func(arrived, failed int)
	Logger *zap.Logger
}

// Item is a closed section whose window is to be carried.
type Item struct {
	Section ids.Section
	// Epoch that the section gets at To, which is reached at Addr.
	Epoch ids.Epoch
	To    ids.SessionID
	Addr  string
	// Then is submitted when the window has arrived, or is given up.
	Then []raise.Item
}

// Carrier sends windows to their next owners, for one session. What is queued is
// bounded by the number of sections. It owns one goroutine, and those of its calls.
type Carrier struct {
	cfg    Config
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{} // holds one token

	mu    sync.Mutex
	queue []Item

	// The goroutine's own:
	conns map[string]PeerConn
	rest  map[string]time.Time // until when an address is left alone
}

// NewCarrier starts a carrier. Close it.
func NewCarrier(cfg Config) *Carrier {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Carrier{
		cfg: cfg, cancel: cancel, done: make(chan struct{}), wake: make(chan struct{}, 1),
		conns: map[string]PeerConn{}, rest: map[string]time.Time{},
	}
	go c.run(ctx)
	return c
}

// Close ends it. What it has not submitted by then it never does.
func (c *Carrier) Close() {
	c.cancel()
	<-c.done
}

// Carry queues closed sections, in which nobody takes numbers any more.
func (c *Carrier) Carry(items []Item) {
	c.mu.Lock()
	c.queue = append(c.queue, items...)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Carrier) run(ctx context.Context) {
	defer close(c.done)
	defer c.hangUp()
	idle := time.NewTimer(connIdle)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-idle.C:
			c.hangUp()
			continue
		case <-c.wake:
		}
		c.mu.Lock()
		items := c.queue
		c.queue = nil
		c.mu.Unlock()
		c.round(ctx, items)
		idle.Reset(connIdle)
	}
}

func (c *Carrier) hangUp() {
	for addr, conn := range c.conns {
		_ = conn.Close()
		delete(c.conns, addr)
	}
}

// trip is what goes to one next owner in a round.
type trip struct {
	c       *Carrier
	addr    string
	to      ids.SessionID
	conn    PeerConn
	items   []Item
	began   time.Time
	sent    int // bytes
	req     *seqpb.TakeWindowRequest
	bytes   int
	aboard  []Item // whose last part is in req
	arrived int
	err     error
}

// round takes everything to all next owners at once, and waits.
func (c *Carrier) round(ctx context.Context, items []Item) {
	type target struct {
		to   ids.SessionID
		addr string
	}
	trips := map[target]*trip{}
	for _, it := range items {
		k := target{it.To, it.Addr}
		if trips[k] == nil {
			trips[k] = &trip{c: c, addr: it.Addr, to: it.To}
		}
		trips[k].items = append(trips[k].items, it)
	}
	var wg sync.WaitGroup
	for _, t := range trips {
		t.conn, t.err = c.conn(t.addr)
		wg.Go(func() { t.run(ctx) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return
	}
	for _, t := range trips {
		c.cfg.Sent(t.arrived, len(t.items)-t.arrived)
		if t.err == nil {
			continue
		}
		if errors.Is(t.err, errResting) {
			c.cfg.Logger.Debug("windows of request ids not carried along", zap.Int("sections", len(t.items)-t.arrived), zap.Error(t.err))
			continue
		}
		c.cfg.Logger.Warn("windows of request ids not carried along; the next owner's begin anew", zap.String("to", t.addr),
			zap.Uint64("to_session", uint64(t.to)), zap.Int("sections", len(t.items)-t.arrived), zap.Error(t.err))
		c.rest[t.addr] = time.Now().Add(restAfterFailure)
		if conn := c.conns[t.addr]; conn != nil {
			_ = conn.Close()
			delete(c.conns, t.addr)
		}
	}
}

var errResting = errors.New("the next owner did not answer a moment ago")

func (c *Carrier) conn(addr string) (PeerConn, error) {
	if until, ok := c.rest[addr]; ok {
		if time.Now().Before(until) {
			return nil, errResting
		}
		delete(c.rest, addr)
	}
	if conn := c.conns[addr]; conn != nil {
		return conn, nil
	}
	conn, err := c.cfg.Dial(addr)
	if err != nil {
		return nil, err
	}
	c.conns[addr] = conn
	return conn, nil
}

// run sends what there is to send. When it returns all is submitted, unless ctx has ended.
func (t *trip) run(ctx context.Context) {
	t.began = time.Now()
	t.load()
	for i, it := range t.items {
		if t.err != nil {
			t.submit(ctx, t.items[i:])
			return
		}
		t.take(ctx, it)
	}
	t.send(ctx)
}

func (t *trip) load() {
	t.req = &seqpb.TakeWindowRequest{ClusterId: t.c.cfg.ClusterID, FromSession: uint64(t.c.cfg.Session), ToSession: uint64(t.to)}
	t.bytes, t.aboard = 0, nil
}

// take puts one window into the message, and sends those that are full.
func (t *trip) take(ctx context.Context, it Item) {
	now := uint64(time.Now().UnixMilli())
	e, err := t.c.cfg.Window.Export(it.Section, now)
	var parts [][]byte
	if err == nil {
		parts = split(e)
	}
	if parts == nil {
		t.c.cfg.Logger.Warn("window of request ids not carried along", zap.Uint32("section", uint32(it.Section)),
			zap.Int("records", len(e.Entries)), zap.Error(err))
		t.submit(ctx, []Item{it})
		return
	}
	for i, b := range parts {
		if t.bytes > 0 && t.bytes+len(b) > messageBytes {
			t.send(ctx)
			if t.err != nil {
				break
			}
		}
		p := &seqpb.WindowPart{
			Section: uint32(it.Section), Epoch: uint64(it.Epoch), Part: uint32(i), Parts: uint32(len(parts)), TakenMs: now, Window: b,
		}
		p.Checksum = checksum(t.req, p)
		t.req.Parts = append(t.req.Parts, p)
		t.bytes += len(b) + 64
	}
	if t.err != nil {
		t.submit(ctx, []Item{it})
		return
	}
	t.aboard = append(t.aboard, it)
}

// send sends the message and lets the sections in it go.
func (t *trip) send(ctx context.Context) {
	req, bytes, aboard := t.req, t.bytes, t.aboard
	t.load()
	if len(req.Parts) > 0 {
		t.sent += bytes
		patience := callPatience + time.Duration(t.sent)*patiencePerMB/(1<<20)
		t.err = t.call(ctx, req, t.began.Add(patience))
	}
	if t.err == nil {
		t.arrived += len(aboard)
	}
	t.submit(ctx, aboard)
}

// call repeats what may succeed if it is repeated, while there is time: a next owner
// that has just started may not know its session yet.
func (t *trip) call(ctx context.Context, req *seqpb.TakeWindowRequest, until time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for pause := pauseMin; ; pause *= 2 {
		err := t.callOnce(ctx, req)
		var refused *refusedError
		if err == nil || errors.As(err, &refused) && !refused.passing() {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
	}
}

func (t *trip) callOnce(ctx context.Context, req *seqpb.TakeWindowRequest) error {
	rep, err := t.conn.TakeWindow(ctx, req)
	if err != nil {
		return err
	}
	if r := rep.Refusal; r != nil && r.Code != seqpb.RefusalCode_REFUSAL_NONE {
		return &refusedError{r}
	}
	return nil
}

// refusedError is a next owner's answer that it kept nothing.
type refusedError struct{ r *seqpb.Refusal }

func (e *refusedError) Error() string { return fmt.Sprintf("refused (%v): %s", e.r.Code, e.r.Message) }

// passing: it may take up the session that is meant in a moment.
func (e *refusedError) passing() bool {
	return e.r.Code == seqpb.RefusalCode_REFUSAL_NOT_READY || e.r.Code == seqpb.RefusalCode_REFUSAL_SESSION_EXPIRED
}

func (t *trip) submit(ctx context.Context, items []Item) {
	if ctx.Err() != nil || len(items) == 0 {
		return
	}
	var then []raise.Item
	for i := range items {
		then = append(then, items[i].Then...)
	}
	t.c.cfg.Submit(then)
}
