package client

import (
	"context"
	"fmt"
	"slices"
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
	// back has room for every op that is away, which bounds them.
	back chan *op

	ready   []*op // to be submitted
	delayed []*op // in back-off
	crowds  []crowd
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

// awayMax is how many ops of one call may be away at a time at one Set, so that a
// large call does not keep small ones waiting.
func awayMax(opts *options) int { return 4 * opts.maxBatch }

// crowd is what of a call is away at one Set, and what waits until some of that is
// back. Each Set has its own, so that one that does not answer holds up no other.
type crowd struct {
	set  string
	away int
	held []*op // in their order
}

// crowd of a Set; it is good until the next call of crowd.
func (k *call) crowd(set string) *crowd {
	for i := range k.crowds {
		if k.crowds[i].set == set {
			return &k.crowds[i]
		}
	}
	k.crowds = append(k.crowds, crowd{set: set})
	return &k.crowds[len(k.crowds)-1]
}

// room is how many more ops may go out.
func (k *call) room() int { return cap(k.back) - k.nAway }

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

// submit sends the ready ops on their way, grouped by node, and before them those
// that had to wait. Of these none is sent so late that nobody hears what came of it.
func (k *call) submit() {
	for i := range k.crowds {
		c := &k.crowds[i]
		if n := min(len(c.held), awayMax(k.c.opts)-c.away, k.room()); n > 0 && time.Now().Before(k.deadline) {
			batch := c.held[:n:n]
			c.held = c.held[n:]
			k.submitMany(batch, true)
		}
	}
	for len(k.ready) > 0 && k.room() > 0 {
		if len(k.ready) == 1 {
			one := k.ready[:1:1]
			k.ready = k.ready[:0]
			if n := k.aim(one[0], nil); n != nil && !k.hold(one[0]) {
				k.out(one[0])
				k.enqueue(n, one)
			}
			continue
		}
		take := min(len(k.ready), k.room())
		batch := k.ready[:take:take]
		k.ready = k.ready[take:]
		k.submitMany(batch, false)
	}
}

// hold keeps an op back if enough is away at its Set, or others wait for that already.
func (k *call) hold(o *op) bool {
	c := k.crowd(o.set)
	if c.away < awayMax(k.c.opts) && len(c.held) == 0 {
		return false
	}
	c.held = append(c.held, o)
	return true
}

// submitMany sends ops on their way in the order of the first of each node's,
// and each node's in their own order. Those whose turn it is are not held.
func (k *call) submitMany(batch []*op, turn bool) {
	type group struct {
		n   *node
		ops []*op
	}
	var (
		few    [4]group
		groups = few[:0]
		last   *group
	)
	for _, o := range batch {
		var prev *node
		if last != nil {
			prev = last.n
		}
		n := k.aim(o, prev)
		if n == nil {
			continue
		}
		if !turn && k.hold(o) {
			continue
		}
		k.out(o)
		if last == nil || last.n != n {
			i := slices.IndexFunc(groups, func(g group) bool { return g.n == n })
			if i < 0 {
				i = len(groups)
				groups = append(groups, group{n: n, ops: make([]*op, 0, len(batch))})
			}
			last = &groups[i]
		}
		last.ops = append(last.ops, o)
	}
	for _, g := range groups {
		k.enqueue(g.n, g.ops)
	}
}

// out and in keep the books of what is away.
func (k *call) out(o *op) {
	k.away[o.index] = o
	k.nAway++
	k.crowd(o.set).away++
	if !o.moved.IsZero() {
		o.moved = time.Time{}
	}
}

func (k *call) in(o *op) {
	k.away[o.index] = nil
	k.nAway--
	k.crowd(o.set).away--
}

func (k *call) enqueue(n *node, ops []*op) {
	refused, retired := n.enqueue(ops)
	for _, o := range refused {
		k.in(o)
		if retired {
			k.ready = append(k.ready, o)
		} else {
			k.settle(o, &reply{code: seqpb.Code_CODE_BUSY, cause: fmt.Errorf("%d keys wait for %s already", k.c.opts.queue, n.addr)})
		}
	}
}

// aim finds the node to send an op to; prev, if not nil, is one that was found a
// moment ago. It returns nil if there is none now; the op is then finished or delayed.
func (k *call) aim(o *op, prev *node) *node {
	r, err := k.c.routes.hub.Load().Lookup(o.id)
	if err != nil {
		k.c.routes.refresh()
		k.settle(o, &reply{code: seqpb.Code_CODE_NOT_READY, cause: err})
		return nil
	}
	addr := o.aim(&r)
	if addr == "" {
		k.c.routes.refreshFor(r.Set)
		k.settle(o, &reply{code: seqpb.Code_CODE_NOT_READY, cause: fmt.Errorf("nobody owns section %d of set %s yet", r.Section, r.Set)})
		return nil
	}
	if o.node = prev; prev == nil || prev.addr != addr {
		o.node = k.c.pool.get(addr)
	}
	return o.node
}

// home takes an op back, and others that are back too.
func (k *call) home(o *op) {
	for {
		for o != nil {
			next := o.next
			k.in(o)
			k.settle(o, &o.reply)
			o = next
		}
		select {
		case o = <-k.back:
		default:
			return
		}
	}
}

// settle finishes an op, or plans its next attempt.
func (k *call) settle(o *op, r *reply) {
	if r.code == seqpb.Code_CODE_OK {
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
	o.patient = o.patient || r.cold
	elsewhere := k.c.routes.doubt(&o.attempt, o.id, r)
	next, refresh := decide(outcome{code: r.code, idempotent: o.idempotent(), elsewhere: elsewhere, redirects: o.redirects})
	if refresh {
		k.c.routes.refreshFor(o.set)
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
	e := &Error{Kind: kind, Key: o.key, Epoch: uint64(o.epoch), Err: both(giveUp, cause), reads: o.method == methodCurrent}
	if o.node != nil {
		e.Owner = o.node.addr
	}
	k.left--
	k.finish(o, e)
}

// result puts what an op was given into r, which is zero.
func (o *op) result(r *Result) {
	r.Key, r.First, r.Count, r.Prev = o.key, int64(o.reply.value), int64(o.n), int64(o.reply.value)-1
	r.Replayed, r.Repeated = o.reply.replayed, o.maybe
	if o.reply.hole != nil {
		r.Discontinuity = o.reply.hole
	}
	if o.reply.windowSince > 0 {
		r.WindowSince = time.UnixMilli(int64(o.reply.windowSince))
	}
}
