package allocsvr

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/dedupe"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// identified is an ask with a request id on its way to an answer.
type identified struct {
	at    int // in asks
	token *dedupe.Token
	// Why it has no token yet: its original is under way, or its section is changing hands.
	pending *dedupe.Pending
	news    <-chan struct{}
	moving  bool // its range is
}

// allocateIdentified answers asks of which some have request ids: those that
// were answered before get the same answer; those being answered now, to
// somebody else, wait for that. since is from when on (Unix ms) a repetition of
// any of these asks is known to be one.
//
// No ask waits for another's original while this request itself holds a token,
// so requests cannot wait for each other in a circle.
func (s *Server) allocateIdentified(ctx context.Context, w *world, asks []ask, out []answer, wait time.Duration) (since uint64) {
	end := time.Now().Add(wait)
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	handOver := time.Now().Add(min(handOverWait, wait/2))
	var todo []identified
	for i := range asks {
		todo = append(todo, identified{at: i})
	}
	for {
		var later []identified
		ready := todo[:0]
		for _, r := range todo {
			a := &asks[r.at]
			if a.id == nil {
				ready = append(ready, r)
				continue
			}
			from, done := s.begin(w, a, &out[r.at], &r, handOver)
			since = max(since, from)
			switch {
			case done:
			case r.token != nil:
				ready = append(ready, r)
			default:
				later = append(later, r)
			}
		}
		s.allocateReady(ctx, w, asks, out, ready, time.Until(end))
		if len(later) == 0 {
			s.declareAgain(ctx, asks, out)
			return since
		}
		todo = s.awaitOriginals(ctx, later, out, handOver)
	}
}

// begin looks a request id up. done: the ask has its answer. Otherwise r says how to go on.
func (s *Server) begin(w *world, a *ask, out *answer, r *identified, handOver time.Time) (since uint64, done bool) {
	sec := w.section(a.key)
	r.pending, r.news, r.moving = nil, s.news.wait(), false
	var o dedupe.Outcome
	err := dedupe.ErrNotReady
	ours := w.ranges.Load()
	if sec.open.Load() && ours.has(a.key) {
		o, err = s.window.Begin(sec.no, a.key, dedupe.ID(*a.id), a.n, uint64(time.Now().UnixMilli()))
	}
	switch {
	case errors.Is(err, dedupe.ErrNotReady) && ours.isFrozen(a.key):
		r.moving = true
		return 0, false
	case errors.Is(err, dedupe.ErrNotReady):
		sec.mu.Lock()
		defer sec.mu.Unlock()
		fail, stay := s.elsewhere(w, sec, a.key)
		if !stay || !time.Now().Before(handOver) {
			out.fail = fail
			return 0, true
		}
		return 0, false
	case err != nil:
		out.fail = failf(seqpb.Code_CODE_INVALID_ARGUMENT, "%v", err)
		return 0, true
	case o.Kind == dedupe.Hit:
		out.first, out.replayed, out.afterHole = o.First, true, o.AfterHole
		return o.Since, true
	case o.Kind == dedupe.Busy:
		r.pending = o.Pending
		return o.Since, false
	}
	r.token = o.Token
	return o.Since, false
}

// declareAgain puts the hole before a replayed answer's numbers into it: the
// answer that declared it first may never have arrived. The ledger has it.
func (s *Server) declareAgain(ctx context.Context, asks []ask, out []answer) {
	for i := range out {
		if !out[i].afterHole {
			continue
		}
		gaps, err := s.session.ReadGaps(ctx, asks[i].key)
		if err != nil {
			out[i] = answer{fail: failf(seqpb.Code_CODE_NOT_READY, "the hole before an earlier answer cannot be read: %v", err)}
			continue
		}
		out[i].holeFrom, out[i].holeTo = holeBefore(gaps, out[i].first)
	}
}

// holeBefore finds the hole that ends just before first, with those that it
// touches; zeros if the ledger has none.
func holeBefore(gaps []*seqpb.Gap, first ids.Seq) (from, to ids.Seq) {
	for _, g := range slices.Backward(gaps) {
		switch {
		case to == 0 && ids.Seq(g.From) < first && ids.Seq(g.To) >= first-1:
			from, to = ids.Seq(g.From), first-1
		case to != 0 && ids.Seq(g.To)+1 == from:
			from = ids.Seq(g.From)
		case to != 0:
			return from, to
		}
	}
	return from, to
}

// allocateReady answers the asks that are nobody else's. Every token has ended after it.
func (s *Server) allocateReady(ctx context.Context, w *world, asks []ask, out []answer, ready []identified, wait time.Duration) {
	if len(ready) == 0 {
		return
	}
	sub, got := make([]ask, len(ready)), make([]answer, len(ready))
	for j, r := range ready {
		sub[j] = asks[r.at]
		sub[j].token = r.token
	}
	s.allocate(ctx, w, sub, got, wait)
	for j, r := range ready {
		out[r.at] = got[j]
		if r.token != nil {
			r.token.Abort()
		}
	}
}

// awaitOriginals waits for others' answers, as one of the requests that may
// wait, and returns what is to be looked up again.
func (s *Server) awaitOriginals(ctx context.Context, later []identified, out []answer, handOver time.Time) (todo []identified) {
	defer s.waiting.Add(-1)
	full := s.waiting.Add(1) > int64(s.cfg.MaxInFlight)
	if full {
		s.count.busy.Add(1)
	}
	for _, r := range later {
		if full {
			out[r.at].fail = errBusyWaiting
		} else if s.awaitOriginal(ctx, &r, &out[r.at], handOver) {
			todo = append(todo, r)
		}
	}
	return todo
}

// awaitOriginal waits until it is time to look the request id up again; false
// if there is no more time, and the ask has failed.
func (s *Server) awaitOriginal(ctx context.Context, r *identified, out *answer, handOver time.Time) bool {
	var err error
	if r.pending != nil {
		// Its answer is looked up, so that a count that differs is noticed.
		if _, err = r.pending.Wait(ctx); errors.Is(err, dedupe.ErrAborted) {
			err = nil
		}
	} else {
		until := handOver
		if r.moving {
			until = time.Now().Add(s.cfg.MaxWait)
		}
		if s.awaitAny(ctx, until, r.news, nil); s.closed() {
			out.fail = errStopping
			return false
		}
		err = ctx.Err()
	}
	if err != nil && r.moving {
		out.fail = errMoving
		return false
	}
	if err != nil {
		out.fail = failf(seqpb.Code_CODE_BUSY, "an earlier request with this id is still under way: %v", err)
		return false
	}
	return true
}

// takeNoted is Cell.Take, for an ask with a request id on record in the same step.
func (a *ask) takeNoted(cell arena.Cell) (first, left ids.Seq, r arena.TakeResult, fail *Failure) {
	if a.token == nil {
		first, left, r = cell.Take(uint64(a.n))
		return first, left, r, nil
	}
	first, left, r, err := a.token.Take(cell, uint64(time.Now().UnixMilli()))
	return first, left, r, tokenFailure(err)
}

// extendTakeNoted is Cell.ExtendTake, likewise.
func (a *ask) extendTakeNoted(cell arena.Cell, floor, bound ids.Seq) (first ids.Seq, fail *Failure) {
	if a.token == nil {
		return cell.ExtendTake(floor, bound, uint64(a.n)), nil
	}
	first, err := a.token.ExtendTake(cell, floor, bound, uint64(time.Now().UnixMilli()))
	return first, tokenFailure(err)
}

func tokenFailure(err error) *Failure {
	var full *arena.FullError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &full):
		return failf(seqpb.Code_CODE_BUSY, "%v", full)
	}
	// The section changed hands under the request; its present owner knows more.
	return failf(seqpb.Code_CODE_NOT_OWNER, "%v", err)
}
