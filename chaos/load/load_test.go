package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/seqsvr/seqsvr/chaos/check"
	"github.com/seqsvr/seqsvr/chaos/history"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a correct service that takes its time and sometimes fails.
type memory struct {
	mu     sync.Mutex
	at     map[string]int64
	window map[history.RequestID]history.Op
	calls  int
	// skip makes it hide a number now and then, to show that a run is looked at.
	skip bool
}

func newMemory() *memory {
	return &memory{at: map[string]int64{}, window: map[history.RequestID]history.Op{}}
}

func (m *memory) alloc(r Request) history.Op {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.calls%17 == 0 {
		return history.Op{Outcome: history.Failed, Err: "busy"}
	}
	if a, ok := m.window[r.ID]; ok {
		a.Replayed = true
		return a
	}
	if m.skip && m.calls%50 == 0 {
		m.at[r.Key]++
	}
	a := history.Op{Outcome: history.OK, First: m.at[r.Key] + 1, Count: r.N}
	m.at[r.Key] += int64(r.N)
	if !r.ID.IsZero() {
		m.window[r.ID] = a
	}
	if m.calls%23 == 0 {
		return history.Op{Outcome: history.Unknown, Err: "unknown_result"}
	}
	return a
}

func (m *memory) Alloc(ctx context.Context, r Request) history.Op {
	pause(ctx, time.Millisecond)
	a := m.alloc(r)
	pause(ctx, time.Millisecond)
	return a
}

func (m *memory) AllocMany(ctx context.Context, rs []Request) []history.Op {
	pause(ctx, time.Millisecond)
	var out []history.Op
	for _, r := range rs {
		out = append(out, m.alloc(r))
	}
	return out
}

func (m *memory) Current(ctx context.Context, keys []string) []history.Op {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []history.Op
	for _, k := range keys {
		out = append(out, history.Op{Outcome: history.OK, Value: m.at[k]})
	}
	return out
}

func (m *memory) Gaps(_ context.Context, key string) ([]history.Gap, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.calls%5 == 0 {
		return nil, errors.New("not now")
	}
	return nil, nil
}

func keys(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("uid/%d", i))
	}
	return out
}

func run(t *testing.T, m *memory, cfg Config, d time.Duration) *history.History {
	t.Helper()
	var h *history.History
	synctest.Test(t, func(t *testing.T) {
		rec := history.NewRecorder()
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		if err := Run(ctx, cfg, rec, func(int) Target { return m }); err != nil {
			t.Fatal(err)
		}
		if err := Finish(t.Context(), rec, cfg.Keys, m); err != nil {
			t.Fatal(err)
		}
		h = rec.History()
	})
	return h
}

func TestRunOnACorrectServiceIsAGoodHistory(t *testing.T) {
	h := run(t, newMemory(), Config{Keys: keys(20), Seed: 1, WithID: 0.5, Repeat: 0.3, Skew: 1.2}, 2*time.Second)
	r := check.Check(h, check.Options{})
	if !r.OK {
		t.Fatal(r.Err())
	}
	kinds, replayed := map[history.Kind]int{}, 0
	for _, o := range h.Ops {
		kinds[o.Kind]++
		if o.Replayed {
			replayed++
		}
	}
	if kinds[history.Alloc] < 1000 || kinds[history.Current] < 200 || replayed < 50 || r.Unknown == 0 || r.Failed == 0 {
		t.Fatalf("a dull run: %v, %d replayed, %d unknown, %d failed", kinds, replayed, r.Unknown, r.Failed)
	}
}

func TestRunOnABadServiceIsABadHistory(t *testing.T) {
	m := newMemory()
	m.skip = true
	h := run(t, m, Config{Keys: keys(5), Seed: 1}, 2*time.Second)
	if r := check.Check(h, check.Options{}); r.OK || r.UndeclaredGaps == 0 {
		t.Fatal("skipped numbers were not seen")
	}
}

func TestRateLimitsEachClient(t *testing.T) {
	h := run(t, newMemory(), Config{Keys: keys(1), Clients: 3, Rate: 10, Mix: Mix{Alloc: 1}}, 10*time.Second+time.Millisecond)
	if n := len(h.Ops); n < 300 || n > 306 { // and what Finish adds
		t.Fatalf("%d calls of 3 clients in 10 s at 10 a second", n)
	}
}

func TestSameSeedMakesTheSameCalls(t *testing.T) {
	calls := func() (s string) {
		h := run(t, newMemory(), Config{Keys: keys(9), Clients: 2, Ops: 50, Seed: 7, WithID: 0.5, Repeat: 0.5}, time.Minute)
		for _, o := range h.Ops {
			if o.Client < 2 {
				s += fmt.Sprint(o.Client, o.Kind, o.Key, o.N, o.Request, "\n")
			}
		}
		return s
	}
	if a, b := calls(), calls(); a != b {
		t.Fatal("two runs of one seed made different calls")
	}
}

func TestFinishSaysWhichKeyIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := Finish(ctx, history.NewRecorder(), []string{"uid/7"}, down{newMemory()})
		if !errors.Is(err, context.DeadlineExceeded) || err.Error() != "load: key uid/7: allocate: context deadline exceeded" {
			t.Fatalf("got %v", err)
		}
	})
}

type down struct{ *memory }

func (down) Alloc(context.Context, Request) history.Op {
	return history.Op{Outcome: history.Failed, Err: "unavailable"}
}

func TestNoKeysIsAnError(t *testing.T) {
	if err := Run(t.Context(), Config{}, history.NewRecorder(), nil); err == nil {
		t.Fatal("ran on nothing")
	}
}
