package check

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqsvr/seqsvr/chaos/history"
)

var everything = oracleParams{keys: 2, ops: 40, nMax: 4, reads: true, unknown: true, requests: true, losses: true, ledger: true}

func TestHistoriesOfACorrectServiceAlwaysPass(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := generate(t, everything)
		if r := Check(h, Options{}); !r.OK {
			t.Fatalf("%v\n%v", r.Err(), dump(h))
		}
	})
}

func dump(h *history.History) string {
	s := ""
	for _, o := range h.Ops {
		s += o.String() + "\n"
	}
	return s
}

// mutation breaks a good history in one place; it gives false where it finds no place.
type mutation struct {
	name   string
	params oracleParams
	apply  func(t *rapid.T, h *history.History) bool
	want   []Kind
}

func TestEachSingleBreachIsCaught(t *testing.T) {
	for _, m := range []mutation{
		{
			name: "a number given twice", params: everything,
			apply: giveTwice, want: []Kind{Duplicate},
		},
		{
			name: "two answers exchanged", params: everything,
			apply: exchange, want: []Kind{Reorder, FutureRead, StaleRead}, // whichever pair shows it first
		},
		{
			name: "a stale read", params: everything,
			apply: readStale, want: []Kind{StaleRead},
		},
		{
			name: "a read from the future", params: everything,
			apply: readFuture, want: []Kind{FutureRead},
		},
		{
			name: "a hole", params: oracleParams{keys: 2, ops: 40, nMax: 4, reads: true, unknown: true, requests: true},
			apply: skipNumbers, want: []Kind{Undeclared},
		},
		{
			name: "a discontinuity concealed", params: oracleParams{keys: 2, ops: 40, nMax: 4, reads: true, unknown: true, losses: true, ledger: true},
			apply: conceal, want: []Kind{Unannounced},
		},
		{
			name: "a discontinuity concealed, without the ledger", params: oracleParams{keys: 2, ops: 40, nMax: 4, reads: true, losses: true},
			apply: conceal, want: []Kind{Undeclared},
		},
		{
			name: "a replay with another number", params: oracleParams{keys: 2, ops: 40, nMax: 4, reads: true, unknown: true, requests: true},
			apply: replayOther, want: []Kind{Replay},
		},
		{
			name: "a second answer that claims to remember the first", params: everything,
			apply: claimMemory, want: []Kind{Replay},
		},
		{
			name: "a loss beyond the step", params: oracleParams{keys: 2, ops: 40, nMax: 4, losses: true, ledger: true},
			apply: loseMore, want: []Kind{ExcessLoss},
		},
	} {
		t.Run(m.name, func(t *testing.T) {
			applied := 0
			// Not every history has a place for the breach, and -short makes few of them.
			for tries := 0; tries < 20 && applied == 0; tries++ {
				rapid.Check(t, func(t *rapid.T) {
					h := generate(t, m.params)
					if !m.apply(t, h) {
						return
					}
					applied++
					r := Check(h, Options{Keep: 1000})
					if r.OK || !slices.ContainsFunc(m.want, r.Has) {
						t.Fatalf("want %v, got %v\n%v", m.want, r.Err(), dump(h))
					}
				})
			}
			if applied == 0 {
				t.Fatal("no generated history had a place for this breach")
			}
			t.Logf("%d histories broken", applied)
		})
	}
}

// choose draws one of the operations that fit.
func choose(t *rapid.T, h *history.History, fits func(*history.Op) bool) *history.Op {
	var c []*history.Op
	for i := range h.Ops {
		if fits(&h.Ops[i]) {
			c = append(c, &h.Ops[i])
		}
	}
	if len(c) == 0 {
		return nil
	}
	return c[rapid.IntRange(0, len(c)-1).Draw(t, "op")]
}

func answered(o *history.Op) bool { return o.Outcome == history.OK && o.Kind == history.Alloc }
func plain(o *history.Op) bool    { return answered(o) && o.Request.IsZero() && o.HoleTo == 0 }
func read(o *history.Op) bool     { return o.Outcome == history.OK && o.Kind == history.Current }

func giveTwice(t *rapid.T, h *history.History) bool {
	a := choose(t, h, plain)
	if a == nil {
		return false
	}
	b := choose(t, h, func(o *history.Op) bool { return answered(o) && o.Key == a.Key && o != a })
	if b == nil {
		return false
	}
	a.First = rapid.Int64Range(max(1, b.First-int64(a.Count)+1), b.Last()).Draw(t, "first")
	return true
}

func exchange(t *rapid.T, h *history.History) bool {
	a := choose(t, h, plain)
	if a == nil {
		return false
	}
	b := choose(t, h, func(o *history.Op) bool {
		return plain(o) && o.Key == a.Key && o.Count == a.Count && a.Return < o.Call
	})
	if b == nil {
		return false
	}
	a.First, b.First = b.First, a.First
	return true
}

func readStale(t *rapid.T, h *history.History) bool {
	r := choose(t, h, func(o *history.Op) bool {
		return read(o) && slices.ContainsFunc(h.Ops, func(p history.Op) bool { return answered(&p) && p.Key == o.Key && p.Return < o.Call })
	})
	if r == nil {
		return false
	}
	seen := int64(0)
	for _, p := range h.Ops {
		if answered(&p) && p.Key == r.Key && p.Return < r.Call {
			seen = max(seen, p.Last())
		}
	}
	r.Value = rapid.Int64Range(0, seen-1).Draw(t, "value")
	return true
}

// readFuture makes a read see what was only asked for after it had returned.
func readFuture(t *rapid.T, h *history.History) bool {
	r := choose(t, h, read)
	if r == nil {
		return false
	}
	later := choose(t, h, func(o *history.Op) bool {
		return plain(o) && o.Key == r.Key && r.Return < o.Call
	})
	if later == nil {
		return false
	}
	r.Value = later.Last()
	return true
}

// skipNumbers moves everything from some number on up by more than calls of
// unknown outcome can explain.
func skipNumbers(t *rapid.T, h *history.History) bool {
	a := choose(t, h, answered)
	if a == nil {
		return false
	}
	spare, from := int64(1), a.First
	for _, o := range h.Ops {
		if o.Key == a.Key && o.Outcome == history.Unknown {
			spare += int64(o.N)
		}
	}
	for i := range h.Ops {
		o := &h.Ops[i]
		switch {
		case o.Key != a.Key:
		case answered(o) && o.First >= from:
			o.First += spare
		case read(o) && o.Value >= from:
			o.Value += spare
		}
	}
	return true
}

func conceal(t *rapid.T, h *history.History) bool {
	a := choose(t, h, func(o *history.Op) bool {
		return o.HoleTo != 0 && o.Outcome == history.OK &&
			!slices.ContainsFunc(h.Ops, func(p history.Op) bool { return answered(&p) && p.Key == o.Key && p.Last() == o.HoleTo })
	})
	if a == nil {
		return false
	}
	a.HoleFrom, a.HoleTo = 0, 0
	return true
}

func replayOther(t *rapid.T, h *history.History) bool {
	a := choose(t, h, func(o *history.Op) bool {
		return answered(o) && !o.Request.IsZero() && slices.ContainsFunc(h.Ops, func(p history.Op) bool {
			return answered(&p) && p.Request == o.Request && p.Key == o.Key && p.Call != o.Call
		})
	})
	if a == nil {
		return false
	}
	a.First += rapid.Int64Range(1, 50).Draw(t, "by")
	return true
}

// claimMemory lets the server of a second answer say that it has forgotten nothing.
func claimMemory(t *rapid.T, h *history.History) bool {
	a := choose(t, h, func(o *history.Op) bool {
		return answered(o) && o.WindowSince > 1 && slices.ContainsFunc(h.Ops, func(p history.Op) bool {
			return answered(&p) && p.Request == o.Request && p.Key == o.Key && p.First < o.First
		})
	})
	if a == nil {
		return false
	}
	a.WindowSince = 1
	return true
}

// loseMore widens a hole beyond what the faults before it allow.
func loseMore(t *rapid.T, h *history.History) bool {
	a := choose(t, h, func(o *history.Op) bool { return o.HoleTo != 0 && o.Outcome == history.OK })
	if a == nil {
		return false
	}
	largest := int64(0)
	for i := range h.Ops {
		largest = max(largest, int64(h.Ops[i].N))
	}
	by := (h.Step+largest)*int64(len(h.Faults)) + 1
	from := a.HoleTo
	for i := range h.Ops {
		o := &h.Ops[i]
		if o.Key != a.Key || o.Outcome != history.OK {
			continue
		}
		if o.First > from {
			o.First += by
		}
		if o.HoleFrom > from {
			o.HoleFrom += by
		}
		if o.HoleTo >= from {
			o.HoleTo += by
		}
		if o.Value >= from {
			o.Value += by
		}
	}
	for i := range h.Ledger {
		g := &h.Ledger[i]
		if g.Key != a.Key {
			continue
		}
		if g.From > from {
			g.From += by
		}
		if g.To >= from {
			g.To += by
		}
	}
	return true
}
