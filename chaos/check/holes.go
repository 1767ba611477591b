package check

import (
	"cmp"
	"fmt"
	"slices"
)

// piece is a run of numbers that nobody received and nothing declared.
type piece struct {
	from, to int64
	// before is the item that shows it: the next one up the line.
	before int
	// tail: only reads come after it, so that a loss there is not declared yet.
	tail bool
}

// checkHoles accounts for every number below the highest that was seen (G3).
func (c *checker) checkHoles(l *line) {
	c.checkAnnounced(l)
	pieces := c.missing(l)
	if len(pieces) == 0 {
		return
	}
	f := newFiller(l.unknown)
	tail := int64(0)
	for _, p := range pieces {
		deadline := l.deadline[p.before]
		if f.add(p.to-p.from+1, deadline) {
			continue
		}
		it := &l.items[p.before]
		if p.tail {
			// The bound of a lost owner: the next allocation will declare the hole.
			tail += p.to - p.from + 1
			if c.lossesBetween(0, it.ret) > 0 && tail <= c.lossAllowed(l, it.ret) {
				continue
			}
			c.fail(FutureRead, 1, l.key, fmt.Sprintf("read %d, but %d..%d cannot have been issued", it.hi, p.from, p.to), it.op)
			continue
		}
		c.fail(Undeclared, 1, l.key, fmt.Sprintf("%d..%d are missing before %d", p.from, p.to, it.hi), it.op)
	}
	if f.unproven {
		c.r.Unproven++
	}
}

// checkAnnounced finds holes whose first answer hid them: numbers go on just
// after a hole, and nobody is known to have got the hole's last one.
func (c *checker) checkAnnounced(l *line) {
	if len(l.holes) == 0 {
		return
	}
	high := int64(0) // the highest number that somebody is known to have got
	for i := range l.items {
		it := &l.items[i]
		if it.read {
			continue
		}
		if h, ok := l.holeEnding(it.lo - 1); ok && !it.hasHole && high < h.to {
			c.fail(Unannounced, 1, l.key, fmt.Sprintf("%d..%d is a hole, but %d came without saying so", h.from, h.to, it.lo), it.op)
		}
		high = max(high, it.hi)
	}
}

func (l *line) holeEnding(at int64) (hole, bool) {
	i, ok := slices.BinarySearchFunc(l.holes, at, func(h hole, n int64) int { return cmp.Compare(h.to, n) })
	if !ok {
		return hole{}, false
	}
	return l.holes[i], true
}

// missing lists what lies between the items and in no hole, in the order of numbers.
func (c *checker) missing(l *line) []piece {
	lastAlloc := -1
	for i := range l.items {
		if !l.items[i].read {
			lastAlloc = i
		}
	}
	var out []piece
	high := int64(0)
	for i := range l.items {
		it := &l.items[i]
		if it.below() > high {
			for _, g := range c.outsideHoles(l, high+1, it) {
				out = append(out, piece{g.from, g.to, i, i > lastAlloc})
			}
		}
		high = max(high, it.hi)
	}
	return out
}

// outsideHoles cuts out of what is below the item the holes that end there. One
// that ends further up does not count: numbers go on only after its end, so that
// what is missing before a known number inside it must have another reason. Only
// one of several losses covers all of itself.
func (c *checker) outsideHoles(l *line, from int64, it *item) []hole {
	var out []hole
	to := it.below()
	i, _ := slices.BinarySearchFunc(l.holes, from, func(h hole, n int64) int { return cmp.Compare(h.to, n) })
	for ; i < len(l.holes); i++ {
		h := l.holes[i]
		if h.to > to && !c.ofSeveral(l, h, it) {
			continue
		}
		if h.from > from {
			out = append(out, hole{from: from, to: min(h.from-1, to)})
		}
		if h.to >= to {
			return out
		}
		from = max(from, h.to+1)
	}
	return append(out, hole{from: from, to: to})
}

// ofSeveral reports whether a hole around the item may be of more than one loss:
// because it is longer than a step, or because the item is between two and shows
// where the first one's numbers end: a read, or an allocation after one that was
// told of them and never heard. They were not declared to anybody before the
// second, which declares all of them.
func (c *checker) ofSeveral(l *line, h hole, it *item) bool {
	return h.to-h.from+1 > c.o.Step ||
		(it.read || !it.hasHole && l.unheardBefore(it)) &&
			c.lossesBetween(0, it.ret) > 0 && c.lossesBetween(it.call, h.declared) > 0 && c.lossesBetween(0, h.declared) > 1
}

// unheardBefore reports whether an allocation whose answer nobody got may have
// come before the item.
func (l *line) unheardBefore(it *item) bool {
	return len(l.unknown) > 0 && l.unknown[0].call < it.ret
}

// searchSteps bounds the search of a filler.
const searchSteps = 100_000

// filler decides whether operations of unknown outcome can have taken exactly
// the missing numbers: each took all of its n or nothing, before the deadline
// of the piece that it lies in. Deadlines grow with the pieces, so that who is
// eligible for one piece is so for all later ones, and counts by n are enough.
type filler struct {
	unknown []unknown
	sizes   []int64 // distinct n
	pieces  []need
	// unproven: the search was cut, and the pieces accepted.
	unproven bool
}

type need struct {
	length   int64
	eligible []int64 // by size: how many were called before the deadline
}

func newFiller(u []unknown) *filler {
	f := &filler{unknown: u}
	for _, x := range u {
		f.sizes = append(f.sizes, x.n)
	}
	slices.Sort(f.sizes)
	f.sizes = slices.Compact(f.sizes)
	slices.Reverse(f.sizes)
	return f
}

// add says whether one more piece can be filled besides those already
// accepted; if not, it is left out.
func (f *filler) add(length, deadline int64) bool {
	n := need{length: length, eligible: make([]int64, len(f.sizes))}
	for _, u := range f.unknown {
		if u.call > deadline {
			break
		}
		i, _ := slices.BinarySearchFunc(f.sizes, u.n, func(a, b int64) int { return cmp.Compare(b, a) })
		n.eligible[i]++
	}
	f.pieces = append(f.pieces, n)
	steps := searchSteps
	if f.fill(0, f.pieces[0].length, 0, make([]int64, len(f.sizes)), &steps) {
		return true
	}
	if steps <= 0 {
		f.unproven = true
		return true
	}
	f.pieces = f.pieces[:len(f.pieces)-1]
	return false
}

// fill searches: `left` numbers of piece p are open, sizes before s are decided.
func (f *filler) fill(p int, left int64, s int, used []int64, steps *int) bool {
	if *steps--; *steps <= 0 {
		return false
	}
	if left == 0 {
		if p+1 == len(f.pieces) {
			return true
		}
		return f.fill(p+1, f.pieces[p+1].length, 0, used, steps)
	}
	if s == len(f.sizes) {
		return false
	}
	size := f.sizes[s]
	most := min(f.pieces[p].eligible[s]-used[s], left/size)
	least := int64(0)
	if s+1 == len(f.sizes) { // the last size must fill the rest
		if left%size != 0 || left/size > most {
			return false
		}
		least = left / size
	}
	for n := most; n >= least; n-- {
		used[s] += n
		if f.fill(p, left-n*size, s+1, used, steps) {
			used[s] -= n
			return true
		}
		used[s] -= n
	}
	return false
}
