package allocsvr

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/clock"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// warmServer is a real server, with production's clock and an arena in shared
// memory, that has the first uids.
func warmServer(b testing.TB, uids int, change ...func(*Config)) *Server {
	b.Helper()
	store := storetest.New(storetest.Config{Sections: 1024, Auto: true})
	cfg := Config{
		Node: "bench", Cluster: "test", Addr: "bench:1", Stores: []string{"store-1"}, Dial: store.Dial(&storetest.Net{}),
		Region: arena.NewFile(filepath.Join("/dev/shm", fmt.Sprintf("seqsvr-bench-%d.arena", rand.Uint32())), 1<<30),
		Clock:  clock.Boottime(), Steps: raise.Fixed(1 << 30), BootID: "boot",
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := Start(cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.shutdown(true); store.Close() })
	for deadline := time.Now().Add(20 * time.Second); s.Ready() != nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatal(s.Ready())
		}
	}
	for at := 0; at < uids; at += DefaultMaxBatchKeys {
		req := &seqpb.AllocRequest{Space: "uid"}
		for u := at; u < min(uids, at+DefaultMaxBatchKeys); u++ {
			req.Uids = append(req.Uids, uint64(u))
		}
		rep, err := s.Alloc(context.Background(), req)
		if err != nil || len(rep.Failures) > 0 {
			b.Fatalf("%v, %d failures", err, len(rep.Failures))
		}
	}
	return s
}

func BenchmarkAllocOne(b *testing.B) {
	benchUniform(b, 1, func(s *Server, asks []Ask) (err error) {
		_, err = s.AllocOne(context.Background(), asks[0].Key, 1, nil)
		return err
	})
}

func BenchmarkAllocEach(b *testing.B) {
	benchUniform(b, 1000, func(s *Server, asks []Ask) error {
		s.AllocEach(context.Background(), asks, time.Second)
		return asks[0].Err
	})
}

// benchUniform has calls for so many keys at a time, at random, by one and two
// goroutines. An iteration is one key.
func benchUniform(b *testing.B, batch int, call func(s *Server, asks []Ask) error) {
	const keysMax = 1 << 20
	s := warmServer(b, keysMax)
	for _, c := range []struct{ keys, goroutines int }{{1 << 10, 1}, {1 << 10, 2}, {keysMax, 1}, {keysMax, 2}} {
		keys, goroutines := uint64(c.keys), c.goroutines
		b.Run(fmt.Sprintf("keys=%d/goroutines=%d", keys, goroutines), func(b *testing.B) {
			var wg sync.WaitGroup
			for range goroutines {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(1, rand.Uint64()))
					asks := make([]Ask, batch)
					for range b.N / goroutines / batch {
						for i := range asks {
							asks[i] = Ask{Key: uid(rng.Uint64() % keys), N: 1}
						}
						if err := call(s, asks); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mkeys/s")
		})
	}
}

// Once the steps have grown, an adaptive policy costs a warm call what a fixed one does.
func BenchmarkAllocOneByPolicy(b *testing.B) {
	for _, c := range []struct {
		name  string
		steps raise.Steps
	}{
		{"fixed", raise.Fixed(1 << 20)},
		{"adaptive", raise.Steps{Adaptive: true, Min: 10, Max: 1 << 20, Target: raise.DefaultTarget}},
	} {
		b.Run(c.name, func(b *testing.B) {
			const keys = 1024
			s := warmServer(b, keys, func(cfg *Config) { cfg.Steps = c.steps })
			call := func(i int) {
				if _, err := s.AllocOne(context.Background(), uid(uint64(i%keys)), 1, nil); err != nil {
					b.Fatal(err)
				}
			}
			for i := range 2_000_000 {
				call(i)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				call(i)
			}
		})
	}
}

func TestAllocOneDoesNotAllocate(t *testing.T) {
	s := warmServer(t, 1)
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := s.AllocOne(context.Background(), uid(0), 1, nil); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations a call", n)
	}
}

func TestAllocEachDoesNotAllocate(t *testing.T) {
	s := warmServer(t, 64)
	asks := make([]Ask, 64)
	for i := range asks {
		asks[i] = Ask{Key: uid(uint64(i)), N: 1}
	}
	if n := testing.AllocsPerRun(1000, func() {
		s.AllocEach(context.Background(), asks, time.Second)
		for i := range asks {
			if asks[i].Err != nil {
				t.Fatal(asks[i].Err)
			}
		}
	}); n != 0 {
		t.Fatalf("%v allocations a call", n)
	}
}

func TestAllocEachAnswersEachAskByItself(t *testing.T) {
	s := warmServer(t, 1)
	asks := []Ask{{Key: uid(0), N: 2}, {Key: uid(0), N: 0}, {Key: uid(7), N: 1}, {Key: uid(0), N: 3}, {Key: ids.Key{Space: 99}, N: 1}}
	s.AllocEach(context.Background(), asks, time.Second)
	for i, want := range []ids.Seq{2, 0, 1, 4, 0} {
		if a := asks[i]; a.First != want || (want == 0) != (a.Err != nil) {
			t.Errorf("ask %d: %+v, want first %d", i, a, want)
		}
	}
	reads := []Read{{Key: uid(0)}, {Key: uid(7)}, {Key: uid(8)}}
	s.CurrentEach(context.Background(), reads, time.Second)
	for i, want := range []ids.Seq{6, 1, 0} {
		if reads[i].Err != nil || reads[i].Value != want {
			t.Errorf("read %d: %+v, want %d", i, reads[i], want)
		}
	}
}
