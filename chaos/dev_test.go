package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/chaos/check"
	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/chaos/load"
)

// The whole cluster in one process is killed with SIGKILL again and again
// while clients allocate, and started on the same directory.
func TestKillingDevTwentyTimesNeverRepeatsANumber(t *testing.T) {
	t.Parallel() // it waits more than it works, and holds no bound on time
	const kills = 20
	d := startDev(t, t.TempDir())
	keys := mixedKeys(20)
	rec := history.NewRecorder()
	targets := dial(t, 4, d.listen)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() {
		cfg := load.Config{Clients: 4, Keys: keys, Seed: 3, Rate: 100, Timeout: 10 * time.Second}
		done <- load.Run(ctx, cfg, rec, func(i int) load.Target { return targets[i] })
	}()
	rng := rand.New(rand.NewPCG(3, 0))
	for range kills {
		pause(t, 200*time.Millisecond+time.Duration(rng.Int64N(int64(600*time.Millisecond))))
		end := rec.Fault(history.Fault{Name: "kill-dev", Losses: 1})
		d.kill(t)
		d.start(t)
		end()
	}
	pause(t, time.Second)
	stop()
	must(t, <-done)
	must(t, load.Finish(t.Context(), rec, keys, targets[0]))
	r := judge(t, rec.History(), check.Options{})
	if r.NumbersLost > 0 {
		t.Logf("%d numbers were lost in %d kills, though the arenas were there", r.NumbersLost, kills)
	}
}

// A clean stop hands everything back: the next number is exactly the next one.
func TestRestartingDevContinuesExactly(t *testing.T) {
	t.Parallel() // it waits more than it works, and holds no bound on time
	d := startDev(t, t.TempDir())
	keys := mixedKeys(20)
	want := map[string]int64{}
	for round := range 3 {
		target := dial(t, 1, d.listen)[0]
		for i, k := range keys {
			n := uint32(1 + (i+round)%5)
			a := target.Alloc(t.Context(), load.Request{Key: k, N: n})
			if a.Outcome != history.OK || a.First != want[k]+1 || a.HoleTo != 0 {
				t.Fatalf("round %d, key %s: got %+v, want first %d", round, k, a, want[k]+1)
			}
			want[k] += int64(n)
		}
		d.stop(t)
		d.start(t)
	}
	target := dial(t, 1, d.listen)[0]
	for i, a := range target.Current(t.Context(), keys) {
		if a.Outcome != history.OK || a.Value != want[keys[i]] {
			t.Errorf("key %s: current is %s, want %d", keys[i], fmt.Sprint(a), want[keys[i]])
		}
	}
}
