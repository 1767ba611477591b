package allocsvr

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func adaptiveSteps(c *Config) {
	c.Steps = raise.Steps{Adaptive: true, Min: 10, Max: 100, Target: time.Second, Keys: 64}
}

// Calls of one number and of many more than a step, at once. What is at risk is
// what the store has granted and nobody was given.
func TestAMachineLossCostsAtMostOneStepBeyondWhatCallsAskedFor(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"fixed":    func(*Config) {}, // 100
		"adaptive": adaptiveSteps,
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, auto, func(r *rig) {
				const step, most = 100, 1000
				a := r.boot("a1", change)
				largest := a.cfg.Steps.Largest()
				if largest != step {
					t.Fatalf("the test is about steps of %d", step)
				}
				rng := rand.New(rand.NewPCG(1, 2))
				last := ids.Seq(0)
				for round := range 300 {
					k := uid(uint64(round % 3))
					var wg sync.WaitGroup
					var mu sync.Mutex
					last = 0
					for i := range 1 + rng.IntN(40) {
						n := uint32(1 + rng.IntN(10))
						if i == 3 {
							n = 1 + uint32(rng.IntN(most))
						}
						wg.Go(func() {
							res := a.take(t, k, n)
							mu.Lock()
							defer mu.Unlock()
							last = max(last, res.First+ids.Seq(n)-1)
						})
					}
					time.Sleep(time.Duration(rng.IntN(1500)) * time.Microsecond)
					if got := r.store.Record(k); got.Bound > got.Floor+most+step {
						t.Fatalf("round %d: a raise went to %d beyond the last issued, for calls of at most %d", round, got.Bound-got.Floor, most)
					}
					wg.Wait()
					settle()
					if got := r.store.Record(k); got.Bound < last || got.Bound > last+step {
						t.Fatalf("round %d: everybody has an answer, and %d numbers are at risk: %+v, last %d", round, got.Bound-last, got, last)
					}
				}
				// The machine goes, with its memory, and the hole is declared.
				lastOf := map[ids.Key]ids.Seq{}
				for i := range uint64(3) {
					res := a.take(t, uid(i), 1)
					lastOf[uid(i)] = res.First
				}
				a.Kill()
				b := r.boot("b1")
				time.Sleep(3 * time.Second)
				for k, last := range lastOf {
					res := b.take(t, k, 1)
					if res.First <= last || res.First > last+step+1 || res.HoleTo != res.First-1 {
						t.Errorf("after the loss of the machine: %+v follows %d", res, last)
					}
				}
			})
		})
	}
}

func TestAdaptiveStepsFollowTheRateAndKeepCallersFromWaiting(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1", func(c *Config) {
			c.Steps = raise.Steps{Adaptive: true, Min: 10, Max: 100_000, Target: 10 * time.Second}
		})
		hot, cold := uid(1), uid(1<<20)
		var waits uint64
		for i := range 40_000 { // 1000 a second
			if i == 20_000 {
				waits = a.Stats().ColdWaits
			}
			a.take(t, hot, 1)
			time.Sleep(time.Millisecond)
			if i%4000 == 0 {
				a.take(t, cold, 1)
			}
		}
		// 1000 a second for 10 s; of the cold key, ten numbers in all.
		atRisk := func(k ids.Key) ids.Seq {
			rec := r.store.Record(k)
			cur, err := a.CurrentOne(context.Background(), k)
			if err != nil {
				t.Fatal(err)
			}
			return rec.Bound - cur
		}
		if got := atRisk(hot); got < 2000 || got > 12_000 {
			t.Errorf("%d numbers of the hot key are at risk", got)
		}
		if got := atRisk(cold); got > 40 {
			t.Errorf("%d numbers of the cold key are at risk", got)
		}
		st := a.Stats()
		if st.ColdWaits-waits > 3 {
			t.Errorf("%d calls waited in the second half", st.ColdWaits-waits)
		}
		steps := st.Steps[0]
		if steps.Space != "uid" || steps.Raises == 0 || steps.Raises > 60 || steps.UpTo[10] == 0 || steps.UpTo[30_000] != steps.Raises {
			t.Errorf("%+v", steps)
		}
	})
}

func TestEachSpaceHasItsOwnSteps(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1", func(c *Config) {
			c.Spaces = map[string]SpaceConfig{"conv": {Steps: raise.Fixed(7)}}
		})
		conv, _ := ids.DefaultSpaces()[1].NameKey("c")
		a.take(t, uid(1), 1)
		a.take(t, conv, 1)
		if u, c := r.store.Record(uid(1)).Bound, r.store.Record(conv).Bound; u != 100 || c != 7 {
			t.Errorf("bounds %d and %d, want 100 and 7", u, c)
		}
		var hb seqpb.Heartbeat
		handler{a.Server}.Load(&hb)
		if len(hb.Steps) != 2 || hb.Steps[1].Space != "conv" || hb.Steps[1].Min != 7 || hb.Steps[1].Raises != 1 || hb.Steps[1].Numbers != 7 {
			t.Errorf("the heartbeat says %+v", hb.Steps)
		}
	})
}

func TestASpaceThatTheClusterDoesNotHaveIsRefused(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1", func(c *Config) {
			c.Spaces = map[string]SpaceConfig{"cnov": {Steps: raise.Fixed(7)}}
		})
		select {
		case err := <-a.Failed():
			if !strings.Contains(err.Error(), `"cnov"`) || !strings.Contains(err.Error(), "[uid conv]") {
				t.Errorf("%v", err)
			}
		case <-time.After(time.Second):
			t.Error("it goes on")
		}
	})
}

func TestAdaptiveStepsGoOnAfterAProcessCrash(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1", adaptiveSteps)
		next := ids.Seq(1)
		use := func(n *node) {
			t.Helper()
			for range 500 {
				n.wantNext(t, uid(1), next)
				next++
				time.Sleep(500 * time.Microsecond)
			}
		}
		use(a)
		a.Kill()
		use(r.boot("a1", adaptiveSteps))
	})
}
