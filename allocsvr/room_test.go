package allocsvr

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// crowd is callers who touch many more keys, half of them uids and half names, than an
// arena has room for.
type crowd struct {
	sections      uint32
	arenaMB       int64
	each, perPage uint64 // uids, and as many names; uids of one page
	callers       int
	batch         uint64
}

func (c crowd) request(n uint64) *seqpb.AllocRequest {
	req := &seqpb.AllocRequest{Space: "uid"}
	if n%2 == 1 {
		req.Space = "conv"
	}
	for i := n / 2 * c.batch; i < min((n/2+1)*c.batch, c.each); i++ {
		if n%2 == 1 {
			req.Names = append(req.Names, "c"+strconv.FormatUint(i, 10))
		} else {
			req.Uids = append(req.Uids, i/c.perPage<<ids.BlockShift|i%c.perPage)
		}
	}
	return req
}

// touch has each key called once, and says how long the longest call took.
func (c crowd) touch(t *testing.T, a *node, want uint64) time.Duration {
	var next, longest atomic.Int64
	var wg sync.WaitGroup
	calls := int64(2 * ((c.each + c.batch - 1) / c.batch))
	for range c.callers {
		wg.Go(func() {
			for n := next.Add(1) - 1; n < calls; n = next.Add(1) - 1 {
				began := time.Now()
				rep, err := a.Alloc(context.Background(), c.request(uint64(n)))
				if err != nil || len(rep.Failures) > 0 || len(rep.Discontinuities) > 0 {
					t.Errorf("call %d: %v, %d failures, %d holes: %+v", n, err, len(rep.GetFailures()), len(rep.GetDiscontinuities()), rep.GetFailures()[:min(1, len(rep.GetFailures()))])
					return
				}
				for i, first := range rep.First {
					if first != want {
						t.Errorf("call %d: key %d got %d, want %d", n, i, first, want)
						return
					}
				}
				for took := int64(time.Since(began)); took > longest.Load(); {
					longest.Store(took)
				}
			}
		})
	}
	wg.Wait()
	return time.Duration(longest.Load())
}

// count panics when the node has looked at keys more often than that: where requests
// chase one another in a circle no simulated time passes, and no call returns.
func count(most uint64) (watch func(a *node), stop func()) {
	var looks atomic.Pointer[atomic.Uint64]
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
			if p := looks.Load(); p != nil && p.Load() > most {
				panic(fmt.Sprintf("%d looks at keys, at most %d are of use", p.Load(), most))
			}
		}
	}()
	return func(a *node) { looks.Store(&a.count.coldLooks) }, func() { close(done); <-gone }
}

// What a full arena costs is counted by the keys that are served, not by those that wait.
func TestAFullArenaOfUidsAndNamesCostsAFewLooksAKey(t *testing.T) {
	for name, c := range map[string]crowd{
		"dense":                    {sections: 64, arenaMB: 4, each: 100_000, perPage: 80, callers: 4, batch: 2000},
		"large calls":              {sections: 256, arenaMB: 3, each: 100_000, perPage: 250, callers: 6, batch: 5000},
		"a page each":              {sections: 64, arenaMB: 4, each: 10_000, perPage: 1, callers: 8, batch: 1000},
		"fewer pages than callers": {sections: 64, arenaMB: 2, each: 10_000, perPage: 3, callers: 400, batch: 50},
	} {
		t.Run(name, func(t *testing.T) {
			keys := 4 * c.each // calls for single keys
			watch, stop := count(8 * keys)
			defer stop()
			inRig(t, storetest.Config{Auto: true, Sections: c.sections}, func(r *rig) {
				a := r.boot("a1", func(cfg *Config) { cfg.ArenaMaxBytes = c.arenaMB << 20 })
				watch(a)
				longest := max(c.touch(t, a, 1), c.touch(t, a, 2))
				st := a.Stats()
				t.Logf("%d calls for a key: %d looks, %d raises, %d evictions; longest call %v", keys, st.ColdLooks, st.Raises, st.Evicted, longest)
				if most := 4 * keys; st.ColdLooks > most {
					t.Errorf("%d looks at keys, at most %d are of use", st.ColdLooks, most)
				}
				if st.Raises > keys*21/20 || st.Evicted > st.Raises {
					t.Errorf("%d raises and %d evictions for %d calls for a key", st.Raises, st.Evicted, keys)
				}
				if longest > time.Second || st.Crowded != 0 {
					t.Errorf("a call took %v; %d requests wait still", longest, st.Crowded)
				}
			})
		})
	}
}

// Keys in use are served while others wait for room, and so are small requests for new ones.
func TestAFullArenaServesWarmAndSingleKeys(t *testing.T) {
	c := crowd{sections: 64, arenaMB: 4, each: 100_000, perPage: 20, callers: 8, batch: 5000}
	watch, stop := count(20 * c.each)
	defer stop()
	inRig(t, storetest.Config{Auto: true, Sections: c.sections}, func(r *rig) {
		a := r.boot("a1", func(cfg *Config) { cfg.ArenaMaxBytes = c.arenaMB << 20 })
		watch(a)
		done := make(chan struct{})
		var wg sync.WaitGroup
		alone := func(what string, most time.Duration, key func(i uint64) (ids.Key, ids.Seq)) {
			wg.Go(func() {
				longest := time.Duration(0)
				for i := uint64(0); ; i++ {
					select {
					case <-done:
						if t.Logf("%s: %d calls, the longest took %v", what, i, longest); longest > most {
							t.Errorf("%s took %v", what, longest)
						}
						return
					case <-time.After(2 * time.Millisecond):
					}
					began := time.Now()
					k, want := key(i)
					a.wantNext(t, k, want)
					longest = max(longest, time.Since(began))
				}
			})
		}
		alone("a warm key", 60*time.Millisecond, func(i uint64) (ids.Key, ids.Seq) { return uid(1 << 31), ids.Seq(i + 1) })
		alone("a new key", 150*time.Millisecond, func(i uint64) (ids.Key, ids.Seq) { return uid((1<<22 + i) << ids.BlockShift), 1 })
		c.touch(t, a, 1)
		close(done)
		wg.Wait()
	})
}
