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
	if cold := s.pass(w, asks, out, nil); len(cold) > 0 {
		s.allocateCold(ctx, w, asks, out, cold, wait)
	}
}

// pass is the hot path: no lock, no wait, no allocation per key. It answers what
// it can and adds the rest to cold, which is empty.
//
// The guard is what a close waits for: it holds that whoever saw the section open
// has also finished taking. The lease is looked at inside it, after the request
// is in hand, so a process that was paused before this line serves nothing.
func (s *Server) pass(w *world, asks []ask, out []answer, cold []int) []int {
	in := s.arena.Guard().Enter()
	defer in.Exit()
	var ahead [seekAhead]sought
	for i := range asks[:min(seekAhead, len(asks))] {
		ahead[i].cell, ahead[i].found = s.arena.Seek(asks[i].key)
	}
	alive, ours := s.session.Alive(), w.ranges.Load()
	var behind behind // a later ask of a key in cold waits its turn
	for i := range asks {
		at := &ahead[i%seekAhead]
		key := *at
		if i+seekAhead < len(asks) {
			at.cell, at.found = s.arena.Seek(asks[i+seekAhead].key)
		}
		a := &asks[i]
		sec := w.section(a.key)
		if behind.has(a.key, asks, cold) || !sec.open.Load() || !ours.has(a.key) {
			cold = append(cold, i)
			continue
		}
		if !alive {
			out[i].fail = errLeaseExpired
			continue
		}
		if !key.found || !s.take(w, sec, a, key.cell, &out[i], in) {
			cold = append(cold, i)
		}
	}
	return cold
}

// sought is what Arena.Seek said of a key.
type sought struct {
	cell  arena.Cell
	found bool
}

// seekAhead is how many keys' memory is on its way while one is served: about
// what a processor can have under way.
const seekAhead = 8

// take issues the numbers if the key has them. It needs the guard, the section
// open, and the lease alive.
func (s *Server) take(w *world, sec *section, a *ask, cell arena.Cell, out *answer, in arena.Token) bool {
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

// behind finds the keys of a list of asks that only grows. It costs nothing while
// the list is empty, and allocates only for a long one.
type behind struct {
	keys map[ids.Key]struct{}
	// seen asks of the list are in keys.
	seen int
}

// behindScanned asks are looked through one by one.
const behindScanned = 64

func (b *behind) has(k ids.Key, asks []ask, list []int) bool {
	if len(list) <= behindScanned {
		for _, i := range list {
			if asks[i].key == k {
				return true
			}
		}
		return false
	}
	if b.keys == nil {
		b.keys = make(map[ids.Key]struct{}, 2*len(list))
	}
	for ; b.seen < len(list); b.seen++ {
		b.keys[asks[list[b.seen]].key] = struct{}{}
	}
	_, ok := b.keys[k]
	return ok
}
