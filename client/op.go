package client

import (
	"sync/atomic"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

type method uint8

const (
	methodAlloc method = iota
	methodCurrent
)

// opState says who may touch an op. It changes by compare-and-swap, since a
// caller gives up while a worker sends.
type opState = uint32

const (
	// opHome: the call's own loop has it.
	opHome opState = iota
	// opQueued: in a node's queue. A worker or the caller may take it out.
	opQueued
	// opSent: a worker has it, and will write its reply.
	opSent
	// opAbandoned: nobody waits for it. It goes nowhere any more.
	opAbandoned
)

// op is one key of a call, on its way through attempts.
type op struct {
	call  *call
	index int // of the key in the call
	// What is asked; it does not change.
	key    Key
	id     ids.Key
	space  *ids.Space // of a table
	method method
	n      uint32
	reqID  [16]byte
	hasID  bool

	state atomic.Uint32
	// next is an op of the same call that is handed back together with this one.
	next *op
	// reply is written by the worker while the op is sent, and read at home.
	reply reply

	attempt
}

// attempt is what the call's loop knows of an op's attempts so far.
type attempt struct {
	// node of the last submission, and the Set it was routed by.
	node *node
	set  string
	// epoch is the section's then.
	epoch ids.Epoch
	history
}

// history of an op is zero unless something went wrong.
type history struct {
	// hint is an owner that a node named; see aim.go.
	hint      hint
	redirects int // since the last back-off
	waits     int // back-offs
	denied    int // answers of "not owner", since routes were doubted last
	// patient: the key waits for the durable tier, so the op rides with its like.
	patient bool
	// maybe: an attempt's outcome is unknown, so no later failure is definite.
	maybe bool
	// last failure: its code and cause.
	code  seqpb.Code
	cause error
	// due is when to try again, while delayed.
	due time.Time
	// moved is since when the key is known to be elsewhere, while sent.
	moved time.Time
}

// reply is the outcome of one attempt. One of success has neither cause nor hint, and
// is not cold.
type reply struct {
	code  seqpb.Code
	cause error
	hint  hint
	// cold: the node has no number for the key before the durable tier answers.
	cold bool

	value       ids.Seq // first number, or current
	hole        *Hole
	replayed    bool
	windowSince uint64
}

// reset clears a reply. Most have no more than a number, and clearing all of it
// would cost a call of many keys more than taking the numbers.
func (r *reply) reset() {
	if r.code != seqpb.Code_CODE_OK || r.hole != nil {
		*r = reply{}
		return
	}
	r.value, r.replayed, r.windowSince = 0, false, 0
}

// idempotent: doing it twice is harmless.
func (o *op) idempotent() bool { return o.method == methodCurrent || o.hasID }

// again is a fresh copy of an op that is stuck in a worker.
func (o *op) again() *op {
	return &op{
		call: o.call, index: o.index, key: o.key, id: o.id, space: o.space,
		method: o.method, n: o.n, reqID: o.reqID, hasID: o.hasID, attempt: o.attempt,
	}
}

// deliver hands a sent or queued op, with its reply, back to its call. The
// channel has room for all ops of the call that are away.
func (o *op) deliver(from opState, r reply) {
	o.reply = r
	if o.state.CompareAndSwap(from, opHome) {
		o.next = nil
		o.call.back <- o
	}
}

// deliverAll hands a sent batch back, whose replies are written. Neighbours of
// one call go as one list: a channel operation a key would cost more than all else.
func deliverAll(batch []*op) {
	var first, last *op
	for _, o := range batch {
		if !o.state.CompareAndSwap(opSent, opHome) {
			continue
		}
		o.next = nil
		if first != nil && first.call == o.call {
			last.next = o
			last = o
			continue
		}
		if first != nil {
			first.call.back <- first
		}
		first, last = o, o
	}
	if first != nil {
		first.call.back <- first
	}
}
