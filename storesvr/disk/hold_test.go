package disk

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// metaOf is with a part of a move at hand, on its source or its target, or without.
func metaOf(out, in bool) *state.Meta {
	m := testMeta()
	if out {
		m.Out[1] = &state.Outgoing{Move: 1, Part: 1, Range: sets.Range{Space: 1, Last: 9}, To: "s2", Phase: state.OutSealed}
	}
	if in {
		m.In[1] = &state.Incoming{Move: 1, Part: 1, Range: sets.Range{Space: 1, Last: 9}, From: "s2", Phase: state.InImporting}
	}
	return m
}

// changing puts so many keys, of which a flush is due, and commits them with a meta state.
func changing(t *testing.T, n uint64, meta *state.Meta) *Store {
	s := openTest(t, t.TempDir(), Options{FlushKeys: 4, HardKeys: 400, Spread: func() float64 { return 0 }})
	for i := uint64(1); i <= n; i++ {
		s.Put(uid(i), rec(1))
	}
	s.Commit(1, meta)
	synctest.Wait()
	return s
}

func TestAFlushWaitsWhileAPartOfAMoveIsAtHand(t *testing.T) {
	for name, meta := range map[string]*state.Meta{"source": metaOf(true, false), "target": metaOf(false, true)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := changing(t, 5, meta)
				time.Sleep(calmMax - time.Millisecond)
				if n, _ := s.Flushes(); n != 0 {
					t.Fatal("a flush went on beside the part")
				}
				s.Commit(2, metaOf(false, false))
				time.Sleep(holdStep)
				synctest.Wait()
				n, took := s.Flushes()
				if n != 1 {
					t.Fatal("the part is over, and the flush still waits")
				}
				if took >= flushLong {
					t.Fatalf("the flush counts %v: its waiting is in it", took)
				}
			})
		})
	}
}

func TestAFlushWaitsForAPartNoLongerThanItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := changing(t, 5, metaOf(true, false))
		for i := range uint64(20) { // the same part all the time
			time.Sleep(calmMax / 20)
			s.Commit(2+i, metaOf(true, false))
		}
		time.Sleep(holdStep)
		synctest.Wait()
		if n, _ := s.Flushes(); n != 1 {
			t.Fatal("a part that stands still holds the flush up for ever")
		}
	})
}

func TestAFlushDoesNotWaitForAPartWithMuchDirtyOrSomebodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := changing(t, 400/growPart, metaOf(true, false))
		if n, _ := s.Flushes(); n != 1 {
			t.Fatal("with a quarter of the bound dirty the flush waits for a part")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := changing(t, 5, metaOf(true, false))
		began := time.Now()
		if err := s.Flush(t.Context(), 1, metaOf(true, false)); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > holdStep {
			t.Fatalf("who waits for the file waits %v for a part", d)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := changing(t, 5, metaOf(true, false))
		began := time.Now()
		mustClose(t, s)
		if d := time.Since(began); d > holdStep {
			t.Fatalf("closing waits %v for a part", d)
		}
	})
}
