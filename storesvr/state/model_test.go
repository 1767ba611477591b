package state

import (
	"math/bits"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// Random clusters with every fault: no duplicate, no disorder, no undeclared
// hole, no loss that a lost machine (or an advance) does not excuse, and no
// false alarm.
func TestRandomClustersKeepTheGuarantees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Coins, since rapid's numbers favour small ones.
		coin := rapid.Bool()
		w := newWorld(Bugs{}, func(n int) int {
			v := 0
			for range bits.Len(uint(n)) + 2 {
				v <<= 1
				if coin.Draw(t, "coin") {
					v |= 1
				}
			}
			return v % n
		})
		for range 30 {
			w.run(20)
			if err := Check(w.s); err != nil {
				t.Fatal(err)
			}
		}
		if w.wrong != nil {
			t.Fatal(w.wrong)
		}
		if w.alarm != nil {
			t.Fatal(w.alarm)
		}
	})
}

func seeded(seed uint64, bugs Bugs) *world {
	return newWorld(bugs, rand.New(rand.NewPCG(seed, 0)).IntN)
}

func TestManySeededClustersKeepTheGuarantees(t *testing.T) {
	issued := 0
	for seed := range uint64(1500) {
		w := seeded(seed, Bugs{})
		w.run(1000)
		if w.wrong != nil {
			t.Fatalf("seed %d: %v", seed, w.wrong)
		}
		if w.alarm != nil {
			t.Fatalf("seed %d: %v", seed, w.alarm)
		}
		if err := Check(w.s); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, h := range w.seen {
			issued += len(h.issued)
		}
	}
	t.Logf("%d numbers issued", issued)
	if issued < 50_000 {
		t.Errorf("only %d numbers issued: the clusters are too broken to show anything", issued)
	}
}

// Each mechanism, switched off, breaks a guarantee in some of the same clusters.
func TestEachMechanismIsMissedWhenSwitchedOff(t *testing.T) {
	for name, bugs := range map[string]Bugs{
		"epoch fence":       {SkipEpochFence: true},
		"incarnation fence": {SkipIncarnationFence: true},
		"batch fence":       {SkipBatchFence: true},
		"new epochs":        {ReuseEpoch: true},
		"clean mark":        {IgnoreCleanMark: true},
	} {
		t.Run(name, func(t *testing.T) {
			const seeds = 20_000
			for seed := range uint64(seeds) {
				w := seeded(seed, bugs)
				w.run(1000)
				if w.wrong != nil {
					t.Logf("seed %d: %v", seed, w.wrong)
					return
				}
			}
			t.Errorf("%d clusters did without", seeds)
		})
	}
}
