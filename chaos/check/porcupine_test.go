package check

import (
	"fmt"
	"math"
	"testing"

	"github.com/anishathalye/porcupine"
	"pgregory.net/rapid"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// counter is the state of porcupine's model of one key.
type counter struct {
	at int64
	// known: the number `at` was given to somebody who is known to have it.
	known bool
}

// model is the same specification as this package's, told in the other way:
// as a machine that each operation moves.
func model(holes []hole) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return counter{known: true} },
		Step: func(state, input, output any) (bool, any) {
			s, o := state.(counter), input.(history.Op)
			switch {
			case o.Kind == history.Current:
				if o.Value == s.at {
					return true, s
				}
				for _, h := range holes {
					if o.Value == h.to && h.from-1 <= s.at && s.at <= h.to {
						return true, counter{at: h.to}
					}
				}
				return false, s
			case o.Outcome == history.Unknown:
				next := s.at + int64(o.N)
				for _, h := range holes {
					if s.at < h.from-1 && h.from-1 < next || s.at < h.to && h.to < next {
						return false, s // no allocation spans the edge of a hole
					}
				}
				return true, counter{at: next}
			case o.HoleTo != 0:
				return o.HoleFrom-1 <= s.at && s.at <= o.HoleTo, counter{o.Last(), true}
			}
			for _, h := range holes {
				if o.First-1 == h.to && !s.known {
					return false, s
				}
			}
			return o.First-1 == s.at, counter{o.Last(), true}
		},
		Equal:             func(a, b any) bool { return a == b },
		DescribeOperation: func(input, output any) string { return input.(history.Op).String() },
	}
}

func porcupineAccepts(h *history.History) bool {
	var holes []hole
	var ops []porcupine.Operation
	for i, o := range h.Ops {
		if o.HoleTo != 0 {
			holes = append(holes, hole{from: o.HoleFrom, to: o.HoleTo})
		}
		ret := o.Return
		switch {
		case o.Outcome == history.Failed, o.Outcome == history.Unknown && o.Kind == history.Current:
			continue
		case o.Outcome == history.Unknown:
			// It may come last, where it disturbs nobody.
			ret = math.MaxInt64
		}
		ops = append(ops, porcupine.Operation{ClientId: i, Input: o, Call: o.Call, Output: o, Return: ret})
	}
	return porcupine.CheckOperations(model(holes), ops)
}

func accepts(h *history.History) (bool, *Report) {
	r := Check(h, Options{Step: 1 << 40})
	return r.Duplicates+r.OrderViolations+r.UndeclaredGaps == 0, r
}

// Both must say the same of good histories, and of bad ones made by changing
// a few answers at random.
func TestAgreesWithPorcupineOnSmallHistories(t *testing.T) {
	good, bad := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		h := generate(t, oracleParams{keys: 1, ops: 9, nMax: 3, reads: true, unknown: true})
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			change(t, h)
		}
		want := porcupineAccepts(h)
		if got, r := accepts(h); got != want {
			t.Fatalf("porcupine accepts: %v; this checker: %v (%v)\n%s", want, got, r.Err(), dump(h))
		}
		if want {
			good++
		} else {
			bad++
		}
	})
	t.Logf("%d accepted, %d rejected by both", good, bad)
	if good == 0 || bad == 0 {
		t.Fatal("the comparison saw only one side")
	}
}

func TestAgreesWithPorcupineOnHistoriesWithHoles(t *testing.T) {
	good, bad := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		h := generate(t, oracleParams{keys: 1, ops: 9, nMax: 3, reads: true, losses: true})
		h.Faults = nil // the allowance for holes that are not declared yet is not part of the model
		for range rapid.IntRange(0, 2).Draw(t, "changes") {
			change(t, h)
		}
		want := porcupineAccepts(h)
		got, r := accepts(h)
		if got != want {
			t.Fatalf("porcupine accepts: %v; this checker: %v (%v)\n%s", want, got, r.Err(), dump(h))
		}
		if want {
			good++
		} else {
			bad++
		}
	})
	t.Logf("%d accepted, %d rejected by both", good, bad)
}

// change alters one answer a little.
func change(t *rapid.T, h *history.History) {
	o := choose(t, h, func(o *history.Op) bool { return o.Outcome == history.OK })
	if o == nil {
		return
	}
	by := rapid.Int64Range(-3, 3).Draw(t, "by")
	switch what := rapid.IntRange(0, 3).Draw(t, "change"); {
	case what == 0 && o.Return+by > o.Call:
		o.Return += by
	case what == 1 && o.Call+by < o.Return && o.Call+by > 0:
		o.Call += by
	case o.Kind == history.Current:
		o.Value = max(0, o.Value+by)
	case o.HoleTo == 0:
		o.First = max(1, o.First+by)
	default:
		o.HoleFrom = min(max(1, o.HoleFrom+by), o.HoleTo)
	}
}

func TestPorcupineAgreesOnTheHandMadeHistories(t *testing.T) {
	for _, text := range []string{
		"1-2 alloc 1\n3-? alloc n=1\n4-5 alloc 4",
		"1-? alloc n=3\n1-? alloc n=5\n2-3 alloc 9",
		"1-? alloc n=3\n1-? alloc n=5\n2-3 alloc 8\n4-5 alloc 9",
		"1-9 alloc 1..5\n2-3 read 3",
		"1-2 alloc 1\n3-4 alloc 5\n7-8 alloc 11 hole=2..10",
		"1-2 alloc 1\n5-6 read 10\n7-8 alloc 11 hole=2..10",
	} {
		t.Run(fmt.Sprintf("%.20q", text), func(t *testing.T) {
			h := script(t, text)
			want := porcupineAccepts(h)
			if got, r := accepts(h); got != want {
				t.Fatalf("porcupine accepts: %v; this checker: %v (%v)", want, got, r.Err())
			}
		})
	}
}
