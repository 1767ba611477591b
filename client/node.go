package client

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// node is one AllocSvr: its connection, and the ops that wait for it.
//
// Coalescing: an op that finds fewer batches under way than allowed is sent at
// once; one that finds the limit reached rides with all others that queue until
// one of those batches is back. So a batch grows with the load, and nobody
// waits for a timer.
//
// All of a batch is answered at once, so a key that has to wait for the durable
// tier would keep those beside it waiting, and all that queue behind them: while
// there is no leader, for as long as the calls have time. So the server is given
// little time at first, and what it did not manage in that rides from then on
// only with its like.
type node struct {
	pool *pool
	addr string
	// stalled counts batches that have had no answer for long.
	stalled atomic.Int32

	mu    sync.Mutex // guards what is below
	lanes map[laneKey]*lane
	conn  Conn
	// refs counts workers, subscriptions and single calls; while it is not 0
	// the connection stays open.
	refs int
	// retired: no longer in the pool; closes with its last reference.
	retired bool
}

// laneKey: what can ride in one request.
type laneKey struct {
	method  method
	space   ids.SpaceID
	patient bool
}

// lane is the queue of one kind of request.
type lane struct {
	method method
	space  ids.Space
	// patience bounds what the server may take for one batch.
	patience time.Duration
	// queue is in order of arrival, bounded by options.queue. Abandoned ops
	// stay in it until a worker passes them or the queue is full.
	queue []*op
	// workers ≤ options.inFlight, each with at most one batch under way.
	workers int
}

// enqueue takes ops of one call, and returns those that found the queue full.
// It also returns them all if the node was retired meanwhile.
func (n *node) enqueue(ops []*op) (refused []*op, retired bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.retired {
		return ops, true
	}
	var l *lane
	for i, o := range ops {
		if l == nil || !l.takes(o) {
			l = n.lane(o)
		}
		if len(l.queue) >= n.pool.opts.queue {
			l.queue = slices.DeleteFunc(l.queue, func(o *op) bool { return o.state.Load() == opAbandoned })
			if len(l.queue) >= n.pool.opts.queue {
				refused = ops[i:]
				break
			}
		}
		o.state.Store(opQueued)
		l.queue = append(l.queue, o)
	}
	for _, l := range n.lanes {
		if len(l.queue) > 0 && l.workers < n.pool.opts.inFlight {
			l.workers++
			n.refs++
			n.pool.workers.Add(1)
			go n.work(l)
		}
	}
	return refused, false
}

// takes tells whether the op is of the lane's kind.
func (l *lane) takes(o *op) bool {
	return l.method == o.method && l.space.ID == o.space.ID && (l.patience == patient) == o.patient
}

func (n *node) lane(o *op) *lane {
	k := laneKey{o.method, o.space.ID, o.patient}
	l := n.lanes[k]
	if l == nil {
		l = &lane{method: o.method, space: o.space, patience: hurried}
		if o.patient {
			l.patience = patient
		}
		n.lanes[k] = l
	}
	return l
}

const (
	// hurried is enough for a raise of a bound where the durable tier is well.
	hurried = 100 * time.Millisecond
	// patient is less than strandedAfter: a key that moves away from beside one
	// that waits is still told of it in time.
	patient = 400 * time.Millisecond
)

// work sends batches until the lane's queue is empty.
func (n *node) work(l *lane) {
	defer n.pool.workers.Done()
	defer n.release()
	var batch []*op
	for {
		batch = n.take(l, batch[:0])
		if len(batch) == 0 {
			return
		}
		n.send(l, batch)
	}
}

// take marks the next ops as sent and appends them to batch. If there are none
// it counts the worker out.
func (n *node) take(l *lane, batch []*op) []*op {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := 0
	for taken < len(l.queue) && len(batch) < n.pool.opts.maxBatch {
		o := l.queue[taken]
		taken++
		if o.state.CompareAndSwap(opQueued, opSent) {
			batch = append(batch, o)
		}
	}
	l.queue = slices.Delete(l.queue, 0, taken)
	if len(batch) == 0 {
		l.workers--
	}
	return batch
}

// bounce takes back the queued ops that are to go elsewhere by now.
func (n *node) bounce(elsewhere func(*op) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bounceLocked(elsewhere)
}

func (n *node) bounceLocked(elsewhere func(*op) bool) {
	for _, l := range n.lanes {
		l.queue = slices.DeleteFunc(l.queue, func(o *op) bool {
			if !elsewhere(o) {
				return false
			}
			o.deliver(opQueued, reply{code: codeBounced})
			return true
		})
	}
}

// send makes one RPC of a batch. When the server refuses the request as wrong,
// the halves are sent by themselves, so that one caller's mistake is not
// answered to those who happened to ride along.
func (n *node) send(l *lane, batch []*op) {
	err := n.call(l, batch)
	if err == nil {
		return
	}
	code := wire.CodeOf(err)
	if code == seqpb.Code_CODE_INVALID_ARGUMENT && len(batch) > 1 {
		half := len(batch) / 2
		n.send(l, batch[:half])
		n.send(l, batch[half:])
		return
	}
	for _, o := range batch {
		o.deliver(opSent, reply{code: code, cause: err})
	}
}

// call returns an error of the whole request, and then no op was delivered.
func (n *node) call(l *lane, batch []*op) error {
	conn, err := n.connect()
	if err != nil {
		return &NotSent{Err: err}
	}
	defer n.watchStall()()
	first, last := deadlines(batch)
	ctx, cancel := context.WithDeadline(n.pool.base, last)
	defer cancel()
	timeout := timeoutMillis(min(time.Until(first), l.patience))
	if l.method == methodCurrent {
		return n.callCurrent(ctx, conn, l, batch, timeout)
	}
	return n.callAlloc(ctx, conn, l, batch, timeout)
}

// deadlines are the first and the last of a batch. The server works until the
// first, so that it issues no number to a caller that has gone; a number that
// does not have to wait is not affected.
func deadlines(batch []*op) (first, last time.Time) {
	for i, o := range batch {
		d := o.call.deadline
		if i == 0 || d.Before(first) {
			first = d
		}
		if d.After(last) {
			last = d
		}
	}
	return first, last
}

// answerSlackMax is how much sooner than the caller the server gives up, so
// that its definite answer arrives in time.
const answerSlackMax = 50 * time.Millisecond

func timeoutMillis(left time.Duration) uint32 {
	left -= min(left/10, answerSlackMax)
	return uint32(min(max(left.Milliseconds(), 1), 1<<31))
}

// stalledAfter is how long an answer may take before the routes are doubted: a
// node that vanished without a word says nothing, and the subscription might be
// with it. As long as it lasts they are asked for again.
const stalledAfter = 150 * time.Millisecond

// watchStall sees to a batch that gets no answer, until the returned function is called.
func (n *node) watchStall() (done func()) {
	var mu sync.Mutex
	stalled, over := false, false
	var t *time.Timer
	mu.Lock() // t is set before it is used
	t = time.AfterFunc(stalledAfter, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		if !stalled {
			stalled = true
			n.stalled.Add(1)
		}
		n.pool.routes.refresh()
		t.Reset(stalledAfter)
	})
	mu.Unlock()
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		t.Stop()
		if stalled {
			n.stalled.Add(-1)
		}
	}
}

// connect is the node's connection, made if there is none. The caller holds a reference.
func (n *node) connect() (Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn == nil {
		conn, err := n.pool.opts.transport.Dial(n.addr)
		if err != nil {
			return nil, err
		}
		n.conn = conn
	}
	return n.conn, nil
}

// retire closes the node once nobody uses it; its queued ops go elsewhere.
func (n *node) retire() {
	n.mu.Lock()
	n.retired = true
	n.bounceLocked(func(*op) bool { return true })
	n.refs++ // for the release below, which closes if it is the last
	n.mu.Unlock()
	n.release()
}

// acquire takes a reference; false if the node is closed or closing.
func (n *node) acquire() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.retired {
		return false
	}
	n.refs++
	return true
}

func (n *node) release() {
	n.mu.Lock()
	n.refs--
	var conn Conn
	if n.retired && n.refs == 0 {
		conn, n.conn = n.conn, nil
	}
	n.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // nothing is in flight, and nobody is left to tell
	}
}
