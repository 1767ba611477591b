package chaos

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cluster"
)

// Of far more keys than an arena holds each is called once, while one is called all
// the time. Only in the long form: the short one is allocsvr's, in simulated time.
func TestTenMillionKeysAreCalledInAnArenaForTwo(t *testing.T) {
	if long() == 0 {
		t.Skip("it takes five minutes")
	}
	// A megabyte is 256 pages, each of 256 uids.
	const keys, mb = 10_000_000, 31
	f := startBeside(t, arenaOf(mb+1))
	warm := f.keepWarm(t)
	most := f.mostKeys(t)

	const callers, batch = 4, 5000
	some := func(from int) []client.Key {
		ks := make([]client.Key, batch)
		for i := range ks {
			ks[i] = client.UID(uint64(from + i))
		}
		return ks
	}
	each := func(what string, call func(from int)) {
		took, longest := inParts(t, callers, keys/batch, func(_, part int) { call(part * batch) })
		t.Logf("%s: %s, and meanwhile %s", what, pace(keys, batch, took, longest), warm())
	}
	each("touching", func(from int) {
		if err := takeEach(t, f.client, some(from), 1); err != nil {
			t.Errorf("from key %d: %v", from, err)
		}
	})
	each("reading", func(from int) {
		got, err := f.client.CurrentMany(t.Context(), some(from))
		if err != nil {
			t.Errorf("from key %d: %v", from, err)
			return
		}
		for _, r := range got {
			if r.Current != 1 {
				t.Errorf("%s is at %d after one call", r.Key, r.Current)
				return
			}
		}
	})
	// Keys of all ages go on at the next number.
	for part := range 10 {
		must(t, takeEach(t, f.client, some(part*keys/10+batch/2), 2))
	}
	if n, limit := most(), uint64(mb*256*256); n == 0 || n > limit {
		t.Errorf("up to %d keys were held at a time, the arena is for %d", n, limit)
	} else {
		t.Logf("up to %d keys were held at a time", n)
	}
}

// arenaOf is a cluster whose one AllocSvr has an arena of so many megabytes, one more
// than what holds pages.
func arenaOf(mb int) cluster.ProcessOptions {
	return cluster.ProcessOptions{Stores: 3, Allocs: 1, Settings: func(node string) map[string]string {
		if node[0] != 'a' {
			return nil
		}
		return map[string]string{"arena_max_mb": strconv.Itoa(mb)}
	}}
}

// inParts has callers take the parts one after another until there are none, or the
// test failed: how long all took, and the longest of them.
func inParts(t *testing.T, callers, parts int, call func(caller, part int)) (took, longest time.Duration) {
	began := time.Now()
	var next atomic.Int64
	each := make([]time.Duration, callers)
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for part := int(next.Add(1)) - 1; part < parts && !t.Failed(); part = int(next.Add(1)) - 1 {
				began := time.Now()
				call(caller, part)
				each[caller] = max(each[caller], time.Since(began))
			}
		})
	}
	wg.Wait()
	return time.Since(began), slices.Max(each)
}

// pace says how fast keys were called in parts of so many.
func pace(keys, batch int, took, longest time.Duration) string {
	return fmt.Sprintf("%d keys in %v, %.0f a second; the longest call of %d took %v",
		keys, took.Round(time.Millisecond), float64(keys)/took.Seconds(), batch, longest.Round(time.Millisecond))
}

// takeEach takes one number of each key, which must be want.
func takeEach(t *testing.T, c *client.Client, keys []client.Key, want int64) error {
	reqs := make([]client.Request, len(keys))
	for i, k := range keys {
		reqs[i] = client.Request{Key: k, N: 1}
	}
	res, err := c.AllocMany(t.Context(), reqs)
	if err != nil {
		return err
	}
	for _, r := range res {
		if r.First != want || r.Discontinuity != nil {
			return fmt.Errorf("want number %d, got %+v", want, r)
		}
	}
	return nil
}

// keepWarm calls one key all the time; it tells how long those calls took since it
// was asked last.
func (f *fleet) keepWarm(t *testing.T) func() latency {
	c := dialClient(t, f.p.Addrs()...)
	ctx, stop := context.WithCancel(context.Background())
	var mu sync.Mutex
	var took []time.Duration
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticks := time.NewTicker(2 * time.Millisecond)
		defer ticks.Stop()
		for n := int64(1); ; n++ {
			select {
			case <-ticks.C:
			case <-ctx.Done():
				return
			}
			began := time.Now()
			r, err := c.Alloc(context.Background(), client.Name("conv", "kept warm"))
			if err != nil || r.First != n {
				t.Errorf("the warm key's call %d: %+v, %v", n, r, err)
				return
			}
			mu.Lock()
			took = append(took, time.Since(began))
			mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return func() latency {
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(took)
		n := len(took)
		if n == 0 {
			return latency{}
		}
		l := latency{calls: n, p50: took[n/2], p99: took[n*99/100], max: took[n-1]}
		took = took[:0]
		return l
	}
}

// mostKeys looks from now on at how many keys are held; it tells the most.
func (f *fleet) mostKeys(t *testing.T) func() uint64 {
	ctx, stop := context.WithCancel(context.Background())
	var most atomic.Uint64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if rep, err := f.p.Status(ctx); err == nil {
				for _, a := range rep.Sets[0].Allocs {
					most.Store(max(most.Load(), a.Keys))
				}
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return most.Load
}
