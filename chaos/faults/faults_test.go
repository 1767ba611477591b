package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// puppet is a cluster that notes what is done to it.
type puppet struct {
	did     []string
	startup time.Duration
	broken  error
}

func (p *puppet) note(what, node string) error {
	p.did = append(p.did, what+" "+node)
	return nil
}

func (p *puppet) Sets() []string { return []string{"s1", "s2", "s3"} }
func (p *puppet) LeaderOf(_ context.Context, set string) (string, error) {
	return set + "-2", nil
}
func (p *puppet) Move(_ context.Context, from, to string) error { return p.note("move", from+" "+to) }
func (p *puppet) Allocs() []string                              { return []string{"a1", "a2"} }
func (p *puppet) Stores() []string                              { return []string{"s1", "s2", "s3"} }
func (p *puppet) Leader(context.Context) (string, error)        { return "s2", nil }
func (p *puppet) Kill(n string) error                           { return p.note("kill", n) }
func (p *puppet) Stop(_ context.Context, n string) error        { return p.note("stop", n) }
func (p *puppet) LoseMemory(n string) error                     { return p.note("lose", n) }
func (p *puppet) Pause(n string) error                          { return p.note("pause", n) }
func (p *puppet) Continue(n string) error                       { return p.note("continue", n) }
func (p *puppet) Drain(_ context.Context, n string) error       { return p.note("drain", n) }
func (p *puppet) Undrain(_ context.Context, n string) error     { return p.note("undrain", n) }
func (p *puppet) LeaseTTL() time.Duration                       { return time.Second }
func (p *puppet) Start(ctx context.Context, n string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	wait(ctx, p.startup)
	_ = p.note("start", n)
	return p.broken
}

func play(t *testing.T, p *puppet, cfg Config, long time.Duration) (h *history.History, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		rec := history.NewRecorder()
		err = Run(ctx, cfg, p, rec)
		h = rec.History()
	})
	return h, err
}

func all(t *testing.T) []string {
	can, _, err := Plan(Names(), 3)
	if err != nil {
		t.Fatal(err)
	}
	return can
}

func TestEachFaultIsLiftedAndRecorded(t *testing.T) {
	can := all(t)
	p := &puppet{startup: 100 * time.Millisecond}
	h, err := play(t, p, Config{Names: can, Count: len(can), Seed: 3}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	down, stopped := map[string]bool{}, map[string]bool{}
	for _, d := range p.did {
		what, node, _ := strings.Cut(d, " ")
		switch what {
		case "kill", "stop":
			down[node] = true
		case "start":
			delete(down, node)
		case "pause", "drain":
			stopped[node] = true
		case "continue", "undrain":
			delete(stopped, node)
		}
	}
	if len(down)+len(stopped) > 0 {
		t.Fatalf("left broken: %v %v after %v", down, stopped, p.did)
	}
	var names []string
	for _, f := range h.Faults {
		names = append(names, f.Name)
		if f.End < f.Start {
			t.Errorf("%+v", f)
		}
	}
	slices.Sort(names)
	slices.Sort(can)
	if !slices.Equal(names, can) {
		t.Fatalf("recorded %v, want each of %v once", names, can)
	}
}

func TestEndOfTheRunLeavesNothingBroken(t *testing.T) {
	p := &puppet{}
	// The run ends in the middle of the pause.
	if _, err := play(t, p, Config{Names: []string{"pause-alloc"}}, 3*time.Second); err != nil {
		t.Fatal(err)
	}
	if n := len(p.did); n != 2 || !strings.HasPrefix(p.did[1], "continue") {
		t.Fatalf("did %v", p.did)
	}
}

func TestSlowRestartCountsAsALoss(t *testing.T) {
	for startup, losses := range map[time.Duration]int{300 * time.Millisecond: 0, 900 * time.Millisecond: 1} {
		h, err := play(t, &puppet{startup: startup}, Config{Names: []string{"kill-alloc"}, Count: 1}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		total := 0
		for _, f := range h.Faults {
			total += f.Losses
		}
		if total != losses {
			t.Errorf("restart in %v counts %d losses, want %d", startup, total, losses)
		}
	}
}

func TestSameSeedDoesTheSameHarm(t *testing.T) {
	harm := func() []string {
		p := &puppet{}
		if _, err := play(t, p, Config{Names: all(t), Count: 20, Seed: 11}, time.Hour); err != nil {
			t.Fatal(err)
		}
		return p.did
	}
	if a, b := harm(), harm(); !slices.Equal(a, b) {
		t.Fatalf("%v\n%v", a, b)
	}
}

func TestNodeThatDoesNotComeBackEndsTheRun(t *testing.T) {
	broken := errors.New("does not start")
	_, err := play(t, &puppet{broken: broken}, Config{Names: []string{"kill-leader"}}, time.Hour)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "kill-leader on s") {
		t.Fatalf("got %v", err)
	}
}

func TestPlanSkipsByNameAndRefusesTheUnknown(t *testing.T) {
	can, skipped, err := Plan([]string{"kill-alloc", "clock"}, 1)
	if err != nil || !slices.Equal(can, []string{"kill-alloc"}) || len(skipped) != 1 || !strings.HasPrefix(skipped[0], "clock: ") {
		t.Fatalf("%v %v %v", can, skipped, err)
	}
	if _, _, err := Plan([]string{"meteor"}, 1); err == nil || !strings.Contains(err.Error(), fmt.Sprint(Names())) {
		t.Fatalf("got %v", err)
	}
	if _, err := play(t, &puppet{}, Config{Names: []string{"clock"}}, time.Minute); err == nil {
		t.Fatal("a fault that cannot be injected was accepted")
	}
}

// The half of the keys that moves is always taken from where it is.
func TestMovesGoOnFromWhereTheLastOneEnded(t *testing.T) {
	p := &puppet{}
	if _, err := play(t, p, Config{Names: []string{"migrate"}, Count: 12, Seed: 5}, time.Hour); err != nil {
		t.Fatal(err)
	}
	at, seen := "s1", map[string]bool{}
	for _, d := range p.did {
		var from, to string
		if _, err := fmt.Sscanf(d, "move %s %s", &from, &to); err != nil || from != at || to == from {
			t.Fatalf("%q while the half is at %s (%v)", d, at, err)
		}
		at, seen[to] = to, true
	}
	if len(p.did) != 12 || len(seen) != 3 {
		t.Errorf("did %v", p.did)
	}
}

func TestMovesAreSkippedWhereThereIsOneSet(t *testing.T) {
	can, skipped, err := Plan([]string{"migrate", "drain"}, 1)
	if err != nil || !slices.Equal(can, []string{"drain"}) || len(skipped) != 1 || !strings.HasPrefix(skipped[0], "migrate: ") {
		t.Fatalf("%v %v %v", can, skipped, err)
	}
}
