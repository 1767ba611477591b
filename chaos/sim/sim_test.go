package sim

import (
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seedFlag      = flag.Uint64("seed", 0, "simulate this seed only")
	fromFlag      = flag.Uint64("from", 1, "the first seed to simulate")
	dumpFlag      = flag.Bool("dump", false, "write the events of each scripted play to a file")
	setsFlag      = flag.Bool("sets", false, "simulate every seed with two Sets")
	failoversFlag = flag.Int64("failovers", 0, "simulate until there were so many failovers (0: 1500, or 150 with -short)")
)

// judge fails the test with what a run violated, and how to see it again.
func judge(t *testing.T, rep Report) {
	t.Helper()
	if rep.OK() {
		return
	}
	t.Errorf("seed %d: %d violations, the first:\n%s\nevents: %s\nagain: go test ./chaos/sim -run TestSimulatedFailoversViolateNothing -seed=%d",
		rep.Seed, len(rep.Violations), rep.Violations[0], rep.Log, rep.Seed)
	for _, v := range rep.Violations[1:min(len(rep.Violations), 5)] {
		t.Log(v)
	}
}

// failovers is how many the default run wants.
func failovers() int64 {
	switch {
	case *failoversFlag > 0:
		return *failoversFlag
	case testing.Short():
		return 150
	}
	return 1500
}

// varied are the options of a seed.
func varied(seed uint64) Options {
	o := Varied(seed)
	if *setsFlag && o.Sets < 2 {
		o = o.inTwoSets()
	}
	return o
}

func TestSimulatedFailoversViolateNothing(t *testing.T) {
	if *seedFlag != 0 {
		rep := Run(t, varied(*seedFlag))
		judge(t, rep)
		t.Log(summary([]Report{rep}))
		return
	}
	var (
		forced atomic.Int64
		next   atomic.Uint64
		wg     sync.WaitGroup
		mu     sync.Mutex
		all    []Report
	)
	next.Store(*fromFlag - 1)
	start := time.Now()
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for forced.Load() < failovers() && !t.Failed() {
				seed := next.Add(1)
				t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
					rep := Run(t, varied(seed))
					judge(t, rep)
					forced.Add(int64(rep.Failovers))
					mu.Lock()
					all = append(all, rep)
					mu.Unlock()
				})
			}
		})
	}
	wg.Wait()
	t.Logf("%s, in %.1f s", summary(all), time.Since(start).Seconds())
}

// several runs a few seeds of one kind of run, over the cores.
func several(t *testing.T, opt Options, seeds int, look func(*testing.T, Report)) {
	t.Helper()
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprintf("seed=%d", seed+1), func(t *testing.T) {
			t.Parallel()
			opt := opt
			opt.Seed = seed + 1
			rep := Run(t, opt)
			judge(t, rep)
			t.Log(summary([]Report{rep}))
			if look != nil {
				look(t, rep)
			}
		})
	}
}

func TestCrashesAndElectionsLoseNoNumber(t *testing.T) {
	w := rough()
	w.Loss, w.Duplicate = 0.01, 0.05
	several(t, Options{Faults: LosslessFaults(), Lossless: true, Weather: w, IdleAfter: 200 * time.Millisecond}, 6, func(t *testing.T, rep Report) {
		if rep.NumbersLost != 0 || rep.Failovers < 10 || rep.Evicted < 20 {
			t.Errorf("%d numbers were lost in %d failovers and %d evictions", rep.NumbersLost, rep.Failovers, rep.Evicted)
		}
	})
}

func TestPlannedOperationsLoseNothingAndFailNoCall(t *testing.T) {
	several(t, Options{Faults: PlannedFaults(), Lossless: true, Planned: true, Weather: calm(), IdleAfter: 200 * time.Millisecond, GapMin: time.Second, GapMax: 3 * time.Second}, 4, nil)
}

// There is always somebody to whom a window can go: a node that is stopped while
// all others are drained takes its own with it.
func TestPlannedOperationsForgetNoRequestID(t *testing.T) {
	for name, faults := range map[string]Faults{
		"drains":   {"drain": 1},
		"restarts": {"scale-out": 3, "scale-in": 3, "restart-alloc": 4, "rolling-restart": 2},
	} {
		t.Run(name, func(t *testing.T) {
			several(t, Options{
				Faults: faults, Lossless: true, Planned: true, Weather: calm(), GapMin: 500 * time.Millisecond, GapMax: 2 * time.Second,
				WithID: 0.8, Repeat: 0.5, IdleAfter: 500 * time.Millisecond,
			}, 3, nil)
		})
	}
}

func TestLostMachineIsReplacedWithinTheLease(t *testing.T) {
	ttl := 2 * time.Second
	several(t, Options{
		TTL: ttl, Faults: Faults{"lose-alloc": 1}, Weather: calm(), CallTimeout: 5 * time.Second, GapMin: 6 * time.Second, GapMax: 8 * time.Second,
		Limits: map[string]time.Duration{"lose-alloc": ttl + 500*time.Millisecond},
	}, 4, nil)
}

func TestCrashedProcessIsBackAtOnce(t *testing.T) {
	// Down for up to 800 ms; then 300 ms.
	several(t, Options{
		Faults: Faults{"kill-alloc": 1}, Lossless: true, Weather: calm(), CallTimeout: 5 * time.Second, GapMin: 3 * time.Second, GapMax: 4 * time.Second,
		Limits: map[string]time.Duration{"kill-alloc": 1100 * time.Millisecond},
	}, 2, nil)
}

func TestRepeatedRequestsAreAnsweredAlikeAcrossCrashes(t *testing.T) {
	w := rough()
	w.Loss = 0.01
	several(t, Options{
		Faults:   Faults{"kill-alloc": 4, "flap": 1, "kill-leader": 2, "kill-store": 1, "partition-clients": 1},
		Lossless: true, Weather: w, WithID: 0.7, Repeat: 0.4, IdleAfter: 200 * time.Millisecond,
		Allocs: 1, Spares: -1, // so that no section moves
	}, 3, nil)
}

// A key that nobody serves at the end is noticed, whatever it was before.
func TestAKeyThatIsNotServedAtTheEndIsNoticed(t *testing.T) {
	for name, atEnd := range map[string]func(*Cluster){
		"nobody serves": func(c *Cluster) {
			for _, id := range c.runningAllocs() {
				c.crashAlloc(id, true)
			}
		},
		"nobody is missing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			rep := Run(t, Options{Seed: 1, Faults: Faults{"kill-alloc": 1}, Duration: 5 * time.Second, Weather: calm(), atEnd: atEnd})
			noticed := slices.ContainsFunc(rep.Violations, func(v string) bool { return strings.Contains(v, "not served when every lease had ended") })
			if noticed != (atEnd != nil) {
				t.Errorf("violations: %q", rep.Violations)
			}
		})
	}
}

func summary(all []Report) string {
	var sum Report
	sum.Faults = map[string]int{}
	worst := time.Duration(0)
	for _, r := range all {
		sum.Failovers += r.Failovers
		sum.Resumed += r.Resumed
		sum.Expired += r.Expired
		sum.Elected += r.Elected
		sum.Operations += r.Operations
		sum.Answered += r.Answered
		sum.Simulated += r.Simulated
		sum.NumbersLost += r.NumbersLost
		sum.Evicted += r.Evicted
		sum.Moves += r.Moves
		sum.Parts += r.Parts
		worst = max(worst, r.Recovery)
		for name, n := range r.Faults {
			sum.Faults[name] += n
		}
	}
	var faults []string
	for _, name := range slices.Sorted(maps.Keys(sum.Faults)) {
		faults = append(faults, fmt.Sprintf("%s %d", name, sum.Faults[name]))
	}
	return fmt.Sprintf("%d clusters, %d failovers (%d processes resumed, %d sessions expired, %d leaders elected), %s simulated, %d of %d operations answered, %d numbers declared lost, %d keys evicted, %d moves between sets done in %d parts, slowest recovery %s (%s)",
		len(all), sum.Failovers, sum.Resumed, sum.Expired, sum.Elected, sum.Simulated.Round(time.Second), sum.Answered, sum.Operations, sum.NumbersLost, sum.Evicted, sum.Moves, sum.Parts, worst.Round(time.Millisecond), strings.Join(faults, ", "))
}
