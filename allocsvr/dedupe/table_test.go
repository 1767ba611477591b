package dedupe

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/internal/ids"
)

func TestARetryGetsTheSameNumbers(t *testing.T) {
	f := newFixture(t, 0)
	f.want(uid(1), reqID(1), 1, start, 1, false)
	f.want(uid(1), reqID(2), 5, start, 2, false)
	f.want(uid(1), reqID(1), 1, start+minute, 1, true)
	f.want(uid(1), reqID(2), 5, start+20*minute, 2, true)
	f.want(uid(2), reqID(1), 1, start, 1, false) // another key: another request
	f.want(ids.Key{Space: 3, Hi: 1}, reqID(1), 1, start, 1, false)
	f.want(uid(1), reqID(3), 1, start, 7, false)
}

func TestAfterTheWindowARequestIsNew(t *testing.T) {
	f := newFixture(t, 0)
	f.want(uid(1), reqID(1), 1, start, 1, false)
	f.want(uid(1), reqID(1), 1, start+20*minute+1, 2, false)
	f.want(uid(1), reqID(1), 1, start+40*minute+1, 2, true)
	short := ids.Key{Space: 3, Hi: 7}
	f.want(short, reqID(1), 1, start, 1, false)
	f.want(short, reqID(1), 1, start+minute, 1, true)
	f.want(short, reqID(1), 1, start+minute+1, 2, false)
}

func TestAClockThatGoesBackForgetsNothing(t *testing.T) {
	f := newFixture(t, 0)
	f.want(uid(1), reqID(1), 1, start, 1, false)
	f.want(uid(1), reqID(2), 1, start-60*minute, 2, false)
	f.want(uid(1), reqID(1), 1, start-60*minute, 1, true)
	f.want(uid(1), reqID(2), 1, start, 2, true)
}

func TestAnotherCountIsRefused(t *testing.T) {
	f := newFixture(t, 0)
	f.want(uid(1), reqID(1), 3, start, 1, false)
	var m *MismatchError
	if _, _, err := f.alloc(uid(1), reqID(1), 4, start); !errors.As(err, &m) || m.Was != 3 || m.Want != 4 {
		t.Fatal(err)
	}
	f.want(uid(1), reqID(9), 1, start, 4, false) // nothing was taken
	o, _ := f.table.Begin(sectionOf(uid(1)), uid(1), reqID(2), 3, start)
	if _, err := f.table.Begin(sectionOf(uid(1)), uid(1), reqID(2), 4, start); !errors.As(err, &m) {
		t.Fatal("while it is carried out:", err)
	}
	o.Token.Abort()
	f.want(uid(1), reqID(2), 4, start, 5, false)
}

func TestARetryWaitsForItsOriginal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 0)
		o, err := f.table.Begin(1, uid(256), reqID(1), 2, start)
		if err != nil || o.Kind != Miss {
			t.Fatal(o, err)
		}
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if first, re, err := f.alloc(uid(256), reqID(1), 2, start); first != 1 || !re || err != nil {
					t.Error(first, re, err)
				}
			})
		}
		late, err := f.table.Begin(1, uid(256), reqID(1), 2, start)
		if err != nil || late.Kind != Busy {
			t.Fatal(late, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := late.Pending.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if first, err := carryOut(f.a, o.Token, uid(256), 2, start); first != 1 || err != nil {
			t.Fatal(first, err)
		}
		o.Token.Abort() // too late, and harmless
		wg.Wait()
	})
}

func TestWhenTheOriginalGivesUpARetryTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 0)
		o, _ := f.table.Begin(1, uid(256), reqID(1), 2, start)
		var wg sync.WaitGroup
		var mu sync.Mutex
		fresh := 0
		for range 5 {
			wg.Go(func() {
				first, re, err := f.alloc(uid(256), reqID(1), 2, start)
				if first != 1 || err != nil {
					t.Error(first, err)
				}
				mu.Lock()
				defer mu.Unlock()
				if !re {
					fresh++
				}
			})
		}
		synctest.Wait()
		o.Token.Abort()
		wg.Wait()
		if fresh != 1 {
			t.Fatalf("%d retries took numbers of their own", fresh)
		}
	})
}

func TestANewProcessRemembers(t *testing.T) {
	f := newFixture(t, 0)
	for i := range uint64(1000) {
		f.want(uid(i%7*256), reqID(i), 1, start+i, ids.Seq(i/7+1), false)
	}
	for range 2 {
		f.die()
		for i := range uint64(1000) {
			f.want(uid(i%7*256), reqID(i), 1, start+1000, ids.Seq(i/7+1), true)
		}
		if since := f.table.Since(0, 1, start+minute); since != start {
			t.Fatal(since)
		}
	}
	if n := f.table.Stats().Entries; n != 1000 {
		t.Fatal(n)
	}
}

func TestANewEpochStartsEmptyAndSaysSo(t *testing.T) {
	f := newFixture(t, 0)
	f.want(uid(1), reqID(1), 1, start, 1, false)
	o, _ := f.table.Begin(0, uid(2), reqID(1), 1, start)
	f.a.CloseSection(0)
	f.a.FreeSection(0)
	if err := f.a.OpenSection(0, 2); err != nil {
		t.Fatal(err)
	}
	if _, err := carryOut(f.a, o.Token, uid(2), 1, start); !errors.Is(err, ErrMoved) {
		t.Fatal(err)
	}
	o.Token.Abort()
	f.want(uid(1), reqID(1), 1, start+minute, 1, false)
	if since := f.table.Since(0, 1, start+minute); since != start+minute {
		t.Fatal(since)
	}
	id := testIdentity
	id.Session++
	if err := f.a.Reset(id, testSections, testSpaces); err != nil {
		t.Fatal(err)
	}
	if _, err := f.table.Begin(0, uid(1), reqID(1), 1, start); !errors.Is(err, ErrNotReady) {
		t.Fatal(err)
	}
	_ = f.a.OpenSection(0, 3)
	f.want(uid(1), reqID(1), 1, start, 1, false)
}

func TestSinceIsTheWindowOrWhatWasForgotten(t *testing.T) {
	f := newFixture(t, 0)
	for _, tc := range []struct {
		space       ids.SpaceID
		now, expect uint64
	}{
		{1, start, start}, {1, start + minute, start}, {1, start + 20*minute, start}, {1, start + 21*minute, start + minute},
		{3, start + minute/2, start}, {3, start + 3*minute, start + 2*minute},
	} {
		if got := f.table.Since(2, tc.space, tc.now); got != tc.expect {
			t.Errorf("space %d at +%d: since +%d, want +%d", tc.space, tc.now-start, int64(got-start), tc.expect-start)
		}
	}
	if got := f.table.Since(testSections, 1, start); got != 0 {
		t.Error("a section that does not exist has a window")
	}
}

func TestAFullTableDropsTheOldestAndPromisesNoMore(t *testing.T) {
	f := newFixture(t, 8*pageEntries)
	const n = 40 * pageEntries
	for i := range uint64(n) {
		f.want(uid(i%testSections*256), reqID(i), 1, start+i, ids.Seq(i/testSections+1), false)
	}
	now := uint64(start + n)
	if st := f.table.Stats(); st.Entries > 8*pageEntries || st.Entries < 6*pageEntries {
		t.Fatalf("%d entries of %d", st.Entries, st.EntriesMax)
	}
	kept := 0
	for round := range 2 {
		for i := range uint64(n) {
			k := uid(i % testSections * 256)
			o, err := f.table.Begin(sectionOf(k), k, reqID(i), 1, now)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case o.Kind == Hit && o.First == ids.Seq(i/testSections+1):
				kept++
			case o.Kind == Miss:
				if start+i >= o.Since {
					t.Fatalf("request %d is forgotten, though all since +%d are promised", i, o.Since-start)
				}
				o.Token.Abort()
			default:
				t.Fatalf("request %d: %+v", i, o)
			}
		}
		if kept != f.table.Stats().Entries {
			t.Fatalf("round %d: %d kept, %d counted", round, kept, f.table.Stats().Entries)
		}
		kept = 0
		f.die() // and the next process promises no more either
	}
}

func TestRecordsThatExpiredMakeRoomFirst(t *testing.T) {
	f := newFixture(t, 4*pageEntries)
	for i := range uint64(20 * pageEntries) {
		f.want(uid(0), reqID(i), 1, start+i*minute/4, ids.Seq(i+1), false)
	}
	now := uint64(start + 20*pageEntries*minute/4)
	if since := f.table.Since(0, 1, now); since != now-20*minute {
		t.Fatalf("since %d, want the whole window", int64(now-since)/minute)
	}
	if n := f.table.Stats().Entries; n > 2*pageEntries {
		t.Fatalf("%d entries are kept", n)
	}
}

func TestNoRoomAtAllIsAnError(t *testing.T) {
	f := newFixture(t, 1)
	var tokens []*Token
	var err error
	for i := range uint64(pageEntries + 1) {
		o, berr := f.table.Begin(0, uid(0), reqID(i), 1, start)
		if berr != nil {
			t.Fatal(berr)
		}
		tokens = append(tokens, o.Token)
		// A place is held by a request in mid-air.
		if _, err = o.Token.s.reserve(o.Token.life, 1, start); err != nil {
			break
		}
	}
	var full *arena.FullError
	if !errors.As(err, &full) || len(tokens) != pageEntries+1 {
		t.Fatal(err, len(tokens))
	}
}

func TestAPlaceNotUsedIsUsedByTheNext(t *testing.T) {
	f := newFixture(t, 0)
	o, _ := f.table.Begin(0, uid(0), reqID(1), 1, start)
	defer o.Token.Abort()
	for range 1000 {
		func() {
			defer f.a.Guard().Enter().Exit()
			c, _ := f.a.Ensure(uid(0))
			if _, _, r, err := o.Token.Take(c, start); r != arena.TakeEmpty || err != nil {
				t.Fatal(r, err)
			}
		}()
	}
	f.want(uid(1), reqID(2), 1, start, 1, false)
	if b := f.table.Stats().Bytes; b > 2*4096 {
		t.Fatalf("%d bytes", b)
	}
}

func TestFlippedRecordsAreForgottenLoudly(t *testing.T) {
	for what, spoil := range map[string]func(p *arena.Page){
		"a number":   func(p *arena.Page) { w := &entryAt(p.Words, 1)[2]; w.Store(w.Load() + 1) },
		"a digest":   func(p *arena.Page) { w := &entryAt(p.Words, 1)[0]; w.Store(w.Load() ^ 1<<63) },
		"a time":     func(p *arena.Page) { w := &entryAt(p.Words, 1)[3]; w.Store(w.Load() ^ 1<<40) },
		"the head":   func(p *arena.Page) { p.Words[1].Store(p.Words[1].Load() + 1) },
		"the serial": func(p *arena.Page) { p.Words[2].Store(p.Words[2].Load() + 1) },
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t, 0)
			f.want(uid(0), reqID(1), 1, start, 1, false)
			f.want(uid(0), reqID(2), 1, start, 2, false)
			f.want(uid(256), reqID(2), 1, start, 1, false)
			pages, _ := f.a.Pages(0)
			spoil(pages[0])
			f.die()
			if since := f.table.Since(0, 1, start+minute); since != start+minute {
				t.Fatal("since", since)
			}
			f.want(uid(0), reqID(2), 1, start+minute, 3, false)
			f.want(uid(256), reqID(2), 1, start+minute, 1, true) // another section
			f.die()
			f.want(uid(0), reqID(2), 1, start+minute, 3, true)
		})
	}
}

func TestEverySingleBitMovesTheCheckOfARecord(t *testing.T) {
	for _, tc := range []struct {
		mul  uint64
		bits int
	}{{mulA, 64}, {mulB, 48}, {mulFirst, 64}, {mulMeta, 64}, {mulPage, 64}} {
		for i := range tc.bits {
			if top := tc.mul << i >> 48; top == 0 || top == 1 || top == 0xFFFF || top == 0xFFFE {
				t.Errorf("%#x: bit %d moves the check by too little", tc.mul, i)
			}
		}
	}
}

// The table against a map, with deaths, moves and time passing.
func TestTheTableAnswersLikeAMap(t *testing.T) {
	type request struct {
		k  ids.Key
		id uint64
	}
	type answer struct {
		first ids.Seq
		n     uint32
		at    uint64
	}
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		f := newFixture(outer, rapid.SampledFrom([]int{0, 3 * pageEntries}).Draw(t, "max"))
		defer func() { _ = f.a.Close(false) }()
		model := map[request]answer{}
		last := map[ids.Key]ids.Seq{}
		epoch := [testSections]ids.Epoch{1, 1, 1, 1}
		now := uint64(start)
		req := rapid.Custom(func(t *rapid.T) request {
			return request{
				ids.Key{Space: rapid.SampledFrom([]ids.SpaceID{1, 3}).Draw(t, "space"), Hi: rapid.Uint64Range(0, 5).Draw(t, "uid") * 256},
				rapid.Uint64Range(0, 60).Draw(t, "id"),
			}
		})
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				for _, r := range rapid.SliceOfN(req, 1, 60).Draw(t, "requests") {
					n := rapid.Uint32Range(1, 2).Draw(t, "n")
					window := uint64(20 * minute)
					if r.k.Space == 3 {
						window = minute
					}
					since := f.table.Since(sectionOf(r.k), r.k.Space, now)
					old, known := model[r]
					fresh := known && now-old.at <= window
					first, replayed, err := f.alloc(r.k, reqID(r.id), n, now)
					var m *MismatchError
					switch {
					case errors.As(err, &m):
						if !fresh || old.n == n {
							t.Fatalf("%+v refused: %v", r, err)
						}
					case err != nil:
						t.Fatal(err)
					case replayed:
						if !fresh || first != old.first || n != old.n {
							t.Fatalf("%+v replays %d, want %+v", r, first, old)
						}
					default:
						if fresh && old.at >= since {
							t.Fatalf("%+v was forgotten: answered at +%d, promised since +%d", r, old.at-start, since-start)
						}
						if first != last[r.k]+1 {
							t.Fatalf("%+v got %d after %d", r, first, last[r.k])
						}
						last[r.k] = first + ids.Seq(n) - 1
						model[r] = answer{first, n, now}
					}
					now += rapid.Uint64Range(0, minute/4).Draw(t, "step")
				}
			},
			"die": func(*rapid.T) { f.die() },
			"move away and back": func(t *rapid.T) {
				no := ids.Section(rapid.IntRange(0, testSections-1).Draw(t, "section"))
				f.a.CloseSection(no)
				e, err := f.table.Export(no, now)
				if err != nil {
					t.Fatal(err)
				}
				e, err = DecodeExport(e.Append(nil))
				if err != nil {
					t.Fatal(err)
				}
				f.a.FreeSection(no)
				epoch[no]++
				if err := f.a.OpenSection(no, epoch[no]); err != nil {
					t.Fatal(err)
				}
				if err := f.table.Import(no, e, now); err != nil {
					t.Fatal(err)
				}
				if since := f.table.Since(no, 1, now); since > max(e.Since, now-20*minute) && f.max == 0 {
					t.Fatalf("since +%d, exported +%d", since-start, e.Since-start)
				}
				for k, cur := range last { // its keys come back where they were
					if sectionOf(k) == no {
						c, err := f.a.Ensure(k)
						if err != nil {
							t.Fatal(err)
						}
						c.Extend(cur, cur+1)
					}
				}
			},
			"time": func(t *rapid.T) { now += rapid.Uint64Range(0, 30*minute).Draw(t, "pause") },
		})
	})
}

// Many callers, few requests: each gets one answer, and all numbers are used.
func TestRacingRetriesShareOneAnswer(t *testing.T) {
	f := newFixture(t, 0)
	const requests, keys, callers = 400, 3, 6
	var mu sync.Mutex
	answers := map[[2]uint64]map[ids.Seq]int{}
	fresh := 0
	var wg sync.WaitGroup
	for g := range callers {
		wg.Go(func() {
			for i := range uint64(requests) {
				i = (i + uint64(g)*3) % requests
				k := uid(i % keys * 256)
				first, re, err := f.alloc(k, reqID(i), 1, start+i)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				r := [2]uint64{k.Hi, i}
				if answers[r] == nil {
					answers[r] = map[ids.Seq]int{}
				}
				answers[r][first]++
				if !re {
					fresh++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for r, got := range answers {
		if len(got) != 1 {
			t.Errorf("request %v got %v", r, got)
		}
	}
	if fresh != requests {
		t.Errorf("%d requests were carried out, want %d", fresh, requests)
	}
}
