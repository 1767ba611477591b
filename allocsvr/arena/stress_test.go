package arena

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// store is StoreSvr in a few lines, for one key: the oracle of what may be issued.
type store struct {
	mu           sync.Mutex
	floor, bound ids.Seq
	held         bool
}

func (s *store) extend(cur ids.Seq) (floor, bound ids.Seq) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held {
		s.floor, s.held = s.bound, true
	}
	s.floor = max(s.floor, cur)
	s.bound = max(s.bound, s.floor+50)
	return s.floor, s.bound
}

func (s *store) giveBack(t *testing.T, cur ids.Seq) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cur < s.floor || cur > s.bound {
		t.Errorf("handed back %d outside [%d, %d]", cur, s.floor, s.bound)
	}
	s.floor, s.bound, s.held = cur, cur, false
}

// Takers run against extensions, evictions with reopening or freeing, and whole
// sections closed, freed and opened anew. No number is issued twice, and since
// every hand-back is exact, none is left out.
func TestNoNumberTwiceWhileKeysCloseAndReopen(t *testing.T) {
	const keys, takers, perTaker = 12, 4, 4000
	a := heapArena(t)
	g := a.Guard()
	stores := make([]store, keys)
	slow := make([]sync.Mutex, keys) // one slow path per key at a time
	key := func(i int) ids.Key {
		if i%3 == 0 {
			return ids.Key{Space: 2, Hi: uint64(i%2) << 8, Lo: uint64(i) << 32}
		}
		return uid(uint64(i%2)<<8 + uint64(i))
	}

	// section(s) changes hold the lock for writing; slow paths hold it for reading.
	var epochs [testSections]struct {
		sync.RWMutex
		epoch ids.Epoch
	}
	for i := range epochs {
		epochs[i].epoch = 1
	}

	takeSlow := func(i int, n uint64) ids.Seq {
		e := &epochs[key(i).Section(testSections)]
		e.RLock()
		defer e.RUnlock()
		slow[i].Lock()
		defer slow[i].Unlock()
		tok := g.Enter()
		defer tok.Exit()
		c, err := a.Ensure(key(i))
		if err != nil {
			t.Error(err)
			return 0
		}
		for {
			first, _, r := c.Take(n)
			switch r {
			case TakeOK:
				return first
			case TakeEmpty:
				cur, max, _ := c.Load()
				floor, bound := stores[i].extend(cur)
				if max == 0 && rand.IntN(2) == 0 {
					if first := c.ExtendTake(floor, bound, n); first != 0 {
						return first
					}
				}
				c.Extend(floor, bound)
			case TakeClosed:
				c.Reopen(stores[i].extend(0))
			}
		}
	}

	var issued [keys][]ids.Seq
	var merge sync.Mutex
	var stopped atomic.Bool
	var takersWG, othersWG sync.WaitGroup
	for range takers {
		takersWG.Go(func() {
			var mine [keys][]ids.Seq
			for range perTaker {
				i, n := rand.IntN(keys), uint64(1+rand.IntN(3))
				tok := g.Enter()
				var first ids.Seq
				r := TakeClosed
				if c, ok := a.Find(key(i)); ok {
					first, _, r = c.Take(n)
				}
				tok.Exit()
				if r != TakeOK {
					first = takeSlow(i, n)
				}
				for j := range n {
					mine[i] = append(mine[i], first+ids.Seq(j))
				}
			}
			merge.Lock()
			defer merge.Unlock()
			for i := range mine {
				issued[i] = append(issued[i], mine[i]...)
			}
		})
	}
	evict := func(i int) {
		e := &epochs[key(i).Section(testSections)]
		e.RLock()
		defer e.RUnlock()
		slow[i].Lock()
		defer slow[i].Unlock()
		tok := g.Enter()
		c, ok := a.Find(key(i))
		if !ok {
			tok.Exit()
			return
		}
		c.Close()
		tok.Exit()
		if err := g.Wait(t.Context()); err != nil {
			t.Error(err)
			return
		}
		tok = g.Enter()
		defer tok.Exit()
		cur, max, _ := c.Load()
		if max != 0 {
			stores[i].giveBack(t, cur)
		}
		if rand.IntN(2) == 0 {
			a.Free(key(i))
		} else if max != 0 {
			c.Reopen(stores[i].extend(0))
		}
	}
	move := func(s ids.Section) {
		e := &epochs[s]
		e.Lock()
		defer e.Unlock()
		a.CloseSection(s)
		a.Each(s, func(_ ids.Key, c Cell) bool { c.Close(); return true })
		if err := g.Wait(t.Context()); err != nil {
			t.Error(err)
			return
		}
		for i := range keys {
			if key(i).Section(testSections) != s {
				continue
			}
			tok := g.Enter()
			if c, ok := a.Find(key(i)); ok {
				if cur, max, _ := c.Load(); max != 0 {
					stores[i].giveBack(t, cur)
				}
			}
			tok.Exit()
		}
		a.FreeSection(s)
		e.epoch++
		if err := a.OpenSection(s, e.epoch); err != nil {
			t.Error(err)
		}
	}
	othersWG.Go(func() {
		for !stopped.Load() {
			if rand.IntN(4) == 0 {
				move(ids.Section(rand.IntN(2)))
			} else {
				evict(rand.IntN(keys))
			}
		}
	})
	othersWG.Go(func() { // prefetch
		for !stopped.Load() {
			i := rand.IntN(keys)
			e := &epochs[key(i).Section(testSections)]
			e.RLock()
			slow[i].Lock()
			tok := g.Enter()
			if c, ok := a.Find(key(i)); ok {
				if cur, max, closed := c.Load(); max != 0 && !closed {
					c.Extend(stores[i].extend(cur))
				}
			}
			tok.Exit()
			slow[i].Unlock()
			e.RUnlock()
		}
	})
	takersWG.Wait()
	stopped.Store(true)
	othersWG.Wait()

	for i := range issued {
		slices.Sort(issued[i])
		for j, n := range issued[i] {
			if n != ids.Seq(j+1) {
				t.Fatalf("key %d: the %dth number is %d", i, j+1, n)
			}
		}
	}
}
