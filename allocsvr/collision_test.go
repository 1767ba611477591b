package allocsvr

import (
	"context"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// twins are keys of names that were forced to one position, as their hashes would
// be once in 2^64 pairs. The last one is at the edge: it differs by being 0.
func twins() [3]ids.Key {
	const position = 0x5eed_5eed_5eed_5e00
	return [3]ids.Key{{Space: 2, Hi: position, Lo: 1}, {Space: 2, Hi: position, Lo: 1 << 63}, {Space: 2, Hi: position}}
}

// tally counts what each twin was given, by the twin's own reckoning.
type tally [3]ids.Seq

func (y *tally) take(t *testing.T, n *node) {
	t.Helper()
	for round := range 5 {
		for i, k := range twins() {
			count := uint32(1 + i + round)
			if r := n.take(t, k, count); r.First != y[i]+1 || r.HoleTo != 0 {
				t.Fatalf("twin %d: %+v follows %d", i, r, y[i])
			}
			y[i] += ids.Seq(count)
		}
	}
	y.read(t, n)
}

func (y *tally) read(t *testing.T, n *node) {
	t.Helper()
	for i, k := range twins() {
		n.wantCurrent(t, k, y[i])
	}
}

// Through the arena, raises, a process that dies, hand-backs of idle keys, and a planned move.
func TestNamesOfOnePositionKeepTheirOwnCounters(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		var y tally
		a := r.boot("a1", idleAfter(time.Minute))
		r.store.Assign("a1")
		settle()
		y.take(t, a)
		for i, k := range twins() {
			res, err := a.AllocOne(context.Background(), k, 2, rid(1)) // one id for all three
			if err != nil || res.Replayed || res.First != y[i]+1 {
				t.Fatalf("twin %d: %+v, %v", i, res, err)
			}
			y[i] += 2
		}
		a.Kill()
		a = r.boot("a1", idleAfter(time.Minute))
		y.take(t, a)

		time.Sleep(5 * time.Minute)
		for i, k := range twins() {
			if a.holds(k) {
				t.Errorf("twin %d is still held", i)
			}
			wantHandedBack(t, r, k, y[i])
		}
		y.read(t, a)
		// One of them comes back, and then the others.
		if res := a.take(t, twins()[1], 1); res.First != y[1]+1 {
			t.Errorf("%+v follows %d", res, y[1])
		}
		y[1]++
		y.read(t, a)
		y.take(t, a)

		b := r.boot("b1", idleAfter(time.Minute))
		r.store.Move("b1", allSections...)
		settle()
		y.take(t, b)
		for i, k := range twins() {
			if res, err := b.AllocOne(context.Background(), k, 2, rid(1)); err != nil || !res.Replayed || res.First >= y[i] {
				t.Errorf("twin %d, by its first id: %+v, %v", i, res, err)
			}
		}
	})
}

// The loss of their machine declares each its own hole.
func TestNamesOfOnePositionLoseNumbersByThemselves(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		var y tally
		a := r.boot("a1")
		y.take(t, a)
		bounds := [3]ids.Seq{}
		for i, k := range twins() {
			bounds[i] = r.store.Record(k).Bound
		}
		a.Kill()
		b := r.boot("b1")
		time.Sleep(3 * time.Second)
		for i, k := range twins() {
			if res := b.take(t, k, 1); res.First != bounds[i]+1 || res.HoleTo != bounds[i] || res.HoleFrom > y[i]+1 {
				t.Errorf("twin %d, which had %d of %d: %+v", i, y[i], bounds[i], res)
			}
		}
	})
}

// A range of one position, leaving for another Set, has all of them handed back.
func TestNamesOfOnePositionLeaveTogether(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		var y tally
		a, _ := two(r)
		y.take(t, a)
		at := twins()[0].Position()
		p := r.store.Freeze(sets.Range{Space: 2, Lo: at, Last: at})
		settle()
		if p.Waiting() != 0 {
			t.Fatal("not vacated")
		}
		for i, k := range twins() {
			wantHandedBack(t, r, k, y[i])
		}
	})
}
