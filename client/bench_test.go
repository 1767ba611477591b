package client_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// instant answers every Alloc at once, so that what is measured is the client.
type instant struct{ *fakeCluster }

type instantConn struct{ client.Conn }

func (i instant) Dial(addr string) (client.Conn, error) {
	c, err := i.fakeCluster.Dial(addr)
	return instantConn{c}, err
}

func (instantConn) Alloc(_ context.Context, req *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
	first := make([]uint64, len(req.Uids))
	for i := range first {
		first[i] = 1
	}
	return &seqpb.AllocReply{First: first}, nil
}

func BenchmarkAlloc(b *testing.B) {
	for _, callers := range []int{1, 64} {
		for _, deadline := range []bool{false, true} {
			b.Run(fmt.Sprintf("callers=%d/deadline=%v", callers, deadline), func(b *testing.B) {
				c, err := client.Dial(b.Context(), []string{"a:1"}, client.WithTransport(instant{newFake("a:1", "b:1")}))
				if err != nil {
					b.Fatal(err)
				}
				defer c.Close()
				ctx := context.Background()
				if deadline {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, client.DefaultBudget*100)
					defer cancel()
				}
				b.ReportAllocs()
				b.SetParallelism(max(callers/2, 1))
				if callers == 1 {
					for uid := uint64(0); b.Loop(); uid++ {
						if _, err := c.Alloc(ctx, client.UID(uid%1e6)); err != nil {
							b.Fatal(err)
						}
					}
					return
				}
				b.RunParallel(func(pb *testing.PB) {
					for uid := uint64(0); pb.Next(); uid++ {
						if _, err := c.Alloc(ctx, client.UID(uid%1e6)); err != nil {
							b.Error(err)
						}
					}
				})
			})
		}
	}
}

func BenchmarkAllocMany(b *testing.B) {
	c, err := client.Dial(b.Context(), []string{"a:1"}, client.WithTransport(instant{newFake("a:1", "b:1")}))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	reqs := make([]client.Request, 1000)
	for i := range reqs {
		reqs[i] = client.Request{Key: client.UID(uint64(i) * 256), N: 1}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.AllocMany(context.Background(), reqs); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/key")
}

// A guard against work per key that creeps back: no allocation is made for a
// single key of a large call, here or there.
func TestAllocManyAllocatesNothingPerKey(t *testing.T) {
	c, err := client.Dial(t.Context(), []string{"a:1"}, client.WithTransport(instant{newFake("a:1", "b:1")}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	reqs := make([]client.Request, 1000)
	for i := range reqs {
		reqs[i] = client.Request{Key: client.UID(uint64(i)), N: 1}
	}
	mallocs := testing.AllocsPerRun(50, func() {
		if _, err := c.AllocMany(context.Background(), reqs); err != nil {
			t.Fatal(err)
		}
	})
	if most := float64(len(reqs)) / 10; mallocs > most {
		t.Errorf("%v allocations for %d keys, at most %v are expected", mallocs, len(reqs), most)
	}
}
