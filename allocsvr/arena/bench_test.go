package arena

import (
	"fmt"
	"math/rand/v2"
	"os"
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

// How the cost grows with keys. The larger ones need 160 MB and 1.6 GB of /dev/shm.
func BenchmarkTakeByKeys(b *testing.B) {
	sizes := []uint64{1e4, 1e5, 1e6}
	if os.Getenv("SEQ_LONG") != "" {
		sizes = append(sizes, 1e7, 1e8)
	}
	for _, keys := range sizes {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			o := testOptions(nil)
			o.Path, o.MaxBytes = filepath.Join("/dev/shm", "seqsvr-bench.arena"), 2<<30
			a := openArena(b, o)
			defer func() { _ = a.Close(true) }()
			for i := range keys {
				ensure(b, a, uid(i)).Extend(0, ids.MaxSeq)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for b.Loop() {
				tok := a.Guard().Enter()
				c, _ := a.Find(uid(rng.Uint64() % keys))
				c.Take(1)
				tok.Exit()
			}
		})
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

func TestSeekTakesAnyKeyAndFindsWhatFindFinds(t *testing.T) {
	var none Arena
	if _, ok := none.Seek(uid(1)); ok {
		t.Fatal("an arena that is not ready found a key")
	}
	a := heapArena(t)
	u, n := uid(123), name(t, "room")
	ensure(t, a, u).Extend(0, 10)
	ensure(t, a, n).Extend(0, 20)
	defer a.Guard().Enter().Exit()
	for _, c := range []struct {
		k     ids.Key
		bound ids.Seq
	}{{u, 10}, {n, 20}} {
		cell, ok := a.Seek(c.k)
		if cur, bound, closed := cell.Load(); !ok || cur != 0 || bound != c.bound || closed {
			t.Errorf("%v: found %v, %d %d %v", c.k, ok, cur, bound, closed)
		}
	}
	for _, k := range []ids.Key{uid(1 << 40), name(t, "hall"), {Space: 999}, {}} {
		if _, ok := a.Seek(k); ok {
			t.Errorf("%v was never added, and found", k)
		}
	}
	unused, ok := a.Seek(uid(124)) // of the same page
	if _, _, r := unused.Take(1); ok && r != TakeClosed {
		t.Errorf("an unused cell gave %v", r)
	}
	if _, ok := a.Find(uid(124)); ok {
		t.Error("Seek added a key")
	}
}

// What a batch found before it looks whether the section is open must yield nothing
// of an epoch that is over.
func TestACellSoughtBeforeItsSectionOpensAnewIsClosed(t *testing.T) {
	a := heapArena(t)
	u, n := uid(123), name(t, "room")
	for _, k := range []ids.Key{u, n} {
		ensure(t, a, k).Extend(0, 10)
		in := a.Guard().Enter()
		cell, ok := a.Seek(k)
		sec := k.Section(testSections)
		epoch, _ := a.Section(sec)
		if err := a.OpenSection(sec, epoch+1); err != nil || !ok {
			t.Fatal(ok, err)
		}
		ensure(t, a, k).Extend(10, 20)
		if _, _, r := cell.Take(1); r != TakeClosed {
			t.Errorf("%v: a cell of the earlier epoch gave %v", k, r)
		}
		in.Exit()
	}
}
