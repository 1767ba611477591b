package allocsvr

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// extend is one raise of one key. Its fields below epoch are guarded by sec.mu.
type extend struct {
	s     *Server
	w     *world
	sec   *section
	key   ids.Key
	epoch ids.Epoch

	// need is the most that one waiting caller wants, and asked what was asked for:
	// the key's step beyond cur, at the time at, or more if more is needed.
	need, asked, step, cur ids.Seq
	at                     time.Time
	// queued in any lane; urgent: in that of the waiting callers.
	queued, urgent bool
	// carrier is the ticket that went out with a batch.
	carrier *ticket
	settled bool

	// fail is set before done is closed: there will be no numbers. moving: none now.
	fail   *Failure
	moving bool
	done   chan struct{}
}

// ticket is an extend's place in a lane of the queue. A prefetch for which a
// caller came to wait has one in each of two lanes; whichever is called first counts.
type ticket struct{ e *extend }

// Fill implements raise.Item: it asks for what the key needs now.
func (t *ticket) Fill(op *state.Op) bool {
	e := t.e
	e.sec.mu.Lock()
	defer e.sec.mu.Unlock()
	if e.settled || e.carrier != nil && e.carrier != t || !e.wanted() {
		return false
	}
	e.carrier = t
	tok := e.s.arena.Guard().Enter()
	defer tok.Exit()
	e.cur, e.at = 0, time.Now()
	if cell, ok := e.s.arena.Find(e.key); ok {
		e.cur, _, _ = cell.Load()
	}
	e.step = e.w.stepsOf(e.key).policy.Step(e.key, e.cur, e.at)
	e.asked = max(e.step, e.need)
	*op = state.Op{Kind: state.OpExtend, Epoch: e.epoch, Key: e.key, Cur: e.cur, Step: e.asked}
	return true
}

// Done implements raise.Item: it puts the numbers where callers find them.
func (t *ticket) Done(res state.OpResult, err error) {
	e := t.e
	e.sec.mu.Lock()
	defer e.sec.mu.Unlock()
	if e.settled || e.carrier != nil && e.carrier != t {
		return
	}
	e.settled = true
	if e.sec.extending[e.key] == e {
		e.sec.forget(e)
	}
	defer close(e.done)
	switch {
	case errors.Is(err, raise.ErrClosed):
		e.fail = errStopping
	case err != nil:
		// No longer wanted, since the section is not ours to raise any more. The callers look again.
	case !e.wanted():
		// The section closed while the raise was under way, or the key's range: what
		// came is not ours to issue. If the key was new, nobody will hand it back; the
		// clean mark of the release covers it, or what vacating the range says.
	default:
		e.apply(res)
	}
}

func (e *extend) isDone() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// wanted: the key may be served here. It needs sec.mu.
func (e *extend) wanted() bool {
	return e.sec.servingAt(e.w, e.epoch) && e.sec.returning[e.key] == nil && e.w.ranges.Load().has(e.key)
}

// apply needs sec.mu, with the section serving in the extend's epoch.
func (e *extend) apply(res state.OpResult) {
	if res.Refusal == state.OK {
		e.granted(res)
		e.publish(res)
		return
	}
	log := e.s.log.With(zap.Uint32("section", uint32(e.sec.no)), zap.Uint64("epoch", uint64(e.epoch)))
	switch res.Refusal {
	case state.RefusedNotOwner, state.RefusedEpoch:
		e.sec.notOurs(e.w, e.epoch, e.s.log)
	case state.RefusedRange, state.RefusedFrozen:
		// On its way into the Set, or out of it, and the news of it to us.
		e.moving = true
	case state.RefusedExhausted:
		e.fail = errExhausted
	case state.RefusedCur:
		// We believe to have issued more than was ever granted. Nothing more
		// comes out of this key before someone has looked at it.
		log.Error("the store group's record contradicts the arena; the key is closed",
			zap.Stringer("key", e.key), zap.Uint64("floor", uint64(res.Floor)), zap.Uint64("bound", uint64(res.Bound)))
		tok := e.s.arena.Guard().Enter()
		defer tok.Exit()
		if cell, ok := e.s.arena.Find(e.key); ok {
			cell.Close()
		}
		e.sec.doubt(e.key)
		e.fail = errUntrusted
	default:
		log.Error("raise refused", zap.Stringer("key", e.key), zap.Stringer("refusal", res.Refusal))
		e.fail = failf(seqpb.Code_CODE_INVALID_ARGUMENT, "the store group refuses the key: %v", res.Refusal)
	}
}

// granted tells the policy, which judges by it how fast the key's numbers go.
func (e *extend) granted(res state.OpResult) {
	st := e.w.stepsOf(e.key)
	st.policy.Granted(e.key, max(e.cur, res.Floor), e.step, e.at)
	st.count(e.asked)
}

func (e *extend) publish(res state.OpResult) {
	tok := e.s.arena.Guard().Enter()
	defer tok.Exit()
	cell, err := e.s.arena.Ensure(e.key)
	if err != nil {
		e.fail = ensureFailure(err)
		return
	}
	_, bound, _ := cell.Load()
	if bound == 0 && res.HoleTo != 0 {
		// A caller must be told of the hole with the first number after it, so the
		// hot path, which tells nothing, may not see the key before (takeFirst).
		e.sec.holes[e.key] = hole{floor: res.Floor, bound: res.Bound, from: res.HoleFrom, to: res.HoleTo}
		return
	}
	if !cell.Extend(res.Floor, res.Bound) {
		e.fail = errUntrusted
	}
}
