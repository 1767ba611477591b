package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cluster"
)

// Of uids and names, many more than an arena holds, each is called again and again by
// clients that mix them, while one is called all the time. The pages of the arena are
// fewer than the sections, so names alone cannot have one each.
func TestUidsAndNamesTakeTurnsInAnArenaThatIsTooSmall(t *testing.T) {
	// A megabyte more than what holds pages.
	each, batch, mb := 6_000, 1000, 2
	if long() == 1 {
		each, batch, mb = 200_000, 5000, 3
	}
	f := startBeside(t, cluster.ProcessOptions{Stores: 3, Allocs: 1, Settings: func(node string) map[string]string {
		if node[0] != 'a' {
			return nil
		}
		return map[string]string{"arena_max_mb": strconv.Itoa(mb)}
	}})
	warm, most := f.keepWarm(t), f.mostKeys(t)
	keys := make([]client.Key, 0, 2*each)
	for i := range each {
		keys = append(keys, client.UID(uint64(i)), client.Name("conv", fmt.Sprintf("room-%d", i)))
	}
	var clients []*client.Client
	for range 4 {
		clients = append(clients, dialClient(t, f.p.Addrs()...))
	}
	for round := int64(1); round <= 3; round++ {
		var next, longest atomic.Int64
		parts := slices.Collect(slices.Chunk(keys, batch))
		began := time.Now()
		var wg sync.WaitGroup
		for _, c := range clients {
			wg.Go(func() {
				for n := next.Add(1) - 1; n < int64(len(parts)) && !t.Failed(); n = next.Add(1) - 1 {
					began := time.Now()
					if err := takeEach(t, c, parts[n], round); err != nil {
						t.Errorf("round %d, after %v: %v", round, time.Since(began), err)
					}
					for took, l := int64(time.Since(began)), longest.Load(); took > l && !longest.CompareAndSwap(l, took); l = longest.Load() {
					}
				}
			})
		}
		wg.Wait()
		took := time.Since(began)
		t.Logf("round %d: %d keys in %v, %.0f a second; the longest call of %d took %v, and meanwhile %s", round, len(keys), took.Round(time.Millisecond),
			float64(len(keys))/took.Seconds(), batch, time.Duration(longest.Load()).Round(time.Millisecond), warm())
		rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	}
	if n := most(); n == 0 || n > uint64(len(keys)*3/4) {
		t.Errorf("up to %d of %d keys were held at a time: that is no lack of room", n, len(keys))
	} else {
		t.Logf("up to %d keys were held at a time", n)
	}
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
