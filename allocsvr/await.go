package allocsvr

import (
	"context"
	"time"
)

// await is what an ask waits for before it is looked at again: raising, soon or
// room, at most one of them; else news of who owns the section or the range.
type await struct {
	ask     int
	raising *extend
	// soon: its key's hand-back is under way, or there is nothing to wait for any more.
	soon <-chan struct{}
	// room: a page in the arena; see parked.
	room bool
	// until is for how long to wait for anything but a raise.
	until time.Time
	// late is the failure if the caller's time runs out; nil: the usual.
	late *Failure
}

// awaitAll waits for what there is to wait for, and lists the asks to be looked at
// again; it fails those whose time ran out, or for which there will be no numbers.
//
// The numbers of some keys of a request do not wait for others. While raises are
// under way nothing else is waited for: what they bring must be taken first, or a
// request of more keys than the arena holds would have them handed back unused, and
// one with a key whose range is moving would have its numbers lie about. Then
// come the hand-backs, which end as soon as raises do. Room and news may be long
// in coming; any of them will do. turn: there may be room for those that are parked.
func (s *Server) awaitAll(ctx context.Context, waits []await, p *parked, news <-chan struct{}, asks []ask, out []answer, again []int) (_ []int, turn bool) {
	turn = s.awaitSoonest(ctx, waits, p, news, out)
	for _, aw := range waits {
		switch {
		case out[aw.ask].fail != nil:
		case ctx.Err() == nil:
			again = append(again, aw.ask)
		case aw.late != nil:
			out[aw.ask].fail = aw.late
		default:
			// Its caller is gone, or as good as: no number is issued to nobody.
			out[aw.ask].fail = s.tooLate(ctx.Err())
		}
		if aw.raising != nil && aw.raising.isDone() {
			asks[aw.ask].noteRaise(aw.raising)
		}
	}
	if ctx.Err() != nil || s.closed() {
		p.fail(out, s.closed())
	}
	return again, turn
}

// awaitSoonest is awaitAll's waiting.
func (s *Server) awaitSoonest(ctx context.Context, waits []await, p *parked, news <-chan struct{}, out []answer) (turn bool) {
	var raised, returned bool
	for _, aw := range waits {
		if aw.raising == nil {
			continue
		}
		raised = true
		if s.awaitAny(ctx, time.Time{}, aw.raising.done, nil); aw.raising.isDone() && aw.raising.fail != nil {
			out[aw.ask].fail = aw.raising.fail
		}
	}
	for _, aw := range waits {
		if !raised && aw.soon != nil {
			returned = true
			s.awaitAny(ctx, aw.until, aw.soon, nil)
		}
	}
	if !raised && !returned && len(waits)+len(p.asks) > 0 {
		turn = s.awaitChange(ctx, waits, p, news)
	}
	if s.closed() {
		for _, aw := range waits {
			if out[aw.ask].fail == nil {
				out[aw.ask].fail = errStopping
			}
		}
	}
	return turn
}

// awaitChange waits until there may be room, or there are news, for any of those
// who wait for that. The bell is that which was got before any of them was looked at.
func (s *Server) awaitChange(ctx context.Context, waits []await, p *parked, news <-chan struct{}) (turn bool) {
	var until time.Time
	for _, aw := range waits {
		if until.IsZero() || aw.until.Before(until) {
			until = aw.until
		}
	}
	if len(p.asks) == 0 {
		s.awaitAny(ctx, until, news, nil)
		return false
	}
	if until.IsZero() || p.lookAt.Before(until) {
		until = p.lookAt
	}
	at := s.line.join()
	s.awaitAny(ctx, until, at.turn, news)
	return s.line.leave(at)
}

// awaitAny returns at the first of all these; until may be zero for never.
func (s *Server) awaitAny(ctx context.Context, until time.Time, a, b <-chan struct{}) {
	var due <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-a:
	case <-b:
	case <-due:
	case <-ctx.Done():
	case <-s.dying:
	}
}

// noteRaise remembers what became of the raise that the ask waited for.
func (a *ask) noteRaise(e *extend) {
	a.raised = e.asked
	if a.refused = e.moving; a.refused {
		a.refusals++
	}
}
