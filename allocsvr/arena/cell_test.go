package arena

import (
	"errors"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
)

func TestNumbersCountUpToTheBoundAndNoFurther(t *testing.T) {
	a := heapArena(t)
	c := ensure(t, a, uid(0))
	if _, left, r := c.Take(1); r != TakeEmpty || left != 0 {
		t.Fatalf("a fresh key gave %v, left %d", r, left)
	}
	c.Extend(0, 10)
	for want := ids.Seq(1); want <= 4; want++ {
		first, left, r := c.Take(1)
		if r != TakeOK || first != want || left != 10-want {
			t.Fatalf("got %d, left %d, %v", first, left, r)
		}
	}
	if first, left, r := c.Take(3); r != TakeOK || first != 5 || left != 3 {
		t.Fatalf("got %d, left %d, %v", first, left, r)
	}
	if _, left, r := c.Take(4); r != TakeEmpty || left != 3 {
		t.Fatalf("left %d, %v", left, r)
	}
	if _, left, r := c.Take(0); r != TakeEmpty || left != 3 {
		t.Fatalf("taking none: left %d, %v", left, r)
	}
	if _, _, r := c.Take(1<<64 - 1); r != TakeEmpty {
		t.Fatalf("an overflowing n gave %v", r)
	}
	if first, left, r := c.Take(3); r != TakeOK || first != 8 || left != 0 {
		t.Fatalf("got %d, left %d, %v", first, left, r)
	}
	wantCell(t, c, 10, 10, false)
}

func TestNumbersAreRightAroundThe48thBitAndAtTheEnd(t *testing.T) {
	a := heapArena(t)
	for _, floor := range []ids.Seq{1<<48 - 3, 1<<48 - 1, 1 << 48, 5<<48 - 2, ids.MaxSeq - 8} {
		c := ensure(t, a, uid(uint64(floor)))
		c.Extend(floor, floor+8)
		for i := ids.Seq(1); i <= 8; i++ {
			wantCell(t, c, floor+i-1, floor+8, false)
			first, left, r := c.Take(1)
			if first != floor+i || left != 8-i || r != TakeOK {
				t.Fatalf("floor %d: got %d, left %d, %v", floor, first, left, r)
			}
		}
		if _, _, r := c.Take(1); r != TakeEmpty {
			t.Fatalf("floor %d: %v past the bound", floor, r)
		}
	}
}

func TestABoundFarAwayIsServedInParts(t *testing.T) {
	a := heapArena(t)
	c := ensure(t, a, uid(1))
	c.Extend(7, ids.MaxSeq)
	wantCell(t, c, 7, 7+valueMask, false)
	if first, _, r := c.Take(1 << 47); first != 8 || r != TakeOK {
		t.Fatal(first, r)
	}
	c.Extend(7, ids.MaxSeq)
	wantCell(t, c, 7+1<<47, 7+1<<47+valueMask, false)
}

func TestExtendNeverLowersAndNeverOpens(t *testing.T) {
	a := heapArena(t)
	c := ensure(t, a, uid(3))
	c.Extend(100, 200)
	c.Take(50)
	c.Extend(0, 150)
	wantCell(t, c, 150, 200, false)
	c.Extend(100, 300)
	wantCell(t, c, 150, 300, false)
	c.Extend(250, 260)
	wantCell(t, c, 250, 260, false)
	if cur := c.Close(); cur != 250 {
		t.Fatal(cur)
	}
	if cur := c.Close(); cur != 250 {
		t.Fatal("closing twice:", cur)
	}
	if c.Extend(250, 900) {
		t.Fatal("extended a closed key")
	}
	if first := c.ExtendTake(250, 900, 1); first != 0 {
		t.Fatal("took from a closed key:", first)
	}
	if _, _, r := c.Take(1); r != TakeClosed {
		t.Fatal(r)
	}
	wantCell(t, c, 250, 260, true)
	c.Reopen(250, 350)
	wantCell(t, c, 250, 350, false)
	if first, _, _ := c.Take(1); first != 251 {
		t.Fatal(first)
	}
}

func TestReopeningNeverGoesBack(t *testing.T) {
	a := heapArena(t)
	c := ensure(t, a, uid(3))
	c.Extend(0, 100)
	c.Take(60)
	c.Close()
	c.Reopen(40, 140)
	wantCell(t, c, 60, 140, false)
	if first := func() ids.Seq { c.Close(); return c.ReopenTake(70, 170, 2) }(); first != 71 {
		t.Fatal(first)
	}
	wantCell(t, c, 72, 170, false)
	c.Close()
	c.Reopen(72, 100) // StoreSvr's new bound counts, also when it is lower
	wantCell(t, c, 72, 100, false)
	c.Close()
	if first := c.ReopenTake(72, 100, 29); first != 0 {
		t.Fatal("past the bound:", first)
	}
	wantCell(t, c, 72, 100, false)
}

func TestAKeyClosedBeforeItsFirstAnswerStaysClosed(t *testing.T) {
	a := heapArena(t)
	c := ensure(t, a, uid(3))
	if cur := c.Close(); cur != 0 {
		t.Fatal(cur)
	}
	if c.Extend(10, 20) || c.ExtendTake(10, 20, 1) != 0 {
		t.Fatal("the late answer opened the key")
	}
	wantCell(t, c, 0, 0, true)
}

func TestTheFirstCallerGetsTheNumbersRightAboveTheFloor(t *testing.T) {
	a := heapArena(t)
	c := ensure(t, a, uid(9))
	if first := c.ExtendTake(500, 600, 3); first != 501 {
		t.Fatal(first)
	}
	wantCell(t, c, 503, 600, false)
	if first := c.ExtendTake(500, 600, 1); first != 504 {
		t.Fatal("on a key already served:", first)
	}
	if first := c.ExtendTake(500, 600, 97); first != 0 {
		t.Fatal("past the bound:", first)
	}
	c = ensure(t, a, uid(10))
	if first := c.ExtendTake(5, 10, 6); first != 0 {
		t.Fatal("past the bound:", first)
	}
	wantCell(t, c, 5, 10, false)
}

func TestAnImpossibleCellStopsTheCaller(t *testing.T) {
	a := heapArena(t)
	c := ensure(t, a, uid(9))
	c.Extend(0, 100)
	c.w[0].Store(c.w[0].Load() ^ 1<<5)
	for what, f := range map[string]func(){
		"take": func() { c.Take(1) }, "load": func() { c.Load() }, "close": func() { c.Close() },
	} {
		func() {
			defer func() {
				err, _ := recover().(error)
				var ce *CorruptCellError
				if !errors.As(err, &ce) {
					t.Errorf("%s: got %v", what, err)
				}
			}()
			f()
		}()
	}
}

func TestDyingBetweenTwoStoresNeverRepeatsANumber(t *testing.T) {
	for what, tc := range map[string]struct {
		prepare, act func(c Cell)
		// issued is the last number the callers have got by then.
		issued ids.Seq
		stores int
		// known: only the arena knows the number, so it must be there at any time.
		known bool
	}{
		"first extend": {func(Cell) {}, func(c Cell) { c.Extend(5, 10) }, 5, 2, false},
		"extend take":  {func(Cell) {}, func(c Cell) { c.ExtendTake(5, 10, 2) }, 5, 2, false},
		"raise":        {func(c Cell) { c.Extend(0, 10); c.Take(4) }, func(c Cell) { c.Extend(2, 20) }, 4, 1, true},
		"jump":         {func(c Cell) { c.Extend(0, 10); c.Take(4) }, func(c Cell) { c.Extend(15, 20) }, 4, 2, false},
		"reopen":       {func(c Cell) { c.Extend(0, 10); c.Take(4); c.Close() }, func(c Cell) { c.Reopen(4, 14) }, 4, 2, true},
		"reopen above": {func(c Cell) { c.Extend(0, 10); c.Take(4); c.Close() }, func(c Cell) { c.Reopen(9, 19) }, 4, 4, false},
		"reopen take":  {func(c Cell) { c.Extend(0, 10); c.Take(4); c.Close() }, func(c Cell) { c.ReopenTake(4, 14, 2) }, 4, 2, true},
		"free":         {func(c Cell) { c.Extend(0, 10); c.Take(4); c.Close() }, func(c Cell) { c.clear() }, 4, 3, false},
		"use":          {func(c Cell) { c.clear() }, func(c Cell) { c.use() }, 0, 2, false},
	} {
		t.Run(what, func(t *testing.T) {
			a := heapArena(t)
			c := ensure(t, a, uid(77))
			tc.prepare(c)
			var states [][2]uint64
			a.owner.stored = func() { states = append(states, [2]uint64{c.w[0].Load(), c.w[1].Load()}) }
			tc.act(c)
			a.owner.stored = nil
			if len(states) < tc.stores {
				t.Fatalf("%d stores were seen, want %d", len(states), tc.stores)
			}
			for _, state := range states {
				c.w[0].Store(state[0])
				c.w[1].Store(state[1])
				v := &verifier{region: a.region}
				if cur, max, _ := c.Load(); tc.known && (max == 0 || cur < tc.issued) {
					t.Fatalf("state %#x has forgotten the number: %d of %d", state, cur, max)
				}
				used, err := v.cell(c.w, uid(77), 0)
				if err != nil {
					t.Fatalf("state %#x is not trusted: %v", state, err)
				}
				if !used {
					continue
				}
				if first, _, r := c.Take(1); r == TakeOK && first <= tc.issued {
					t.Fatalf("state %#x issues %d again", state, first)
				}
			}
		})
	}
}
