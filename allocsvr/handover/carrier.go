package handover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr/dedupe"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

const (
	// patience, and patiencePerMB for what is sent, is how long a move waits for all
	// messages to one next owner. One that stands still would not serve the section
	// sooner either, and when its lease has run out another is planned: as after the
	// loss of a machine, with the default TTL.
	patience      = 2500 * time.Millisecond
	patiencePerMB = 50 * time.Millisecond
	// patienceAnew is for those that another next owner was planned for meanwhile: it is
	// there, and their callers have waited.
	patienceAnew = time.Second
	// impatience is for one that has not answered in time before: it may be that only
	// we cannot reach it.
	impatience = 200 * time.Millisecond
	// pauseMin is the first of the pauses between tries; they double.
	pauseMin = 2 * time.Millisecond
	// restMin is for how long a next owner is not tried again; it doubles up to restMax
	// while it does not answer, so that moving many sections ends in time without it.
	restMin = time.Second
	restMax = 30 * time.Second
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

// Target is where a section is planned to go.
type Target struct {
	// Epoch that the section gets at To, which is reached at Addr.
	Epoch ids.Epoch
	To    ids.SessionID
	Addr  string
}

// Item is a closed section whose window is to be carried.
type Item struct {
	Section ids.Section
	Target
	// Then is submitted when the window has arrived, or is given up.
	Then []raise.Item
	// began is when it was first tried, zero before. There is another try only if the
	// plan changes, within patience of that.
	began time.Time
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
	plan  map[ids.Section]Target // the newest
	trips map[*trip]struct{}     // under way

	// The goroutine's own:
	conns map[string]PeerConn
	rests map[peer]rest
}

// peer is one life of a next owner.
type peer struct {
	to   ids.SessionID
	addr string
}

// rest is how long a next owner that did not answer is left alone, and until when.
type rest struct {
	last  time.Duration
	until time.Time
}

// NewCarrier starts a carrier. Close it.
func NewCarrier(cfg Config) *Carrier {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Carrier{
		cfg: cfg, cancel: cancel, done: make(chan struct{}), wake: make(chan struct{}, 1),
		trips: map[*trip]struct{}{}, conns: map[string]PeerConn{}, rests: map[peer]rest{},
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
	c.nudge()
}

func (c *Carrier) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Plan says where each section is to go now. What is on its way elsewhere turns round.
func (c *Carrier) Plan(plan map[ids.Section]Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plan = plan
	for t := range c.trips {
		for i := range t.items {
			if c.changed(&t.items[i]) {
				t.stop()
				break
			}
		}
	}
}

// changed: the section is to go elsewhere now. It needs mu.
func (c *Carrier) changed(it *Item) bool {
	now, ok := c.plan[it.Section]
	return ok && now.Epoch == it.Epoch && now != it.Target
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
	c *Carrier
	peer
	conn PeerConn
	// items are constant while the trip is under way.
	items   []Item
	stop    context.CancelFunc
	began   time.Time
	wait    time.Duration
	turned  []Item // that go elsewhere now
	sent    int    // bytes
	req     *seqpb.TakeWindowRequest
	bytes   int
	aboard  []Item // whose last part is in req
	arrived int
	lost    []Item // not arrived
	err     error
}

// round takes everything to all next owners at once, and waits.
func (c *Carrier) round(ctx context.Context, items []Item) {
	trips := map[peer]*trip{}
	var wg sync.WaitGroup
	c.mu.Lock()
	for _, it := range items {
		if c.changed(&it) {
			it.Target = c.plan[it.Section]
		}
		k := peer{it.To, it.Addr}
		if trips[k] == nil {
			trips[k] = &trip{c: c, peer: k}
		}
		trips[k].items = append(trips[k].items, it)
	}
	for k, t := range trips {
		t.conn, t.wait, t.err = c.conn(k)
		if slices.ContainsFunc(t.items, func(it Item) bool { return !it.began.IsZero() }) {
			t.wait = min(t.wait, patienceAnew)
		}
		way, stop := context.WithCancel(ctx)
		t.stop = stop
		c.trips[t] = struct{}{}
		wg.Go(func() {
			defer stop()
			t.run(ctx, way)
		})
	}
	c.mu.Unlock()
	wg.Wait()
	if ctx.Err() != nil {
		return
	}
	for k, t := range trips {
		failed := len(t.items) - t.arrived - len(t.turned)
		c.cfg.Sent(t.arrived, failed)
		if len(t.turned) > 0 {
			c.Carry(t.turned)
		}
		switch {
		case t.err == nil:
			delete(c.rests, k)
			continue
		case errors.Is(t.err, errResting):
			c.cfg.Logger.Debug("windows of request ids not carried along", zap.Int("sections", failed), zap.Error(t.err))
			continue
		case failed == 0:
			c.cfg.Logger.Info("windows of request ids go elsewhere", zap.String("from", t.addr), zap.Int("sections", len(t.turned)), zap.Error(t.err))
		default:
			c.cfg.Logger.Warn("windows of request ids not carried along; the next owner's begin anew", zap.String("to", t.addr),
				zap.Uint64("to_session", uint64(t.to)), zap.Int("sections", failed), zap.Error(t.err))
		}
		pause := min(max(restMin, 2*c.rests[k].last), restMax)
		c.rests[k] = rest{pause, time.Now().Add(pause)}
		if conn := c.conns[t.addr]; conn != nil {
			_ = conn.Close()
			delete(c.conns, t.addr)
		}
	}
}

var errResting = errors.New("the next owner did not answer a moment ago")

// conn is a connection, and how long to wait for what is sent over it.
func (c *Carrier) conn(k peer) (PeerConn, time.Duration, error) {
	wait := patience
	if r, ok := c.rests[k]; ok {
		if time.Now().Before(r.until) {
			return nil, 0, errResting
		}
		wait = impatience
	}
	if conn := c.conns[k.addr]; conn != nil {
		return conn, wait, nil
	}
	conn, err := c.cfg.Dial(k.addr)
	if err != nil {
		return nil, 0, err
	}
	c.conns[k.addr] = conn
	return conn, wait, nil
}

// run sends what there is to send, on its way, which is shorter than ctx if the plan
// changes. When it returns all is submitted that does not go elsewhere, unless ctx has ended.
func (t *trip) run(ctx, way context.Context) {
	t.began = time.Now()
	t.load()
	left := t.items
	for len(left) > 0 && t.err == nil {
		t.take(ctx, way, left[0])
		left = left[1:]
	}
	if t.err == nil {
		t.send(ctx, way)
	}
	t.lost = append(t.lost, left...)

	t.c.mu.Lock()
	delete(t.c.trips, t)
	var lost []Item
	for _, it := range t.lost {
		if it.began.IsZero() {
			it.began = t.began
		}
		if t.c.changed(&it) && time.Since(it.began) <= patience {
			t.turned = append(t.turned, it)
		} else {
			lost = append(lost, it)
		}
	}
	t.c.mu.Unlock()
	t.submit(ctx, lost)
}

func (t *trip) load() {
	t.req = &seqpb.TakeWindowRequest{ClusterId: t.c.cfg.ClusterID, FromSession: uint64(t.c.cfg.Session), ToSession: uint64(t.to)}
	t.bytes, t.aboard = 0, nil
}

// take puts one window into the message, and sends those that are full.
func (t *trip) take(ctx, way context.Context, it Item) {
	now := uint64(time.Now().UnixMilli())
	e, err := t.c.cfg.Window.Export(it.Section, now)
	var parts [][]byte
	if err == nil {
		parts = split(e)
	}
	if parts == nil {
		t.c.cfg.Logger.Warn("window of request ids not carried along", zap.Uint32("section", uint32(it.Section)),
			zap.Int("records", len(e.Entries)), zap.Error(err))
		t.lost = append(t.lost, it)
		return
	}
	for i, b := range parts {
		if t.bytes > 0 && t.bytes+len(b) > messageBytes {
			t.send(ctx, way)
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
		t.lost = append(t.lost, it)
		return
	}
	t.aboard = append(t.aboard, it)
}

// send sends the message and lets the sections in it go.
func (t *trip) send(ctx, way context.Context) {
	req, bytes, aboard := t.req, t.bytes, t.aboard
	t.load()
	if len(req.Parts) > 0 {
		t.sent += bytes
		wait := t.wait + time.Duration(t.sent)*patiencePerMB/(1<<20)
		t.err = t.call(way, req, t.began.Add(wait))
	}
	if t.err != nil {
		t.lost = append(t.lost, aboard...)
		return
	}
	t.arrived += len(aboard)
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
