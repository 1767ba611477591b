package check

import "fmt"

// lossAllowed is the most that one loss may cost the key: a step, or what one
// operation asked for where that was more.
func (c *checker) lossAllowed(l *line) int64 { return max(c.o.Step, l.nMax) }

// checkLoss counts what nobody received of the declared holes (G4). Each loss
// before a hole was declared may have cost the key one step, a planned
// operation nothing.
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
		losses := c.lossesBetween(0, h.declared)
		if allowed := c.lossAllowed(l) * int64(losses); total > allowed {
			var ops []int
			if h.op >= 0 {
				ops = append(ops, h.op)
			}
			c.fail(ExcessLoss, 1, l.key, fmt.Sprintf("hole %d..%d brings the numbers lost to %d; %d losses allow %d", h.from, h.to, total, losses, allowed), ops...)
			total = allowed
		}
	}
	c.r.NumbersLost += total
}
