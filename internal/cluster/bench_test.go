package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/client"
)

// warm starts a cluster with one AllocSvr, and dials it; the first uids have numbers.
func warm(b testing.TB, uids int) *client.Client {
	sdk, _ := warmCluster(b, uids)
	return sdk
}

func warmCluster(b testing.TB, uids int) (*client.Client, *Cluster) {
	b.Helper()
	sdk, c := started(b, Options{Allocs: 1, Redis: "127.0.0.1:0"})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var reqs []client.Request
	for u := range uids {
		reqs = append(reqs, client.Request{Key: client.UID(uint64(u)), N: 1})
	}
	if _, err := sdk.AllocMany(ctx, reqs); err != nil {
		b.Fatal(err)
	}
	return sdk, c
}

// started is a cluster on a directory of its own, ready, and dialed.
func started(b testing.TB, o Options) (*client.Client, *Cluster) {
	b.Helper()
	o.Dir, o.StopLinger = b.TempDir(), time.Millisecond
	c, err := Start(o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Kill() })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.WaitReady(ctx); err != nil {
		b.Fatal(err)
	}
	sdk, err := client.Dial(ctx, c.Addrs())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { sdk.Close() })
	return sdk, c
}

func BenchmarkSDK(b *testing.B) {
	const uids = 100_000
	sdk := warm(b, uids)
	for _, c := range []struct{ callers, batch int }{{1, 1}, {64, 1}, {2, 1000}, {4, 1000}} {
		b.Run(fmt.Sprintf("callers=%d/keys=%d", c.callers, c.batch), func(b *testing.B) {
			b.ReportAllocs()
			began := cpu()
			var wg sync.WaitGroup
			for i := range c.callers {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(1, uint64(i)))
					reqs := make([]client.Request, c.batch)
					for range b.N / c.callers {
						for j := range reqs {
							reqs[j] = client.Request{Key: client.UID(rng.Uint64() % uids), N: 1}
						}
						var err error
						if c.batch == 1 {
							_, err = sdk.Alloc(context.Background(), reqs[0].Key)
						} else {
							_, err = sdk.AllocMany(context.Background(), reqs)
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N*c.batch)/b.Elapsed().Seconds(), "keys/s")
			b.ReportMetric(float64(cpu()-began)/float64(b.N*c.batch), "cpu-ns/key")
		})
	}
}

// cpu is the processor time that this process has used: it says more than the
// time that passes on a machine that others use.
func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
