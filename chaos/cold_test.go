package chaos

import (
	"context"
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
	f := startBeside(t, cluster.ProcessOptions{Stores: 3, Allocs: 1, Settings: func(node string) map[string]string {
		if node[0] != 'a' {
			return nil
		}
		return map[string]string{"arena_max_mb": strconv.Itoa(mb + 1)}
	}})
	warm := f.keepWarm(t)
	most := f.mostKeys(t)

	const callers, batch = 4, 5000
	key := func(i int) client.Key { return client.UID(uint64(i)) }
	each := func(what string, call func(from int)) {
		began := time.Now()
		var longest atomic.Int64
		var wg sync.WaitGroup
		var next atomic.Int64
		for range callers {
			wg.Go(func() {
				for from := int(next.Add(batch)) - batch; from < keys && !t.Failed(); from = int(next.Add(batch)) - batch {
					began := time.Now()
					call(from)
					for took := int64(time.Since(began)); took > longest.Load(); {
						longest.Store(took)
					}
				}
			})
		}
		wg.Wait()
		took := time.Since(began)
		t.Logf("%s %d keys: %v, %.0f a second; the longest call of %d took %v, and meanwhile %s",
			what, keys, took.Round(time.Millisecond), float64(keys)/took.Seconds(), batch, time.Duration(longest.Load()).Round(time.Millisecond), warm())
	}
	each("touching", func(from int) {
		reqs := make([]client.Request, batch)
		for i := range reqs {
			reqs[i] = client.Request{Key: key(from + i), N: 1}
		}
		res, err := f.client.AllocMany(t.Context(), reqs)
		if err != nil {
			t.Errorf("from key %d: %v", from, err)
			return
		}
		for _, r := range res {
			if r.First != 1 || r.Discontinuity != nil {
				t.Errorf("first touch: %+v", r)
				return
			}
		}
	})
	each("reading", func(from int) {
		ks := make([]client.Key, batch)
		for i := range ks {
			ks[i] = key(from + i)
		}
		got, err := f.client.CurrentMany(t.Context(), ks)
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
		reqs := make([]client.Request, batch)
		for i := range reqs {
			reqs[i] = client.Request{Key: key(part*keys/10 + batch/2 + i), N: 1}
		}
		res, err := f.client.AllocMany(t.Context(), reqs)
		must(t, err)
		for _, r := range res {
			if r.First != 2 || r.Discontinuity != nil {
				t.Fatalf("second touch: %+v", r)
			}
		}
	}
	if n, limit := most(), uint64(mb*256*256); n == 0 || n > limit {
		t.Errorf("up to %d keys were held at a time, the arena is for %d", n, limit)
	} else {
		t.Logf("up to %d keys were held at a time", n)
	}
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
