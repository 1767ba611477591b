package cluster

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seqsvr/seqsvr/client"
)

// BenchmarkRaises has each key of a call raised durably, through the SDK, three
// AllocSvrs and three StoreSvrs with real files, all in this process. An iteration is 1000 keys.
//
// cold: each key is touched for the first time, in ascending order, as after a cold start.
// random: a whole step of each, of ten million at random.
func BenchmarkRaises(b *testing.B) {
	const batch, callers, step = 1000, 32, 10_000
	shm, err := os.MkdirTemp("/dev/shm", "seqsvr-bench-")
	if err != nil {
		b.Skip("an arena is wanted on a memory file system: ", err)
	}
	b.Cleanup(func() { os.RemoveAll(shm) })
	sdk, _ := started(b, Options{Allocs: 3, ArenaPath: func(node string) string { return filepath.Join(shm, node) }})
	ctx := context.Background()
	var next atomic.Uint64
	for _, kind := range []string{"cold", "random"} {
		b.Run(kind, func(b *testing.B) {
			began := cpu()
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(b.N), uint64(i)))
					reqs := make([]client.Request, batch)
					for left.Add(-1) >= 0 {
						first := next.Add(batch)
						for j := range reqs {
							if reqs[j] = (client.Request{Key: client.UID(first + uint64(j)), N: 1}); kind == "random" {
								reqs[j] = client.Request{Key: client.UID(rng.Uint64N(10_000_000)), N: step}
							}
						}
						if _, err := sdk.AllocMany(ctx, reqs); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "keys/s")
			b.ReportMetric(float64(cpu()-began)/float64(b.N*batch), "cpu-ns/key")
		})
	}
}
