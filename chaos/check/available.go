package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// blameless errors say nothing about availability: the caller was wrong, or left.
var blameless = map[string]bool{"invalid_argument": true, "exhausted": true, "unauthorized": true, "canceled": true}

// wait is how long a caller of the key waited for the next success of anybody
// on it: from its call to the earliest success at or after that.
type wait struct {
	call, success int64
	op            int
}

// checkAvailable measures, per fault, how long the key went unserved (G5).
func (c *checker) checkAvailable(k *keyOps) {
	if len(c.h.Faults) == 0 {
		return
	}
	waits := c.waits(k)
	for fi := range c.h.Faults {
		f := &c.h.Faults[fi]
		until := c.effects(f)
		i, _ := slices.BinarySearchFunc(waits, f.Start, func(w wait, t int64) int { return cmp.Compare(w.success, t) })
		worst := wait{op: -1}
		for ; i < len(waits) && waits[i].call <= until; i++ {
			if w := waits[i]; min(w.success, c.end)-w.call > min(worst.success, c.end)-worst.call {
				worst = w
			}
		}
		if worst.op >= 0 {
			c.unserved(k, f, worst)
		}
		if f.Planned {
			c.checkPlanned(k, f, until)
		}
	}
}

// effects is until when calls are put down to a fault: for a while after it was
// lifted, but not once the next one has begun.
func (c *checker) effects(f *history.Fault) int64 {
	until := f.End + int64(c.o.Settle)
	for _, g := range c.h.Faults {
		if g.Start > f.End {
			until = min(until, g.Start)
		}
	}
	return until
}

func (c *checker) unserved(k *keyOps, f *history.Fault, w wait) {
	long := time.Duration(min(w.success, c.end) - w.call)
	c.r.MaxUnavailableMS[f.Name] = max(c.r.MaxUnavailableMS[f.Name], long.Milliseconds())
	limit, limited := c.o.Limits[f.Name]
	switch {
	case w.success == forever:
		c.fail(Unavailable, 1, k.key, fmt.Sprintf("never served again after %s of %s", f.Name, f.Node), w.op)
	case limited && long > limit:
		c.fail(Unavailable, 1, k.key, fmt.Sprintf("not served for %v around %s of %s; at most %v is allowed", long.Round(time.Millisecond), f.Name, f.Node, limit), w.op)
	}
}

// waits lists the key's waits in the order of time, the longest for each success.
func (c *checker) waits(k *keyOps) []wait {
	var calls, successes []int
	for _, i := range k.ops {
		o := &c.h.Ops[i]
		if blameless[o.Err] {
			continue
		}
		calls = append(calls, i)
		if o.Outcome == history.OK {
			successes = append(successes, i)
		}
	}
	ops := c.h.Ops
	slices.SortFunc(calls, func(a, b int) int { return cmp.Compare(ops[a].Call, ops[b].Call) })
	slices.SortFunc(successes, func(a, b int) int { return cmp.Compare(ops[a].Return, ops[b].Return) })
	var out []wait
	s := 0
	for _, i := range calls {
		for s < len(successes) && ops[successes[s]].Return < ops[i].Call {
			s++
		}
		w := wait{call: ops[i].Call, success: forever, op: i}
		if s < len(successes) {
			w.success = ops[successes[s]].Return
		}
		if n := len(out); n == 0 || out[n-1].success != w.success {
			out = append(out, w)
		}
	}
	return out
}

// checkPlanned finds calls that failed because of a planned operation, that
// is, while no fault was going on.
func (c *checker) checkPlanned(k *keyOps, f *history.Fault, until int64) {
	for _, i := range k.ops {
		o := &c.h.Ops[i]
		if o.Outcome == history.OK || blameless[o.Err] || o.Call > until || (o.Return != 0 && o.Return < f.Start) {
			continue
		}
		excused := slices.ContainsFunc(c.h.Faults, func(g history.Fault) bool {
			return !g.Planned && o.Call <= g.End+int64(c.o.Settle) && (o.Return == 0 || o.Return >= g.Start)
		})
		if !excused {
			c.fail(FailedCall, 1, k.key, fmt.Sprintf("a call failed (%s) during %s of %s", cmp.Or(o.Err, "no answer"), f.Name, f.Node), i)
		}
	}
}
