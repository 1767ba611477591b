package client

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// node is one AllocSvr: its connection, and the ops that wait for it.
//
// Coalescing: an op that finds no batch under way is sent at once; one that finds
// one rides with all others that queue until that is back. So a batch grows with
// the load, and a lone caller waits for no timer. A further batch goes beside it
// when it is full, or when the one under way is late: then something in it may be
// waiting for the durable tier. Two small ones would cost twice the system calls.
//
// Nobody has to wait for a batch: whoever enqueues sends it, and whoever reads the
// answer hands it to the callers and sends the next one; see trip.go.
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
	// trips are the batches under way, and timer sees to them. It is set to due, unless that is zero.
	trips []*trip
	timer *time.Timer
	due   time.Time
	// unhook has the end of the client give up no trips of this node any more.
	unhook func() bool
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
	// workers ≤ options.inFlight, each with at most one batch under way. None is a
	// goroutine as long as the connection needs none.
	workers int
	// last is how many ops the last batch had.
	last int
}

// enqueue takes ops of one call, and returns those that found the queue full.
// It also returns them all if the node was retired meanwhile.
func (n *node) enqueue(ops []*op) (refused []*op, retired bool) {
	var room [4]*lane
	start := room[:0]
	n.mu.Lock()
	if n.retired {
		n.mu.Unlock()
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
	start = n.startableLocked(start, time.Now())
	n.mu.Unlock()
	n.driveAll(start)
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
		l = &lane{method: o.method, space: *o.space, patience: hurried}
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

// release gives a reference back.
func (n *node) release() {
	if conn := n.unref(); conn != nil {
		_ = conn.Close() // nothing is in flight, and nobody is left to tell
	}
}

// unref returns the connection if it is to be closed.
func (n *node) unref() Conn {
	n.mu.Lock()
	n.refs--
	var conn Conn
	if n.retired && n.refs == 0 {
		conn, n.conn = n.conn, nil
		n.unhook()
		if n.timer != nil {
			n.timer.Stop()
		}
	}
	n.mu.Unlock()
	return conn
}
