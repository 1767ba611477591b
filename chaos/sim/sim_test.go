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
	failoversFlag = flag.Int64("failovers", 1500, "simulate until so many failovers were forced")
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

func TestSimulatedFailoversViolateNothing(t *testing.T) {
	if *seedFlag != 0 {
		rep := Run(t, Options{Seed: *seedFlag, Faults: AllFaults()})
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
			for forced.Load() < *failoversFlag && !t.Failed() {
				seed := next.Add(1)
				t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
					rep := Run(t, Options{Seed: seed, Faults: AllFaults()})
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

func summary(all []Report) string {
	var sum Report
	sum.Faults = map[string]int{}
	worst := time.Duration(0)
	for _, r := range all {
		sum.Failovers += r.Failovers
		sum.Operations += r.Operations
		sum.Answered += r.Answered
		sum.Simulated += r.Simulated
		sum.NumbersLost += r.NumbersLost
		worst = max(worst, r.Recovery)
		for name, n := range r.Faults {
			sum.Faults[name] += n
		}
	}
	var faults []string
	for _, name := range slices.Sorted(maps.Keys(sum.Faults)) {
		faults = append(faults, fmt.Sprintf("%s %d", name, sum.Faults[name]))
	}
	return fmt.Sprintf("%d clusters, %d failovers, %s simulated, %d of %d operations answered, %d numbers declared lost, slowest recovery %s (%s)",
		len(all), sum.Failovers, sum.Simulated.Round(time.Second), sum.Answered, sum.Operations, sum.NumbersLost, worst.Round(time.Millisecond), strings.Join(faults, ", "))
}
