package allocsvr

import (
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/router"
	"github.com/seqsvr/seqsvr/sets"
)

// ranges is what may be served here of all positions: what the Set map gives to
// the Set, without what is frozen for a move to another. Two Sets must never serve
// one key. It is not changed once made.
type ranges struct {
	// whole: every position of every space may be served, so that no key needs a look.
	whole bool
	// spaces has the served ranges of each space, for a search that touches little memory.
	spaces []spaceRanges
	// own is the Set's by the map; frozen is a part of it, or was until a moment ago.
	own, frozen []sets.Range
}

// spaceRanges are ascending and do not overlap: lo[i]..last[i].
type spaceRanges struct {
	space    ids.SpaceID
	lo, last []ids.Position
}

func rangesOf(t *router.Table, set string, frozen []sets.Range) *ranges {
	r := &ranges{whole: t.Known() && len(frozen) == 0, own: sets.Normal(t.Map.Owned(set)), frozen: frozen}
	for _, e := range t.Map.Entries {
		r.whole = r.whole && e.Set == set
	}
	served := r.own
	for _, f := range frozen {
		served = sets.Without(served, f)
	}
	for _, s := range served {
		if n := len(r.spaces); n == 0 || r.spaces[n-1].space != s.Space {
			r.spaces = append(r.spaces, spaceRanges{space: s.Space})
		}
		sp := &r.spaces[len(r.spaces)-1]
		sp.lo, sp.last = append(sp.lo, s.Lo), append(sp.last, s.Last)
	}
	return r
}

// has tells whether the key may be served.
func (r *ranges) has(k ids.Key) bool {
	if r == nil {
		return false
	}
	return r.whole || r.search(k)
}

func (r *ranges) search(k ids.Key) bool {
	p := k.Position()
	for i := range r.spaces {
		sp := &r.spaces[i]
		if sp.space != k.Space {
			continue
		}
		// The last range that starts at or before the position is the only candidate.
		lo, n := 0, len(sp.lo)
		for n > 0 {
			half := n / 2
			if sp.lo[lo+half] <= p {
				lo += half + 1
				n -= half + 1
			} else {
				n = half
			}
		}
		return lo > 0 && p <= sp.last[lo-1]
	}
	return false
}

// isFrozen: the key is on its way to another Set, or stays after all; it is not
// known yet which.
func (r *ranges) isFrozen(k ids.Key) bool {
	if r == nil {
		return false
	}
	for _, f := range r.frozen {
		if f.Contains(k.Space, k.Position()) {
			return true
		}
	}
	return false
}

// gained lists what next has of the map and r has not: keys whose past is unknown
// here. Without an r, one that has served nothing, all of a map that was ever
// changed counts.
func (r *ranges) gained(next *ranges, mapVersion uint64) []sets.Range {
	if r == nil {
		if mapVersion <= 1 {
			return nil
		}
		return next.own
	}
	more := next.own
	for _, o := range r.own {
		more = sets.Without(more, o)
	}
	return more
}

// eachSection calls f with the sections that a range has positions of.
func eachSection(r sets.Range, sections int, f func(ids.Section)) {
	first, last := uint64(r.Lo)>>ids.BlockShift, uint64(r.Last)>>ids.BlockShift
	n := uint64(sections)
	if last-first < n {
		n = last - first + 1
	}
	for i := range n {
		f(ids.Section((first + i) % uint64(sections)))
	}
}
