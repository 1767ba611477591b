package arena

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// The arena against a map, over all that changes which keys there are, with the
// process dying in between.
func TestTheArenaHasTheKeysOfAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := NewHeap("heap", 0)
		open := func() *Arena {
			a, err := Open(testOptions(h))
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		a := open()
		defer func() { _ = a.Close(false) }()
		if err := a.Reset(testIdentity, testSections, testSpaces); err != nil {
			t.Fatal(err)
		}
		model := map[ids.Key]ids.Seq{}
		epoch := ids.Epoch(1)
		for s := range ids.Section(testSections) {
			_ = a.OpenSection(s, epoch)
		}
		// Few places, so that names share words, tags and tables.
		key := rapid.Custom(func(t *rapid.T) ids.Key {
			hi := rapid.Uint64Range(0, 3).Draw(t, "block")<<8 | rapid.Uint64Range(0, 5).Draw(t, "low")
			if rapid.Bool().Draw(t, "uid") {
				return uid(hi)
			}
			lo := rapid.Uint64Range(0, 3).Draw(t, "tag")<<60 | rapid.Uint64Range(0, 50).Draw(t, "lo")<<26
			return ids.Key{Space: 2, Hi: hi, Lo: lo}
		})
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				for _, k := range rapid.SliceOfN(key, 1, 40).Draw(t, "keys") {
					c, err := a.Ensure(k)
					if err != nil {
						t.Fatal(err)
					}
					if _, ok := model[k]; !ok {
						c.Extend(0, 1000)
						model[k] = 0
					}
					if first, _, r := c.Take(1); r != TakeOK || first != model[k]+1 {
						t.Fatalf("%s: %d, %v, want %d", k, first, r, model[k]+1)
					}
					model[k]++
				}
			},
			"free": func(t *rapid.T) {
				for _, k := range rapid.SliceOfN(key, 1, 40).Draw(t, "keys") {
					a.Free(k)
					delete(model, k)
				}
			},
			"move": func(t *rapid.T) {
				s := ids.Section(rapid.IntRange(0, 3).Draw(t, "section"))
				epoch++
				if err := a.OpenSection(s, epoch); err != nil {
					t.Fatal(err)
				}
				for k := range model {
					if k.Section(testSections) == s {
						delete(model, k)
					}
				}
			},
			"die": func(t *rapid.T) {
				_ = a.Close(false)
				a = open()
				if _, err := a.Previous(); err != nil {
					t.Fatal(err)
				}
				if err := a.Adopt(testIdentity.Incarnation); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				n := 0
				for s := range ids.Section(testSections) {
					a.Each(s, func(k ids.Key, c Cell) bool {
						n++
						if cur, _, _ := c.Load(); cur != model[k] {
							t.Fatalf("%s is at %d, want %d", k, cur, model[k])
						}
						if _, ok := a.Find(k); !ok {
							t.Fatalf("%s is listed but not found", k)
						}
						return true
					})
				}
				if n != len(model) || a.Stats().Keys != int64(n) {
					t.Fatalf("%d keys, %d counted, want %d", n, a.Stats().Keys, len(model))
				}
			},
		})
	})
}

func TestNamesAreFoundWhileOthersComeAndGo(t *testing.T) {
	a := heapArena(t)
	const stay = 3000
	key := func(i uint64) ids.Key { return ids.Key{Space: 2, Hi: i << 8, Lo: i * mulValue} }
	for i := range uint64(stay) {
		ensure(t, a, key(i)).Extend(0, 1<<40)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				tok := a.Guard().Enter()
				k := key(rand.Uint64N(stay))
				c, ok := a.Find(k)
				if !ok {
					t.Errorf("%s is not found", k)
				} else if _, _, r := c.Take(1); r != TakeOK {
					t.Error(r)
				}
				tok.Exit()
			}
		})
	}
	for round := range uint64(3) {
		for i := range uint64(6000) {
			ensure(t, a, key(stay+round*3000+i))
		}
		for i := range uint64(6000) {
			a.Free(key(stay + round*3000 + i))
		}
	}
	close(stop)
	wg.Wait()
}

// 32 bytes a name, and little more to find it.
func TestNamesTakeLittleMoreThanThirtyTwoBytes(t *testing.T) {
	if raceEnabled {
		t.Skip("slow, and there is nothing to race with")
	}
	o := testOptions(NewHeap("heap", 0))
	o.MaxBytes = 1 << 30
	a := openArena(t, o)
	const n = 200_000 // 12 500 a section, as 12.8 million names have in 1024 sections
	rng := rand.NewChaCha8([32]byte{1})
	var b [16]byte
	for range n {
		_, _ = rng.Read(b[:])
		ensure(t, a, ids.Key{Space: 2, Hi: binary.LittleEndian.Uint64(b[:]), Lo: binary.LittleEndian.Uint64(b[8:])})
	}
	st := a.Stats()
	perName := float64(st.Bytes+st.IndexBytes) / n
	t.Logf("%.2f bytes a name: %.2f in slots, %.2f to find it", perName, float64(st.Bytes)/n, float64(st.IndexBytes)/n)
	// A tenth, and a little for the last slot of each table, which is half empty.
	if perName > 32*1.11 {
		t.Errorf("%.2f bytes a name", perName)
	}
}

func BenchmarkFindName(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			o := testOptions(NewHeap("heap", 0))
			o.MaxBytes = 1 << 30
			a := openArena(b, o)
			keys := make([]ids.Key, n)
			for i := range keys {
				keys[i] = ids.Key{Space: 2, Hi: rand.Uint64(), Lo: rand.Uint64()}
				ensure(b, a, keys[i])
			}
			b.ResetTimer()
			for i := range b.N {
				if _, ok := a.Find(keys[i*7919%n]); !ok {
					b.Fatal("lost")
				}
			}
		})
	}
}
