package allocsvr

import (
	"context"
	"errors"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// allocateCold answers the asks listed in cold, which the hot path could not. It
// has all of them raised at once, waits for all of them, and takes again.
func (s *Server) allocateCold(ctx context.Context, w *world, asks []ask, out []answer, cold []int, wait time.Duration) {
	if n := s.waiting.Add(1); n > int64(s.cfg.MaxInFlight) {
		s.waiting.Add(-1)
		s.count.busy.Add(1)
		for _, i := range cold {
			out[i].fail = errBusyWaiting
		}
		return
	}
	defer s.waiting.Add(-1)
	s.count.coldWaits.Add(1)
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	handOver := time.Now().Add(min(handOverWait, wait/2))

	waits := make([]await, 0, len(cold))
	p := parked{s: s, w: w}
	defer p.leave()
	var turn bool
	for {
		// The lease, the section and the caller's patience are looked at again after each wait.
		news := s.news.wait() // before looking, so that no change is missed
		p.begin(turn)
		if !turn {
			cold = p.unpark(cold, asks)
		}
		s.count.coldLooks.Add(uint64(len(cold)))
		if cold = s.passCold(w, asks, out, cold); len(cold)+len(p.asks) == 0 {
			p.end(asks)
			return
		}
		waits = waits[:0]
		for _, i := range cold {
			if p.behind.has(asks[i].key, asks, p.fresh) {
				p.park(i, nil)
				continue
			}
			aw, fail := s.want(w, &asks[i], handOver, p.mayTake)
			switch {
			case fail != nil:
				out[i].fail = fail
			case aw.room:
				p.park(i, aw.late)
			default:
				aw.ask = i
				waits = append(waits, aw)
			}
		}
		waits = s.wantParked(w, &p, asks, out, handOver, waits)
		p.end(asks)
		cold, turn = s.awaitAll(ctx, waits, &p, news, asks, out, cold[:0])
	}
}

// wantParked has keys raised for which there was no room before, one by one until
// there is none again, if it is the request's turn.
func (s *Server) wantParked(w *world, p *parked, asks []ask, out []answer, handOver time.Time, waits []await) []await {
	for len(p.asks) > 0 && p.turn {
		i := p.asks[0]
		s.count.coldLooks.Add(1)
		aw, fail := s.want(w, &asks[i], handOver, true)
		if aw.room {
			p.full(aw.late)
			break
		}
		p.asks = p.asks[1:]
		if fail != nil {
			out[i].fail = fail
			continue
		}
		aw.ask = i
		waits = append(waits, aw)
	}
	return waits
}

// passCold is pass for keys that needed more than the hot path. Unlike it, it
// knows of keys with an undeclared hole and of keys at the end of their numbers.
func (s *Server) passCold(w *world, asks []ask, out []answer, todo []int) (rest []int) {
	in := s.arena.Guard().Enter()
	defer in.Exit()
	alive, ours := s.session.Alive(), w.ranges.Load()
	var behind behind
	rest = todo[:0]
	for _, i := range todo {
		a := &asks[i]
		sec := w.section(a.key)
		switch {
		case behind.has(a.key, asks, rest) || !sec.open.Load() || !ours.has(a.key):
		case !alive:
			out[i].fail = errLeaseExpired
			continue
		case s.takeAgain(w, sec, a, &out[i], in) || s.takeFirst(w, sec, a, &out[i], in):
			continue
		}
		rest = append(rest, i)
	}
	return rest
}

// takeAgain is take for a key that had to wait.
func (s *Server) takeAgain(w *world, sec *section, a *ask, out *answer, in arena.Token) bool {
	cell, ok := s.arena.Find(a.key)
	return ok && s.take(w, sec, a, cell, out, in)
}

// takeFirst issues the first numbers after a hole, together with the hole, and
// only then shows the key to the hot path; or says that a key has come to its
// end. It needs the guard, and the lease alive.
func (s *Server) takeFirst(w *world, sec *section, a *ask, out *answer, in arena.Token) bool {
	cell, ok := s.arena.Find(a.key)
	if !ok {
		return false
	}
	sec.mu.Lock()
	defer sec.mu.Unlock()
	if !sec.servingAt(w, sec.epoch) {
		return false
	}
	n := ids.Seq(a.n)
	h, ok := sec.holes[a.key]
	if !ok {
		cur, bound, closed := cell.Load()
		if bound != 0 && !closed && ids.MaxSeq-cur < n {
			out.fail = errExhausted
			return true
		}
		return false
	}
	if h.bound-h.floor < n {
		if ids.MaxSeq-h.floor < n {
			out.fail = errExhausted
			return true
		}
		return false
	}
	first, fail := a.extendTakeNoted(cell, h.floor, h.bound)
	if fail != nil {
		out.fail = fail
		return true
	}
	if first == 0 {
		return false
	}
	delete(sec.holes, a.key)
	out.first, out.holeFrom, out.holeTo = first, h.from, h.to
	w.taken.add(in, sec.no, uint64(n))
	s.count.discontinuities.Add(1)
	return true
}

// want has a key raised, and says what to wait for. mayTake: a page, if it needs one.
func (s *Server) want(w *world, a *ask, handOver time.Time, mayTake bool) (await, *Failure) {
	sec := w.section(a.key)
	sec.mu.Lock()
	defer sec.mu.Unlock()
	ours := w.ranges.Load()
	if a.refused {
		// The store knows more of the ranges than we do: look again when we may have heard.
		a.refused = false
		return await{until: time.Now().Add(min(movingRetryMin<<min(a.refusals, 10), movingRetryMax)), late: errMoving}, nil
	}
	if ours.isFrozen(a.key) {
		return await{until: time.Now().Add(s.cfg.MaxWait), late: errMoving}, nil
	}
	if !sec.servingAt(w, sec.epoch) || !ours.has(a.key) {
		if fail, stay := s.elsewhere(w, sec, a.key); !stay || !time.Now().Before(handOver) {
			return await{}, fail
		}
		return await{until: handOver}, nil
	}
	if h, ok := sec.holes[a.key]; ok && h.bound-h.floor >= ids.Seq(a.n) {
		// It came in since we looked.
		return await{soon: closedChan, until: handOver}, nil
	}
	e := sec.extending[a.key]
	if e == nil {
		// Room for the key first: what cannot be kept must not be acquired.
		if aw, fail, stay := s.ensure(w, sec, a, mayTake); fail != nil || stay {
			return aw, fail
		}
		e = &extend{s: s, w: w, sec: sec, key: a.key, epoch: sec.epoch, done: make(chan struct{})}
		sec.extending[a.key] = e
	}
	e.need = max(e.need, s.roomFor(w, a))
	if !e.urgent {
		if err := s.queue.Submit(raise.Urgent, &ticket{e: e}); err != nil {
			if e.queued {
				return await{raising: e}, nil // as a prefetch; better than nothing
			}
			sec.forget(e)
			return await{}, submitFailure(err)
		}
		e.urgent, e.queued = true, true
		s.count.raises.Add(1)
	}
	return await{raising: e}, nil
}

// ensure has the arena hold the key, open. stay: wait first, for room or for the
// key's hand-back, and look again. It needs sec.mu, with the section serving.
func (s *Server) ensure(w *world, sec *section, a *ask, mayTake bool) (aw await, fail *Failure, stay bool) {
	k := a.key
	patience := time.Now().Add(s.cfg.MaxWait)
	if sec.doubted[k] {
		return await{}, errUntrusted, false
	}
	if ev := sec.returning[k]; ev != nil {
		return await{soon: ev.done, until: patience}, nil, true
	}
	defer s.arena.Guard().Enter().Exit()
	ensure := s.arena.Ensure
	if !mayTake && s.cfg.ArenaHighWater >= 0 {
		ensure = s.arena.EnsureInPlace
	}
	cell, err := ensure(k)
	var full *arena.FullError
	switch {
	case err == nil:
	case errors.Is(err, arena.ErrNoPage):
		return await{room: true}, nil, true
	case errors.As(err, &full) && s.cfg.ArenaHighWater >= 0:
		return await{room: true, late: ensureFailure(err)}, nil, true
	default:
		return await{}, ensureFailure(err), false
	}
	switch cur, bound, closed := cell.Load(); {
	case closed && bound == 0:
		s.forgetKey(k) // nothing was issued from it
		return await{soon: closedChan, until: patience}, nil, true
	case !closed && bound != 0 && bound-cur >= ids.Seq(a.n):
		// Others had it raised since we looked.
		return await{soon: closedChan, until: patience}, nil, true
	case closed:
		// A process before us closed it, and may not have handed it back.
		ev := s.closeKey(w, sec, k, cell)
		if err := s.queue.Submit(raise.HandBack, ev); err != nil {
			return await{}, submitFailure(err), false
		}
		return await{soon: ev.done, until: patience}, nil, true
	}
	return await{}, nil, false
}

// The pauses of callers whose key the store refuses because its range is moving.
const (
	movingRetryMin = 2 * time.Millisecond
	movingRetryMax = 50 * time.Millisecond
)

// roomFor is how many numbers the next raise must ask for, so that the ask gets
// its own. If the last raise asked for enough, and others were faster while it was
// under way, as many as they took are asked for twice over: an ask for more than
// a step would else never come through beside a stream of small ones.
func (s *Server) roomFor(w *world, a *ask) ids.Seq {
	n := ids.Seq(a.n)
	if a.raised >= n+a.spare {
		defer s.arena.Guard().Enter().Exit()
		if cell, ok := s.arena.Find(a.key); ok {
			if cur, bound, closed := cell.Load(); !closed && bound != 0 && bound-cur < n {
				// No more than a step is put at risk for it.
				a.spare = min(2*(a.spare+n-(bound-cur)), w.stepsOf(a.key).steps.Largest())
			}
		}
	}
	return min(n+a.spare, ids.MaxSeq)
}

var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// prefetch has a key raised that still has numbers. Nobody waits for it.
func (s *Server) prefetch(w *world, sec *section, k ids.Key) {
	sec.mu.Lock()
	defer sec.mu.Unlock()
	if !sec.servingAt(w, sec.epoch) || sec.extending[k] != nil || sec.returning[k] != nil {
		return
	}
	e := &extend{s: s, w: w, sec: sec, key: k, epoch: sec.epoch, done: make(chan struct{}), queued: true}
	if s.queue.Submit(raise.Prefetch, &ticket{e: e}) != nil {
		return // the next halving asks again
	}
	sec.extending[k] = e
	s.count.prefetches.Add(1)
}

// elsewhere says where a key is served that is not served here. stay: nobody
// else is known to serve it, and the section is about to be ours, or about to be
// somebody else's, so that waiting a little is better than being sent away. It
// needs sec.mu.
func (s *Server) elsewhere(w *world, sec *section, k ids.Key) (fail *Failure, stay bool) {
	// One look at the table, or an answer would come of two halves of it.
	t := s.hub.Load()
	if !t.Known() {
		return errNotOwner, !w.lost.Load()
	}
	r, err := t.Lookup(k)
	switch {
	case err != nil:
		return failf(seqpb.Code_CODE_NOT_OWNER, "%v", err), false
	case r.Set != w.set && !r.Owned():
		return failf(seqpb.Code_CODE_NOT_OWNER, "the key is served by set %s; its owners are known to its stores %v", r.Set, t.Set(r.Set).Stores), false
	case r.Owned() && r.Owner.Session != w.session && r.Owner.Addr != s.cfg.Addr:
	case w.lost.Load() || r.Owned() && r.Owner.Session != w.session:
		// Also when it is a session that a process before us had: nobody serves it
		// until its lease has run out.
		return errNotOwner, false
	default:
		return errNotOwner, r.Owned() || sec.phase == closing
	}
	return &Failure{
		Code: seqpb.Code_CODE_NOT_OWNER, Owner: r.Owner.Addr, Set: r.Set, Epoch: r.Epoch,
		Message: "the key is served by " + r.Owner.ID + " of set " + r.Set,
	}, false
}

func ensureFailure(err error) *Failure {
	var full *arena.FullError
	if errors.As(err, &full) {
		return failf(seqpb.Code_CODE_BUSY, "%v", full)
	}
	// The section was closed, or the arena reset, this moment.
	return failf(seqpb.Code_CODE_NOT_OWNER, "%v", err)
}

func submitFailure(err error) *Failure {
	if errors.Is(err, raise.ErrClosed) {
		return errStopping
	}
	return failf(seqpb.Code_CODE_BUSY, "%v: back off and try again", err)
}

// tooLate is the failure of an ask whose time ran out before it had numbers.
func (s *Server) tooLate(err error) *Failure {
	if s.session.Leader() == "" {
		return failf(seqpb.Code_CODE_NOT_READY, "the key has no numbers here and the store group has no reachable leader: %v", err)
	}
	return failf(seqpb.Code_CODE_BUSY, "the store group did not raise the key's bound in time: %v", err)
}
