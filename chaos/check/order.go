package check

import "fmt"

// checkDuplicates finds numbers that two allocations got (G1).
func (c *checker) checkDuplicates(l *line) {
	// Sorted by last number, an overlap shows against any of the later ones;
	// walking down with the smallest first number so far finds each.
	lowest := -1
	for i := len(l.items) - 1; i >= 0; i-- {
		it := &l.items[i]
		if it.read {
			continue
		}
		if lowest >= 0 && l.items[lowest].lo <= it.hi {
			low := &l.items[lowest]
			from := max(low.lo, it.lo)
			twice := it.hi - from + 1
			c.fail(Duplicate, int(min(twice, 1<<31)), l.key, fmt.Sprintf("%d..%d were issued twice", from, it.hi), it.op, low.op)
		}
		if lowest < 0 || it.lo < l.items[lowest].lo {
			lowest = i
		}
	}
}

// checkOrder finds pairs whose numbers contradict real time (G2): the order of
// numbers must be one in which the operations can have happened. The order is
// total but for reads of the same number, so it is enough that no operation
// was called after one further up the line had returned.
func (c *checker) checkOrder(l *line) {
	later := -1 // which of all above returned first
	lowest := int64(forever)
	var lowestOp int
	for end := len(l.items); end > 0; {
		begin := end - 1
		for begin > 0 && l.items[begin-1].hi == l.items[begin].hi {
			begin--
		}
		reads := -1 // which of the reads of this same number returned first
		for i := begin; i < end; i++ {
			it := &l.items[i]
			if !it.read {
				continue
			}
			c.inOrder(l, i, later)
			if lowest <= it.hi {
				c.fail(TornRead, 1, l.key, fmt.Sprintf("read %d, which is inside one allocation", it.hi), it.op, lowestOp)
			}
			reads = earlier(l, reads, i)
		}
		for i := begin; i < end; i++ {
			if it := &l.items[i]; !it.read {
				c.inOrder(l, i, earlier(l, later, reads))
			}
		}
		for i := begin; i < end; i++ {
			later = earlier(l, later, i)
			if it := &l.items[i]; !it.read && it.lo < lowest {
				lowest, lowestOp = it.lo, it.op
			}
		}
		end = begin
	}
}

// earlier gives which of two items returned first; -1 is none.
func earlier(l *line, i, j int) int {
	if i < 0 || (j >= 0 && l.items[j].ret < l.items[i].ret) {
		return j
	}
	return i
}

// inOrder reports items[i] if it was called after items[above] had returned.
func (c *checker) inOrder(l *line, i, above int) {
	if above < 0 || l.items[above].ret >= l.items[i].call {
		return
	}
	low, high := &l.items[i], &l.items[above]
	kind, detail := Reorder, fmt.Sprintf("%d was issued by a call made after %d had returned", low.hi, high.lo)
	switch {
	case low.read:
		kind, detail = StaleRead, fmt.Sprintf("read %d after %d had been seen", low.hi, high.hi)
	case high.read:
		kind, detail = FutureRead, fmt.Sprintf("read %d before %d was asked for", high.hi, low.lo)
	}
	c.fail(kind, 1, l.key, detail, high.op, low.op)
}
