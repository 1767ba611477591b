package check

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// joinRequest makes one item of all operations with one request id: they are
// one allocation, which happened after the first of them was called and before
// the first of its answers. Two different answers are excused only if the window
// of request ids may have been lost between them (see mayHaveForgotten). asked is
// when a copy of it was first sent in vain; forever if none was.
func (c *checker) joinRequest(l *line, ops []int, asked int64) {
	call, end := int64(forever), int64(0)
	var n int64
	var answered []int
	for _, i := range ops {
		o := &c.h.Ops[i]
		call = min(call, o.Call)
		n = max(n, int64(o.N))
		if o.Outcome == history.OK {
			answered = append(answered, i)
			end = max(end, o.Return)
		} else {
			end = forever
		}
	}
	// Each lost window may have let one copy consume numbers that nobody saw. Until an
	// answer that says that nothing was forgotten since the call, none was lost.
	remembered, lost := call, 0
	for _, i := range answered {
		o := &c.h.Ops[i]
		switch {
		case o.WindowSince == 0:
		case saysForgotten(o, call):
			lost++
		default:
			remembered = max(remembered, o.Call)
		}
	}
	lost += c.lossesBetween(remembered, end)
	if len(answered) == 0 {
		lost++
	}
	for range lost {
		l.unknown = append(l.unknown, unknown{n, call})
	}
	slices.SortFunc(answered, func(a, b int) int {
		x, y := &c.h.Ops[a], &c.h.Ops[b]
		return cmp.Or(cmp.Compare(x.First, y.First), cmp.Compare(x.Return, y.Return))
	})
	for i := 0; i < len(answered); {
		o := &c.h.Ops[answered[i]]
		it := item{lo: o.First, hi: o.Last(), call: call, ret: o.Return, op: answered[i]}
		originals, forgot := 0, true
		j := i
		for ; j < len(answered) && c.h.Ops[answered[j]].First == o.First; j++ {
			p := &c.h.Ops[answered[j]]
			it.hasHole = it.hasHole || p.HoleTo != 0
			if !p.Replayed {
				originals++
			}
			forgot = forgot && c.mayHaveForgotten(p, call)
			if p.Count != o.Count {
				c.fail(Replay, 1, l.key, fmt.Sprintf("request %s was answered with %d and with %d numbers", o.Request, o.Count, p.Count), answered[i], answered[j])
			}
		}
		if originals == 0 {
			it.call = min(it.call, asked)
		}
		if originals > 1 {
			c.fail(Replay, 1, l.key, fmt.Sprintf("request %s got %d twice, both times as if new", o.Request, o.First), answered[i:j]...)
		}
		if i > 0 && !forgot {
			p := &c.h.Ops[answered[i-1]]
			c.fail(Replay, 1, l.key, fmt.Sprintf("request %s was answered with %d and with %d", o.Request, p.First, o.First), answered[i-1], answered[i])
		}
		c.r.Allocated += int(o.Count)
		l.items = append(l.items, it)
		i = j
	}
}

// millisecond is how exactly a server says since when it remembers.
const millisecond = 1_000_000

// mayHaveForgotten says whether a request that was called then, and had an answer,
// may have had another one as this answer tells. Numbers grow, so it is the one with
// the larger numbers that somebody must have forgotten the other for: its server at
// first, and whoever remembers it has its window. An answer that says since when its
// server remembers is taken at its word, whatever was lost: a loss of another owner,
// or before, or after, excuses nothing. To others any loss is an excuse between the
// call and the answer, since clients do not know whose the key was.
func (c *checker) mayHaveForgotten(answer *history.Op, call int64) bool {
	if answer.WindowSince == 0 {
		return c.lossesBetween(call, answer.Return) > 0
	}
	return saysForgotten(answer, call)
}

// saysForgotten: the server which gave the answer may not have remembered what was
// called then.
func saysForgotten(answer *history.Op, call int64) bool {
	return answer.WindowSince != 0 && answer.WindowSince+millisecond > call
}
