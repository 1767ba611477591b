package check

import (
	"fmt"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// lossAllowed is the most that may be lost of the key by what was declared at some
// time (G4), as docs/steps.md promises it: for each loss before, a step, and what
// the largest call asked for that then waited for a raise, or had given that up;
// and the numbers of calls whose answer nobody received.
func (c *checker) lossAllowed(l *line, declared int64) int64 {
	allowed := int64(0)
	for i := range c.h.Faults {
		if f := &c.h.Faults[i]; c.mayHaveCost(f, 0, declared) {
			allowed += int64(f.Losses) * (c.o.Step + c.largestWaiting(l, f, declared))
		}
	}
	for _, u := range l.unknown {
		if u.call < declared {
			allowed += u.n
		}
	}
	return allowed
}

// largestWaiting is the most that a call asked for which may have waited for a
// raise when the fault took the owner along, or had waited in vain before.
func (c *checker) largestWaiting(l *line, f *history.Fault, declared int64) int64 {
	n := int64(0)
	for _, i := range l.allocs {
		switch o := &c.h.Ops[i]; o.Outcome {
		case history.Failed:
			if o.Call < declared {
				n = max(n, int64(o.N))
			}
		case history.OK:
			if o.Call < f.End && o.Return > f.Start {
				n = max(n, int64(o.N))
			}
		}
	}
	return n
}

// checkLoss counts what nobody received of the declared holes. A planned operation
// may have cost nothing.
func (c *checker) checkLoss(l *line) {
	total := int64(0)
	done := int64(0) // numbers up to here are counted
	i := 0
	for _, h := range l.holes {
		c.r.DeclaredGaps++
		from := max(h.from, done+1)
		if h.lossless || from > h.to {
			continue
		}
		done = h.to
		// What was issued before the loss lies in the hole but is not lost.
		lost := h.to - from + 1
		for ; i < len(l.items) && l.items[i].hi <= h.to; i++ {
			if it := &l.items[i]; !it.read && it.hi >= from {
				lost -= it.hi - max(it.lo, from) + 1
			}
		}
		total += max(lost, 0)
		if allowed := c.lossAllowed(l, h.declared); total > allowed {
			var ops []int
			if h.op >= 0 {
				ops = append(ops, h.op)
			}
			losses := c.lossesBetween(0, h.declared)
			c.fail(ExcessLoss, 1, l.key, fmt.Sprintf("hole %d..%d brings the numbers lost to %d; %d losses allow %d", h.from, h.to, total, losses, allowed), ops...)
			total = allowed
		}
	}
	c.r.NumbersLost += total
}
