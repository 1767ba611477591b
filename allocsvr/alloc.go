package allocsvr

import (
	"context"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/dedupe"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// ask is one key of a request.
type ask struct {
	key ids.Key
	n   uint32
	// id of the request, if it has one; then token is the right to carry it out.
	id    *[requestIDBytes]byte
	token *dedupe.Token
	// raised is what the raise that it waited for last asked for, and spare what
	// the next one is to ask for beyond n.
	raised, spare ids.Seq
	// refused: the store did not take its last raise, since the range is moving;
	// refusals counts those.
	refused  bool
	refusals uint8
}

// answer to an ask. Exactly one of first and fail is set.
type answer struct {
	first ids.Seq
	// holeFrom..holeTo may never have been issued; holeTo is first−1, or 0 for no hole.
	holeFrom, holeTo ids.Seq
	replayed         bool
	// afterHole: a replayed answer whose hole is still to be looked up.
	afterHole bool
	fail      *Failure
}

// allocate answers every ask. A key that is asked for twice gets its numbers in
// the order of the asks. wait bounds the time spent waiting.
func (s *Server) allocate(ctx context.Context, w *world, asks []ask, out []answer, wait time.Duration) {
	if cold := s.pass(w, asks, out); len(cold) > 0 {
		s.allocateCold(ctx, w, asks, out, cold, wait)
	}
}

// pass is the hot path: no lock, no wait, no allocation per key. It answers what
// it can and lists the rest.
//
// The guard is what a close waits for: it holds that whoever saw the section open
// has also finished taking. The lease is looked at inside it, after the request
// is in hand, so a process that was paused before this line serves nothing.
func (s *Server) pass(w *world, asks []ask, out []answer) (cold []int) {
	for i := range asks[:min(hintAhead, len(asks))] {
		s.arena.Hint(asks[i].key)
	}
	in := s.arena.Guard().Enter()
	defer in.Exit()
	alive, ours := s.session.Alive(), w.ranges.Load()
	var behind keySet // keys of asks in cold: a later ask of one waits its turn
	for i := range asks {
		if i+hintAhead < len(asks) {
			s.arena.Hint(asks[i+hintAhead].key)
		}
		a := &asks[i]
		sec := w.section(a.key)
		if len(cold) > 0 && behind.has(a.key) || !sec.open.Load() || !ours.has(a.key) {
			cold = append(cold, i)
			behind.add(a.key, len(asks))
			continue
		}
		if !alive {
			out[i].fail = errLeaseExpired
			continue
		}
		if !s.take(w, sec, a, &out[i], in) {
			cold = append(cold, i)
			behind.add(a.key, len(asks))
		}
	}
	return cold
}

// hintAhead is how many keys' memory is on its way while one is served: about
// what a processor can have under way.
const hintAhead = 8

// take issues the numbers if the key has them. It needs the guard, the section
// open, and the lease alive.
func (s *Server) take(w *world, sec *section, a *ask, out *answer, in arena.Token) bool {
	cell, ok := s.arena.Find(a.key)
	if !ok {
		return false
	}
	first, left, r, fail := a.takeNoted(cell)
	if fail != nil {
		out.fail = fail
		return true
	}
	if r != arena.TakeOK {
		return false
	}
	out.first = first
	w.taken.add(in, sec.no, uint64(a.n))
	if st := w.stepsOf(a.key); left < st.half && raise.RunsLow(st.policy, a.key, left, ids.Seq(a.n), st.half) {
		s.prefetch(w, sec, a.key)
	}
	return true
}

// keySet is a set of keys that costs nothing while it is empty, and that a
// request of one key never fills.
type keySet map[ids.Key]struct{}

func (s *keySet) add(k ids.Key, of int) {
	if of == 1 {
		return
	}
	if *s == nil {
		*s = make(keySet)
	}
	(*s)[k] = struct{}{}
}

func (s keySet) has(k ids.Key) bool { _, ok := s[k]; return ok }
