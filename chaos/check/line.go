package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// line is one key's line of numbers: who was given what, and when.
type line struct {
	key string
	// items are the allocations and reads that were answered, in the order of
	// their numbers; an allocation before the reads of its last number.
	items []item
	// deadline[i] is the earliest return of items[i:]: what comes before
	// items[i] in the order of numbers was called before that.
	deadline []int64
	// unknown are operations that may have consumed numbers unseen.
	unknown []unknown
	// holes are what was declared, each once, by their last number.
	holes []hole
	// allocs are all allocations that were called, whatever came of them.
	allocs []int
}

// item is one effect on the line. An allocation took lo..hi; a read saw hi and took nothing.
type item struct {
	read      bool
	lo, hi    int64
	call, ret int64
	op        int
	hasHole   bool
}

// below is the last number that must not be missing before the item.
func (it *item) below() int64 {
	if it.read {
		return it.hi
	}
	return it.lo - 1
}

// unknown may have consumed n numbers, or none, at any time after call.
type unknown struct {
	n    int64
	call int64
}

// hole is a declared discontinuity, inclusive.
type hole struct {
	from, to int64
	// declared is when it was first known; forever if only the ledger has it.
	declared int64
	// lossless: an operator's advance, which costs nobody anything.
	lossless bool
	// op declared it; -1 if only the ledger has it.
	op int
}

// line lays a key's operations out, refusing malformed answers and joining
// the answers of one request id.
func (c *checker) line(k *keyOps) *line {
	l := &line{key: k.key}
	var requests map[history.RequestID][]int
	// refused is when a request was first called without effect. A copy of it that
	// the network kept may take effect later, as the one allocation of its id.
	refused := map[history.RequestID]int64{}
	for _, i := range k.ops {
		o := &c.h.Ops[i]
		if o.Kind == history.Alloc {
			l.allocs = append(l.allocs, i)
		}
		switch o.Outcome {
		case history.Failed:
			c.r.Failed++
			if at, ok := refused[o.Request]; !o.Request.IsZero() && (!ok || o.Call < at) {
				refused[o.Request] = o.Call
			}
			continue
		case history.Unknown:
			c.r.Unknown++
		case history.OK:
			if why := malformed(o); why != "" {
				c.fail(Malformed, 1, k.key, why, i)
				continue
			}
		}
		if o.Kind == history.Current {
			if o.Outcome == history.OK {
				l.items = append(l.items, item{read: true, hi: o.Value, call: o.Call, ret: o.Return, op: i})
			}
			continue
		}
		switch {
		case !o.Request.IsZero():
			if requests == nil {
				requests = map[history.RequestID][]int{}
			}
			requests[o.Request] = append(requests[o.Request], i)
		case o.Outcome == history.OK:
			c.r.Allocated += int(o.Count)
			l.items = append(l.items, item{lo: o.First, hi: o.Last(), call: o.Call, ret: o.Return, op: i, hasHole: o.HoleTo != 0})
		default:
			l.unknown = append(l.unknown, unknown{int64(o.N), o.Call})
		}
		if o.Outcome == history.OK && o.HoleTo != 0 {
			l.holes = append(l.holes, hole{from: o.HoleFrom, to: o.HoleTo, declared: o.Return, op: i})
		}
	}
	for id, ops := range requests {
		asked := int64(forever)
		if at, ok := refused[id]; ok {
			asked = at
		}
		c.joinRequest(l, ops, asked)
	}
	for _, g := range k.gaps {
		l.holes = append(l.holes, hole{from: g.From, to: g.To, declared: forever, lossless: g.Cause == history.CauseAdvance, op: -1})
	}
	l.holes = distinct(l.holes)
	slices.SortFunc(l.items, func(a, b item) int {
		return cmp.Or(cmp.Compare(a.hi, b.hi), readsLast(a, b), cmp.Compare(a.lo, b.lo), cmp.Compare(a.call, b.call))
	})
	l.deadline = make([]int64, len(l.items)+1)
	l.deadline[len(l.items)] = forever
	for i := len(l.items) - 1; i >= 0; i-- {
		l.deadline[i] = min(l.deadline[i+1], l.items[i].ret)
	}
	slices.SortFunc(l.unknown, func(a, b unknown) int { return cmp.Compare(a.call, b.call) })
	return l
}

func readsLast(a, b item) int {
	switch {
	case a.read == b.read:
		return 0
	case a.read:
		return 1
	}
	return -1
}

// malformed says what is wrong with an answer by itself.
func malformed(o *history.Op) string {
	if o.Kind == history.Current {
		if o.Value < 0 {
			return fmt.Sprintf("a read gave %d", o.Value)
		}
		return ""
	}
	switch {
	case o.First < 1:
		return fmt.Sprintf("first is %d", o.First)
	case o.Count != o.N:
		return fmt.Sprintf("%d numbers were asked for, %d were given", o.N, o.Count)
	case o.First > math.MaxInt64-int64(o.Count)+1:
		return "the numbers pass 2^63-1"
	case o.Replayed && o.Request.IsZero():
		return "replayed, but there was no request id"
	case o.HoleTo != 0 && (o.HoleFrom < 1 || o.HoleFrom > o.HoleTo):
		return fmt.Sprintf("discontinuity %d..%d", o.HoleFrom, o.HoleTo)
	case o.HoleTo != 0 && o.HoleTo != o.First-1:
		return fmt.Sprintf("the discontinuity ends at %d, not just before first %d", o.HoleTo, o.First)
	}
	return ""
}

// distinct joins the declarations of one hole, and sorts by last number.
func distinct(hs []hole) []hole {
	slices.SortFunc(hs, func(a, b hole) int {
		return cmp.Or(cmp.Compare(a.to, b.to), cmp.Compare(a.from, b.from), cmp.Compare(a.declared, b.declared))
	})
	var out []hole
	for _, h := range hs {
		if n := len(out); n > 0 && h.from == out[n-1].from && h.to == out[n-1].to {
			out[n-1].lossless = out[n-1].lossless || h.lossless
			continue
		}
		out = append(out, h)
	}
	return out
}
