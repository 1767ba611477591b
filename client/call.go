package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
)

// call is one call of the API: its ops, and the loop that sees each of them to
// its end. The loop runs in the caller's goroutine and alone touches the ops
// that are at home.
type call struct {
	c   *Client
	ctx context.Context
	// deadline is the context's, or the budget's end.
	deadline time.Time
	// ownTimer: the context has no deadline, so the call must see to it.
	ownTimer bool
	timer    *time.Timer
	// seen is the table by which ops that are away were last checked.
	seen *router.Table
	// back has room for every op that is away.
	back chan *op

	ready   []*op // to be submitted
	delayed []*op // in back-off
	// away has, by index, the ops that were submitted; nil elsewhere.
	away  []*op
	nAway int
	left  int // not finished
	// strandedAt is when to look for ops that were sent to a node that has lost
	// the key since, and do not come back; zero if there are none.
	strandedAt time.Time
	// dirty: an op was left behind, so neither it nor the call may be used again.
	dirty bool
	// finish takes the final outcome of an op: err is nil or an *Error.
	finish func(o *op, err error)
}

// awayMax is how many ops of one call may be away at a time, so that a large
// call does not keep small ones waiting.
func awayMax(opts *options) int { return 4 * opts.maxBatch }

// strandedAfter is how long an answer may take after the key has moved away
// from the node that was asked. A node that lives denies at once.
const strandedAfter = 500 * time.Millisecond

// run returns when every op is finished.
func (k *call) run() {
	if err := k.ctx.Err(); err != nil {
		k.abandon(err)
		return
	}
	k.seen = k.c.routes.hub.Load()
	for k.submit(); k.left > 0; k.submit() {
		t, changed := k.c.routes.hub.Watch()
		if t != k.seen {
			k.reroute(t)
			continue
		}
		select {
		case o := <-k.back:
			k.home(o)
		case <-k.arm():
			if !time.Now().Before(k.deadline) {
				k.abandon(context.DeadlineExceeded)
				return
			}
			k.wake()
		case <-changed:
		case <-k.ctx.Done():
			k.abandon(k.ctx.Err())
			return
		}
	}
	if k.timer != nil {
		k.timer.Stop()
	}
}

// submit sends the ready ops on their way, grouped by node.
func (k *call) submit() {
	for len(k.ready) > 0 && k.nAway < awayMax(k.c.opts) {
		if len(k.ready) == 1 {
			one := k.ready[:1:1]
			k.ready = k.ready[:0]
			if n := k.aim(one[0]); n != nil {
				k.enqueue(n, one)
			}
			continue
		}
		take := min(len(k.ready), awayMax(k.c.opts)-k.nAway)
		batch := k.ready[:take:take]
		k.ready = k.ready[take:]
		groups := make(map[*node][]*op)
		for _, o := range batch {
			if n := k.aim(o); n != nil {
				groups[n] = append(groups[n], o)
			}
		}
		for n, ops := range groups {
			k.enqueue(n, ops)
		}
	}
}

// out and in keep the books of what is away.
func (k *call) out(o *op) {
	k.away[o.index] = o
	k.nAway++
	o.moved = time.Time{}
}

func (k *call) in(o *op) {
	k.away[o.index] = nil
	k.nAway--
}

func (k *call) enqueue(n *node, ops []*op) {
	for _, o := range ops {
		k.out(o)
	}
	refused, retired := n.enqueue(ops)
	for _, o := range refused {
		k.in(o)
		if retired {
			k.ready = append(k.ready, o)
		} else {
			k.settle(o, reply{code: seqpb.Code_CODE_BUSY, cause: fmt.Errorf("%d keys wait for %s already", k.c.opts.queue, n.addr)})
		}
	}
}

// aim finds the node to send an op to. It returns nil if there is none now; the op
// is then finished or delayed.
func (k *call) aim(o *op) *node {
	r, err := k.c.routes.hub.Load().Lookup(o.id)
	if err != nil {
		k.c.routes.refresh()
		k.settle(o, reply{code: seqpb.Code_CODE_NOT_READY, cause: err})
		return nil
	}
	o.set, o.epoch = r.Set, r.Epoch
	addr := r.Owner.Addr
	if o.hint != "" && o.hintEpoch > r.Epoch {
		addr, o.epoch = o.hint, o.hintEpoch
	}
	if addr == "" {
		k.c.routes.refresh()
		k.settle(o, reply{code: seqpb.Code_CODE_NOT_READY, cause: fmt.Errorf("nobody owns section %d of set %s yet", r.Section, r.Set)})
		return nil
	}
	o.node = k.c.pool.get(addr)
	return o.node
}

// home takes an op back, and others that are back too.
func (k *call) home(o *op) {
	for {
		k.in(o)
		k.settle(o, o.reply)
		select {
		case o = <-k.back:
		default:
			return
		}
	}
}

// settle finishes an op, or plans its next attempt.
func (k *call) settle(o *op, r reply) {
	if r.code == seqpb.Code_CODE_OK {
		o.reply = r
		k.left--
		k.finish(o, nil)
		return
	}
	if r.code != codeBounced {
		o.code, o.cause = r.code, r.cause
	}
	if r.code == seqpb.Code_CODE_UNKNOWN_RESULT && o.method == methodAlloc {
		o.maybe = true
	}
	elsewhere := k.doubt(o, r)
	next, refresh := decide(outcome{code: r.code, idempotent: o.idempotent(), elsewhere: elsewhere, redirects: o.redirects})
	if refresh {
		k.c.routes.refresh()
	}
	switch next {
	case stepNow:
		if r.code != codeBounced {
			o.redirects++
		}
		k.ready = append(k.ready, o)
	case stepWait:
		wait := delay(r.code, o.waits, k.c.opts.rand.float())
		o.waits++
		o.redirects = 0
		o.due = time.Now().Add(wait)
		if o.due.After(k.deadline) {
			k.fail(o, context.DeadlineExceeded)
			return
		}
		k.delayed = append(k.delayed, o)
	default:
		k.fail(o, nil)
	}
}

// doubt keeps what a failed attempt says of the owner, and tells whether
// another node than the one that was asked is now known to be it.
func (k *call) doubt(o *op, r reply) (elsewhere bool) {
	switch r.code {
	case codeBounced, seqpb.Code_CODE_BUSY, seqpb.Code_CODE_NOT_READY:
		return false // nothing against the owner
	}
	asked := o.node.addr
	route, err := k.c.routes.hub.Load().Lookup(o.id)
	if err != nil {
		return false
	}
	if r.code == seqpb.Code_CODE_NOT_OWNER {
		o.denied++
		if o.denied >= deniedMax {
			o.denied = 0
			k.c.routes.refreshReplacing()
		}
	}
	o.hint, o.hintEpoch = "", 0
	if r.hint != "" && r.hint != asked {
		// The node's word counts if it knows of a later epoch than the table,
		// or if the table names the very node that says no.
		epoch := r.hintEpoch
		if route.Owner.Addr == asked || !route.Owned() {
			if epoch == 0 || epoch == route.Epoch {
				epoch = route.Epoch + 1
			}
		}
		if epoch > route.Epoch {
			o.hint, o.hintEpoch = r.hint, epoch
			return true
		}
	}
	return route.Owned() && route.Owner.Addr != asked
}

// fail finishes an op with its last failure; giveUp is why there is no further attempt, if that was not the failure itself.
func (k *call) fail(o *op, giveUp error) {
	kind, cause := Kind(o.code), o.cause
	if o.code == 0 {
		kind = KindUnavailable
	}
	if o.method == methodCurrent && kind == KindUnknownResult {
		kind = KindUnavailable // a read has no result that could be lost
	}
	if o.maybe {
		kind = KindUnknownResult
	}
	e := &Error{Kind: kind, Key: o.key, Epoch: uint64(o.epoch), Err: both(giveUp, cause)}
	if o.node != nil {
		e.Owner = o.node.addr
	}
	k.left--
	k.finish(o, e)
}

// abandon ends the call; ops that are still away are left to themselves.
func (k *call) abandon(why error) {
	for i := 0; i < len(k.away) && k.nAway > 0; i++ {
		o := k.away[i]
		if o == nil {
			continue
		}
		if k.leave(o) {
			k.fail(o, why)
			continue
		}
		for k.away[i] != nil { // it is on its way back, and what it brings counts
			k.home(<-k.back)
		}
	}
	for _, o := range append(k.ready, k.delayed...) {
		k.fail(o, why)
	}
	k.ready, k.delayed = k.ready[:0], k.delayed[:0]
	if k.timer != nil {
		k.timer.Stop()
	}
}

// leave abandons an op that is away, and notes what that means for its
// outcome; false if it is on its way back.
func (k *call) leave(o *op) bool {
	switch {
	case o.state.CompareAndSwap(opQueued, opAbandoned): // never sent
	case o.state.CompareAndSwap(opSent, opAbandoned):
		o.code, o.cause = seqpb.Code_CODE_UNKNOWN_RESULT, errNoAnswer
		o.maybe = o.maybe || o.method == methodAlloc
	default:
		return false
	}
	k.in(o)
	k.dirty = true
	return true
}

var (
	errNoAnswer = errors.New("no answer yet")
	errStranded = errors.New("the node was asked, and has lost the key since")
)

// wake does what is due: delayed ops become ready, stranded ones fail.
func (k *call) wake() {
	now := time.Now()
	rest := k.delayed[:0]
	for _, o := range k.delayed {
		if o.due.After(now) {
			rest = append(rest, o)
		} else {
			k.ready = append(k.ready, o)
		}
	}
	k.delayed = rest
	if k.strandedAt.IsZero() || k.strandedAt.After(now) {
		return
	}
	k.strandedAt = time.Time{}
	for _, o := range k.away {
		if o == nil || o.moved.IsZero() {
			continue
		}
		if until := o.moved.Add(strandedAfter); until.After(now) {
			k.lookForStranded(until)
		} else if k.leave(o) {
			k.fail(o, errStranded)
		}
	}
}

func (k *call) lookForStranded(at time.Time) {
	if k.strandedAt.IsZero() || at.Before(k.strandedAt) {
		k.strandedAt = at
	}
}

// arm sets the timer to the next thing that is due, or the deadline if the
// context has none. nil if there is no such thing.
func (k *call) arm() <-chan time.Time {
	if !k.ownTimer && len(k.delayed) == 0 && k.strandedAt.IsZero() {
		return nil
	}
	next := k.deadline
	for _, o := range k.delayed {
		if o.due.Before(next) {
			next = o.due
		}
	}
	if !k.strandedAt.IsZero() && k.strandedAt.Before(next) {
		next = k.strandedAt
	}
	if k.timer == nil {
		k.timer = time.NewTimer(time.Until(next))
	} else {
		k.timer.Reset(time.Until(next))
	}
	return k.timer.C
}

// reroute acts on a change of routes. It ends back-offs that waited for one.
// Of the ops that were sent to a node which has lost the key, it repeats
// elsewhere those that are harmless to repeat, and gives the others a time by
// which to come back.
func (k *call) reroute(t *router.Table) {
	k.seen = t
	rest := k.delayed[:0]
	for _, o := range k.delayed {
		if waitsForRoutes(o.code) {
			k.ready = append(k.ready, o)
		} else {
			rest = append(rest, o)
		}
	}
	k.delayed = rest
	for _, o := range k.away {
		if o == nil || o.state.Load() != opSent {
			continue // one that is queued is taken back by its node
		}
		r, err := t.Lookup(o.id)
		switch {
		case err != nil || !r.Owned() || r.Owner.Addr == o.node.addr || r.Epoch < o.hintEpoch:
			o.moved = time.Time{}
		case o.idempotent():
			if k.leave(o) {
				k.ready = append(k.ready, o.again())
			}
		case o.moved.IsZero():
			o.moved = time.Now()
			k.lookForStranded(o.moved.Add(strandedAfter))
		}
	}
}

// result is what an op was given.
func (o *op) result() Result {
	r := Result{
		Key: o.key, First: int64(o.reply.value), Count: int64(o.n), Prev: int64(o.reply.value) - 1,
		Discontinuity: o.reply.hole, Replayed: o.reply.replayed,
	}
	if o.reply.windowSince > 0 {
		r.WindowSince = time.UnixMilli(int64(o.reply.windowSince))
	}
	return r
}
