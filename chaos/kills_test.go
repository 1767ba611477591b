package chaos

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/chaos/check"
	"github.com/seqsvr/seqsvr/chaos/faults"
	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/chaos/load"
)

// mixedKeys are n keys, half of them uids in neighbouring and far blocks, half conversations.
func mixedKeys(n int) []string {
	var out []string
	for i := range n / 2 {
		uid := i
		if i%2 == 1 {
			uid = 1_000_003 * i
		}
		out = append(out, fmt.Sprintf("uid/%d", uid))
	}
	for i := len(out); i < n; i++ {
		out = append(out, fmt.Sprintf("conv/sg_%d", i))
	}
	return out
}

// judge checks a history, keeps it if it is bad, and logs the figures.
func judge(t *testing.T, h *history.History, o check.Options) *check.Report {
	t.Helper()
	r := check.Check(h, o)
	t.Logf("%d operations on %d keys: %d numbers, %d failed, %d unknown, %d declared gaps, %d numbers lost; longest unserved (ms) %v",
		r.Operations, r.Keys, r.Allocated, r.Failed, r.Unknown, r.DeclaredGaps, r.NumbersLost, r.MaxUnavailableMS)
	if !r.OK {
		path := t.ArtifactDir() + "/history.jsonl"
		if err := h.Save(path); err == nil {
			t.Logf("the history is in %s (go test -artifacts keeps it)", path)
		}
		t.Fatal(r.Err())
	}
	return r
}

// Three storesvr and two allocsvr processes, eight clients on fifty keys: the
// leader is killed, then one allocsvr, which does not come back.
func TestKillingTheLeaderAndThenAnOwnerBreaksNothing(t *testing.T) {
	f := startFleet(t, fleetOptions{stores: 3, allocs: 2})
	keys := mixedKeys(50)
	rec := history.NewRecorder()
	targets := f.targets(t, 8)
	calm := time.Duration(1+4*long()) * time.Second

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go noteStalls(ctx, rec, 2, f.LeaseTTL())
	go func() {
		done <- load.Run(ctx, load.Config{Clients: 8, Keys: keys, Seed: 1, Rate: 200}, rec, func(i int) load.Target { return targets[i] })
	}()

	pause(t, calm)
	leader, err := f.Leader(t.Context())
	must(t, err)
	end := rec.Fault(history.Fault{Name: "kill-leader", Node: leader})
	must(t, f.Kill(leader))
	pause(t, 2*calm)
	end()

	lost := f.Allocs()[0]
	end = rec.Fault(history.Fault{Name: "kill-alloc", Node: lost, Losses: 1})
	must(t, f.Kill(lost))
	pause(t, f.LeaseTTL()+calm)
	end()

	pause(t, calm)
	stop()
	must(t, <-done)
	must(t, load.Finish(t.Context(), rec, keys, targets[0]))
	// The lease and half a second are what the design promises; the machine that runs this may be busy.
	judge(t, rec.History(), check.Options{Limits: map[string]time.Duration{"kill-alloc": f.LeaseTTL() + 3*time.Second}})
}

// Every fault that can be done to processes, once each in random order.
func TestEveryFaultOnProcessesBreaksNothing(t *testing.T) {
	f := startFleet(t, fleetOptions{stores: 3, allocs: 3})
	keys := mixedKeys(60)
	rec := history.NewRecorder()
	targets := f.targets(t, 6)
	names, skipped, err := faults.Plan(faults.Names(), 1)
	must(t, err)
	t.Logf("skipped: %v", skipped)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go noteStalls(ctx, rec, 3, f.LeaseTTL())
	go func() {
		cfg := load.Config{Clients: 6, Keys: keys, Seed: 2, Rate: 100, Timeout: 10 * time.Second}
		done <- load.Run(ctx, cfg, rec, func(i int) load.Target { return targets[i] })
	}()
	must(t, faults.Run(t.Context(), faults.Config{Names: names, Seed: 2, Count: len(names) * (1 + 2*long()), Calm: time.Second}, f, rec))
	stop()
	must(t, <-done)
	must(t, load.Finish(t.Context(), rec, keys, targets[0]))
	judge(t, rec.History(), check.Options{Settle: time.Second})
}
