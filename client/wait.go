package client

import (
	"errors"
	"time"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
)

// strandedAfter is how long an answer may take after the key has moved away
// from the node that was asked. A node that lives denies at once.
const strandedAfter = 500 * time.Millisecond

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
	k.release()
	for _, o := range append(k.ready, k.delayed...) {
		k.fail(o, why)
	}
	k.ready, k.delayed = k.ready[:0], k.delayed[:0]
	if k.timer != nil {
		k.timer.Stop()
	}
}

// release has the ops that were held back look where to go again.
func (k *call) release() {
	for i := range k.crowds {
		c := &k.crowds[i]
		k.ready = append(k.ready, c.held...)
		c.held = nil
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

// wake does what is due: delayed ops become ready, stranded ones are repeated or fail.
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
			continue
		}
		switch {
		case !k.leave(o):
		case o.idempotent():
			k.ready = append(k.ready, o.again())
		default:
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
// Of the ops that were sent to a node which has lost the key, it repeats reads
// elsewhere, and gives the others a time by which to come back. A request id
// changes nothing about that: in a planned move the answer is on its way, with
// a number that the next owner may not remember to have been given.
func (k *call) reroute(t *router.Table) {
	if t.Map.Version != k.seen.Map.Version {
		k.release() // their Sets may be others now
	}
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
		case err != nil || !r.Owned() || r.Owner.Addr == o.node.addr || o.hint.beats(&r):
			o.moved = time.Time{}
		case o.method == methodCurrent:
			if k.leave(o) {
				k.ready = append(k.ready, o.again())
			}
		case o.moved.IsZero():
			o.moved = time.Now()
			k.lookForStranded(o.moved.Add(strandedAfter))
		}
	}
}
