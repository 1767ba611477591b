package arena

import (
	"errors"
	"sync"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// A record and its numbers are there both or neither, wherever the process dies.
func TestDyingWhileNotingLeavesBothOrNeither(t *testing.T) {
	k := uid(77)
	for what, tc := range map[string]struct {
		prepare func(c Cell)
		act     func(c Cell, n *Note)
		before  ids.Seq // number before the first
	}{
		"take":        {func(c Cell) { c.Extend(0, 10); c.Take(4) }, func(c Cell, n *Note) { c.TakeNoted(2, n) }, 4},
		"extend take": {func(Cell) {}, func(c Cell, n *Note) { c.ExtendTakeNoted(4, 14, 2, n) }, 4},
		"reopen take": {func(c Cell) { c.Extend(0, 10); c.Take(4); c.Close() }, func(c Cell, n *Note) { c.ReopenTakeNoted(4, 14, 2, n) }, 4},
		"reopen an open one": {
			func(c Cell) { c.Extend(0, 10); c.Take(4) }, func(c Cell, n *Note) { c.ReopenTakeNoted(4, 14, 2, n) }, 4,
		},
	} {
		t.Run(what, func(t *testing.T) {
			both, neither := 0, 0
			for at := 0; ; at++ {
				h := NewHeap("heap", 0)
				a := openArena(t, testOptions(h))
				c := ensure(t, a, k)
				tc.prepare(c)
				records := map[ids.Seq]int{}
				died := dieAt(a, at, func() {
					tc.act(c, &Note{Key: k, Data: [3]uint64{7, 8, 9}, Commit: func(first ids.Seq) {
						records[first]++
						a.owner.note()
					}})
				})
				_ = a.Close(false)

				a, err := Open(testOptions(h))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := a.Previous(); err != nil {
					t.Fatalf("death %d: %v", at, err)
				}
				a.OnAdopt(nil, func(in Intent) error {
					if in.Key != k || in.N != 2 || in.Data != [3]uint64{7, 8, 9} {
						t.Errorf("intent %+v", in)
					}
					records[in.First]++
					return nil
				})
				if err := a.Adopt(4); err != nil {
					t.Fatal(err)
				}
				c, _ = a.Find(k)
				cur, max, closed := c.Load()
				switch {
				case len(records) == 0 && (max == 0 || cur == tc.before):
					neither++
				case len(records) == 1 && records[tc.before+1] > 0 && cur == tc.before+2 && !closed:
					both++
				default:
					t.Fatalf("death %d: records %v, cell (%d, %d, %v)", at, records, cur, max, closed)
				}
				if max != 0 && !closed {
					if first, _, r := c.Take(1); r != TakeOK || first != cur+1 {
						t.Fatalf("death %d: %d, %v", at, first, r)
					}
				}
				_ = a.Close(false)
				if !died {
					break
				}
			}
			if both < 3 || neither < 1 {
				t.Fatalf("both %d times, neither %d times: not all was tried", both, neither)
			}
		})
	}
}

func TestANoteThatCannotBeKeptFreesItsNumbers(t *testing.T) {
	h := NewHeap("heap", 0)
	a := openArena(t, testOptions(h))
	c := ensure(t, a, uid(1))
	c.Extend(0, 10)
	dieAt(a, 1, func() { c.TakeNoted(2, &Note{Key: uid(1), Commit: func(ids.Seq) {}}) })
	_ = a.Close(false)
	a, err := Open(testOptions(h))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(false)
	if _, err := a.Previous(); err != nil {
		t.Fatal(err)
	}
	asked := 0
	a.OnAdopt(nil, func(Intent) error { asked++; return errors.New("full") })
	if err := a.Adopt(4); err != nil {
		t.Fatal(err)
	}
	c, _ = a.Find(uid(1))
	if first, _, r := c.Take(1); r != TakeOK || first != 1 || asked != 1 {
		t.Fatal(first, r, asked)
	}
}

func TestNotedAndPlainTakersShareAKey(t *testing.T) {
	a := heapArena(t)
	const each = 5000
	c := ensure(t, a, uid(1))
	c.Extend(0, 1<<40)
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[ids.Seq]int{}
	for g := range 4 {
		wg.Go(func() {
			mine := make([]ids.Seq, 0, each)
			for range each {
				defer a.Guard().Enter().Exit()
				if g%2 == 0 {
					first, _, _ := c.Take(1)
					mine = append(mine, first)
					continue
				}
				committed := ids.Seq(0)
				first, _, _ := c.TakeNoted(1, &Note{Key: uid(1), Commit: func(f ids.Seq) { committed = f }})
				if first != committed {
					t.Errorf("took %d, noted %d", first, committed)
				}
				mine = append(mine, first)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, n := range mine {
				seen[n]++
			}
		})
	}
	wg.Wait()
	for n := ids.Seq(1); n <= 4*each; n++ {
		if seen[n] != 1 {
			t.Fatalf("%d was issued %d times", n, seen[n])
		}
	}
}

func TestRecordPagesLiveAndDieWithTheSection(t *testing.T) {
	h := NewHeap("heap", 0)
	a := openArena(t, testOptions(h))
	p, err := a.TakePage(3)
	if err != nil {
		t.Fatal(err)
	}
	p.Words[0].Store(99)
	other, _ := a.TakePage(3)
	a.GivePage(other)
	a.GivePage(other)
	a.NoteRecordsSince(3, 1700000000000)
	_ = a.Close(false)

	a = reopen(t, testOptions(h))
	pages, life := a.Pages(3)
	if len(pages) != 1 || pages[0].Words[0].Load() != 99 || a.RecordsSince(3) != 1700000000000 || a.Life(3) != life || life == 0 {
		t.Fatal(pages, life, a.RecordsSince(3))
	}
	a.FreeSection(3)
	if again, l := a.Pages(3); len(again) != 0 || l == life || a.RecordsSince(3) != 0 {
		t.Fatal("the pages outlived their section")
	}
	a.GivePage(pages[0]) // of an earlier life: no harm
	if p, err := a.TakePage(3); err != nil || p.Words[0].Load() != 0 {
		t.Fatal("a page is not zeroed", err)
	}
	if a.Life(testSections) != 0 {
		t.Fatal("a section that does not exist lives")
	}
}
