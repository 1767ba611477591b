package client

import (
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// trip is a batch under way.
//
// It has no goroutine of its own where the connection can start a call and tell
// what came of it: each hand-over between goroutines wakes a thread, which costs
// more than all else in a call. Whoever enqueued the first op sends the batch, and
// the goroutine that reads the connection hands out the replies and sends what has
// queued since. What would have to wait (the connection is not up, or takes
// nothing) or to send again goes to a goroutine, which makes the calls one after
// the other until one can be started again.
//
// Exactly one of these ends a trip: told by the connection, its Abandon when the
// trip was given up, or the goroutine that makes the call.
type trip struct {
	l     *lane
	batch []*op
	since time.Time
	// last is when the last of its callers goes: then nobody waits for it.
	last    time.Time
	timeout uint32 // for the server, in ms

	// The node's mutex guards what is below.
	started Started // nil until the connection has said so
	gaveUp  bool
	stalled bool
}

const (
	// stalledAfter is how long an answer may take before the routes are doubted: a
	// node that vanished without a word says nothing, and the subscription might be
	// with it. As long as it lasts they are asked for again.
	stalledAfter = 150 * time.Millisecond
	// lateAfter is how long a batch may take before another one that is not full goes
	// beside it. Warm keys take a fraction of it, cold ones a write to disk.
	lateAfter = 2 * time.Millisecond
)

// startableLocked appends the lanes that are to send another batch, and counts a
// worker in for each. The timer sees to those that only wait for one to be late.
func (n *node) startableLocked(to []*lane, now time.Time) []*lane {
	for _, l := range n.lanes {
		if len(l.queue) == 0 || l.workers >= n.pool.opts.inFlight {
			continue
		}
		if l.workers > 0 && len(l.queue) < n.pool.opts.maxBatch {
			if at := n.lateAtLocked(l); now.Before(at) {
				n.wakeLocked(at, now)
				continue
			}
		}
		l.workers++
		n.refs++
		n.pool.workers.Add(1)
		to = append(to, l)
	}
	return to
}

// lateAtLocked is when the newest batch of a lane is late.
func (n *node) lateAtLocked(l *lane) (at time.Time) {
	for _, t := range n.trips {
		if t.l == l && t.since.After(at) {
			at = t.since
		}
	}
	return at.Add(lateAfter)
}

func (n *node) driveAll(lanes []*lane) {
	for _, l := range lanes {
		n.drive(l)
	}
}

// drive sends the lane's next batch; it does not wait. The caller is the lane's
// worker, and if there is nothing to send, is one no longer.
func (n *node) drive(l *lane) {
	if t := n.depart(l); t != nil && !n.start(t) {
		go n.work(t)
	}
}

// depart takes the next batch of a lane. If there is none it counts the worker out,
// and returns nil.
func (n *node) depart(l *lane) *trip {
	n.mu.Lock()
	if l.last > 1 {
		// Others have called at once a moment ago, so they are likely about to: whoever
		// is ready to run comes first. For a lone caller there is nobody.
		n.mu.Unlock()
		runtime.Gosched()
		n.mu.Lock()
	}
	t := n.takeLocked(l)
	if t == nil {
		l.workers--
	}
	n.mu.Unlock()
	if t == nil {
		n.workerEnds()
	}
	return t
}

// takeLocked makes a trip of the next ops; nil if there are none.
func (n *node) takeLocked(l *lane) *trip {
	var batch []*op
	taken := 0
	for taken < len(l.queue) && len(batch) < n.pool.opts.maxBatch {
		o := l.queue[taken]
		taken++
		if o.state.CompareAndSwap(opQueued, opSent) {
			if batch == nil {
				batch = make([]*op, 0, min(len(l.queue)-taken+1, n.pool.opts.maxBatch))
			}
			batch = append(batch, o)
		}
	}
	l.queue = slices.Delete(l.queue, 0, taken)
	if len(batch) == 0 {
		return nil
	}
	l.last = len(batch)
	return n.newTripLocked(l, batch)
}

// newTripLocked puts a batch on the books, and has the timer see to it.
func (n *node) newTripLocked(l *lane, batch []*op) *trip {
	t := &trip{l: l, batch: batch, since: time.Now()}
	var first time.Time
	first, t.last = deadlines(batch)
	t.timeout = timeoutMillis(min(first.Sub(t.since), l.patience))
	n.trips = append(n.trips, t)
	n.wakeLocked(t.since.Add(stalledAfter), t.since)
	n.wakeLocked(t.last, t.since)
	return t
}

// workerEnds is for a worker that was counted out of its lane. It may run where
// the connection is read, so it does not close that.
func (n *node) workerEnds() {
	conn := n.unref()
	if conn == nil {
		n.pool.workers.Done()
		return
	}
	go func() {
		defer n.pool.workers.Done()
		_ = conn.Close() // nothing is in flight, and nobody is left to tell
	}()
}

// start sends a trip's batch if that needs no waiting.
func (n *node) start(t *trip) bool {
	n.mu.Lock()
	conn, ok := n.conn.(StartingConn)
	n.mu.Unlock()
	if !ok {
		return false
	}
	var s Started
	if t.l.method == methodCurrent {
		s = conn.StartCurrent(t.last, n.currentRequest(t.l, t.batch, t.timeout), func(rep *seqpb.CurrentReply, err error) {
			if err == nil {
				err = n.read(t.batch, rep)
			}
			n.arrived(t, err)
		})
	} else {
		s = conn.StartAlloc(t.last, n.allocRequest(t.l, t.batch, t.timeout), func(rep *seqpb.AllocReply, err error) {
			if err == nil {
				err = n.allocated(t.batch, rep)
			}
			n.arrived(t, err)
		})
	}
	if s == nil {
		return false
	}
	n.mu.Lock()
	t.started = s
	gaveUp := t.gaveUp
	n.mu.Unlock()
	if gaveUp {
		n.abandon(t)
	}
	return true
}

// abandon ends a trip that was given up, unless its answer has come.
func (n *node) abandon(t *trip) {
	if t.started.Abandon() {
		n.arrived(t, context.DeadlineExceeded)
	}
}

// arrived ends a started trip, whose ops are delivered if err is nil, and sends
// the next batch. It does not wait.
func (n *node) arrived(t *trip, err error) {
	n.ended(t)
	if err != nil && n.refused(t, err) {
		go func() {
			n.halves(t)
			n.drive(t.l)
		}()
		return
	}
	n.drive(t.l)
}

// ended takes a trip off the books.
func (n *node) ended(t *trip) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i := slices.Index(n.trips, t); i >= 0 {
		n.trips = slices.Delete(n.trips, i, i+1)
	}
	if t.stalled {
		t.stalled = false
		n.stalled.Add(-1)
	}
}

// refused hands the error of a whole request to its ops; true if its halves are to
// be sent by themselves instead: the server refused it as wrong, and one caller's
// mistake is not to be answered to those who happened to ride along.
func (n *node) refused(t *trip, err error) (apart bool) {
	code := wire.CodeOf(err)
	if code == seqpb.Code_CODE_INVALID_ARGUMENT && len(t.batch) > 1 {
		return true
	}
	for _, o := range t.batch {
		o.deliver(opSent, reply{code: code, cause: err})
	}
	return false
}

func (n *node) halves(t *trip) {
	half := len(t.batch) / 2
	for _, part := range [][]*op{t.batch[:half], t.batch[half:]} {
		n.mu.Lock()
		h := n.newTripLocked(t.l, part)
		n.mu.Unlock()
		n.send(h)
	}
}

// work is the goroutine that makes the calls that could not be started.
func (n *node) work(t *trip) {
	for l := t.l; t != nil; {
		n.send(t)
		if t = n.depart(l); t != nil && n.start(t) {
			return
		}
	}
}

// send makes a trip's call, waiting for it, and those of its halves if need be.
func (n *node) send(t *trip) {
	err := n.call(t)
	n.ended(t)
	if err != nil && n.refused(t, err) {
		n.halves(t)
	}
}

// call returns an error of the whole request, and then no op was delivered.
func (n *node) call(t *trip) error {
	conn, err := n.connect()
	if err != nil {
		return &NotSent{Err: err}
	}
	ctx, cancel := context.WithDeadline(n.pool.base, t.last)
	defer cancel()
	if t.l.method == methodCurrent {
		rep, err := conn.Current(ctx, n.currentRequest(t.l, t.batch, t.timeout))
		if err != nil {
			return err
		}
		return n.read(t.batch, rep)
	}
	rep, err := conn.Alloc(ctx, n.allocRequest(t.l, t.batch, t.timeout))
	if err != nil {
		return err
	}
	return n.allocated(t.batch, rep)
}

// wakeLocked has the timer look after the trips at a time, or sooner.
func (n *node) wakeLocked(at, now time.Time) {
	if !n.due.IsZero() && !at.Before(n.due) {
		return
	}
	n.due = at
	if n.timer == nil {
		n.timer = time.AfterFunc(at.Sub(now), n.look)
	} else {
		n.timer.Reset(at.Sub(now))
	}
}

// look sees to the trips that take long. It runs on the timer, which is not set
// again once there are none.
func (n *node) look() {
	var start []*lane
	n.mu.Lock()
	now := time.Now()
	n.due = time.Time{}
	refresh := false
	var over []*trip
	for _, t := range n.trips {
		next := t.since.Add(stalledAfter)
		if !next.After(now) {
			refresh = true
			if !t.stalled {
				t.stalled = true
				n.stalled.Add(1)
			}
			next = now.Add(stalledAfter)
		}
		if !t.last.After(now) {
			over = n.giveUpLocked(t, over)
		} else if t.last.Before(next) {
			next = t.last
		}
		n.wakeLocked(next, now)
	}
	start = n.startableLocked(start, now)
	n.mu.Unlock()
	if refresh {
		n.pool.routes.refresh()
	}
	for _, t := range over {
		n.abandon(t)
	}
	n.driveAll(start)
}

// giveUpLocked marks a trip as one that nobody waits for, and appends it to those
// that are to be abandoned; one that is being started now is by whoever starts it,
// and one that has a goroutine ends by its context.
func (n *node) giveUpLocked(t *trip, to []*trip) []*trip {
	if t.gaveUp {
		return to
	}
	t.gaveUp = true
	if t.started == nil {
		return to
	}
	return append(to, t)
}

// giveUpAll is for the end of the client.
func (n *node) giveUpAll() {
	var over []*trip
	n.mu.Lock()
	for _, t := range n.trips {
		over = n.giveUpLocked(t, over)
	}
	n.mu.Unlock()
	for _, t := range over {
		n.abandon(t)
	}
}
