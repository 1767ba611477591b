package arena

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
)

func BenchmarkTakeUniform(b *testing.B) {
	const keys = 1 << 20
	o := testOptions(nil)
	o.Path = filepath.Join("/dev/shm", "seqsvr-bench.arena")
	a := openArena(b, o)
	b.Cleanup(func() { _ = a.Close(true) })
	for i := range uint64(keys) {
		ensure(b, a, uid(i)).Extend(0, ids.MaxSeq)
	}
	for _, guarded := range []bool{false, true} {
		for _, goroutines := range []int{1, 2} {
			b.Run(fmt.Sprintf("goroutines=%d/guard=%v", goroutines, guarded), func(b *testing.B) {
				b.ReportAllocs()
				var wg sync.WaitGroup
				for range goroutines {
					wg.Go(func() {
						rng := rand.New(rand.NewPCG(1, rand.Uint64()))
						for range b.N / goroutines {
							if guarded {
								tok := a.Guard().Enter()
								c, _ := a.Find(uid(rng.Uint64() % keys))
								c.Take(1)
								tok.Exit()
								continue
							}
							c, _ := a.Find(uid(rng.Uint64() % keys))
							c.Take(1)
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

func BenchmarkTakeOneKey(b *testing.B) {
	a := heapArena(b)
	c := ensure(b, a, uid(1))
	c.Extend(0, ids.MaxSeq)
	for b.Loop() {
		c.Take(1)
	}
}

func TestTheHotPathDoesNotAllocate(t *testing.T) {
	a := heapArena(t)
	u, n := uid(123), name(t, "room")
	ensure(t, a, u).Extend(0, 1<<40)
	ensure(t, a, n).Extend(0, 1<<40)
	if allocs := testing.AllocsPerRun(1000, func() {
		tok := a.Guard().Enter()
		c, _ := a.Find(u)
		c.Take(1)
		c, _ = a.Find(n)
		c.Take(1)
		c.Load()
		tok.Exit()
	}); allocs != 0 {
		t.Fatalf("%v allocations", allocs)
	}
}

func TestHintTakesAnyKey(t *testing.T) {
	var none Arena
	none.Hint(uid(1))
	a := heapArena(t)
	u := uid(123)
	ensure(t, a, u).Extend(0, 10)
	for _, k := range []ids.Key{u, uid(1 << 40), name(t, "room"), {Space: 999}, {}} {
		a.Hint(k)
	}
	if c, _ := a.Find(u); true {
		if cur, bound, closed := c.Load(); cur != 0 || bound != 10 || closed {
			t.Fatalf("after a hint: %d %d %v", cur, bound, closed)
		}
	}
	if _, ok := a.Find(uid(1 << 40)); ok {
		t.Fatal("a hint added a key")
	}
}
