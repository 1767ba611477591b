package arena

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
)

func TestNothingIsServedBeforeResetOrAdopt(t *testing.T) {
	a, err := Open(testOptions(NewHeap("heap", 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(false)
	if _, err := a.Previous(); !errors.Is(err, ErrNone) {
		t.Fatal(err)
	}
	if _, ok := a.Find(uid(1)); ok {
		t.Fatal("found a key in no arena")
	}
	if _, err := a.Ensure(uid(1)); !errors.Is(err, ErrNotReady) {
		t.Fatal(err)
	}
	if err := a.Adopt(1); !errors.Is(err, ErrNotReady) {
		t.Fatal(err)
	}
	if err := a.OpenSection(0, 1); !errors.Is(err, ErrNotReady) {
		t.Fatal(err)
	}
}

func TestKeysOfAllSpacesAreApart(t *testing.T) {
	a := heapArena(t)
	n := name(t, "room")
	keys := []ids.Key{
		uid(0), uid(1), uid(255), uid(256), uid(1 << 32), uid(1<<63 - 1),
		{Space: 7, Hi: 0}, {Space: 7, Hi: 256}, n,
		{Space: 2, Hi: n.Hi, Lo: n.Lo + 1}, // the same position, another name
		{Space: 9, Hi: n.Hi, Lo: n.Lo},     // the same fingerprint, another space
		{Space: 2, Hi: 0, Lo: 0},
	}
	for i, k := range keys {
		if _, ok := a.Find(k); ok {
			t.Fatalf("%s is there too early", k)
		}
		ensure(t, a, k).Extend(ids.Seq(i*1000), ids.Seq(i*1000+100))
	}
	for i, k := range keys {
		c, ok := a.Find(k)
		if !ok {
			t.Fatalf("%s is gone", k)
		}
		if first, _, _ := c.Take(1); first != ids.Seq(i*1000+1) {
			t.Fatalf("%s gave %d", k, first)
		}
	}
	if n := a.Stats().Keys; n != int64(len(keys)) {
		t.Fatalf("%d keys", n)
	}
}

func TestKeysThatCannotBeAreRefused(t *testing.T) {
	a := heapArena(t)
	for _, k := range []ids.Key{{Space: 3, Hi: 1}, {Space: 300, Hi: 1}, {Space: 0}, {Space: 7, Hi: 1<<40 + 1}, {Space: 1, Hi: 1, Lo: 1}} {
		if _, err := a.Ensure(k); !errors.Is(err, ids.ErrBadKey) {
			t.Errorf("%s: %v", k, err)
		}
		if _, ok := a.Find(k); ok {
			t.Errorf("%s was found", k)
		}
		a.Free(k)
	}
}

func TestASectionOpensOnlyAtAHigherEpoch(t *testing.T) {
	a := heapArena(t)
	c := ensure(t, a, uid(5))
	c.Extend(0, 10)
	a.CloseSection(0)
	if e, closed := a.Section(0); e != 1 || !closed {
		t.Fatal(e, closed)
	}
	if _, err := a.Ensure(uid(6)); err == nil {
		t.Fatal("a key was added to a closed section")
	}
	for _, e := range []ids.Epoch{0, 1} {
		var ee *EpochError
		if err := a.OpenSection(0, e); !errors.As(err, &ee) || ee.Stored != 1 {
			t.Fatal(err)
		}
	}
	if err := a.OpenSection(0, 2); err != nil {
		t.Fatal(err)
	}
	if _, ok := a.Find(uid(5)); ok {
		t.Fatal("a key of the old epoch is still there")
	}
	if _, _, r := c.Take(1); r != TakeClosed {
		t.Fatal("a key of the old epoch still issues:", r)
	}
	if err := a.OpenSection(testSections, 2); err == nil {
		t.Fatal("opened a section that does not exist")
	}
	if err := a.OpenSection(1, 1<<48); err == nil {
		t.Fatal("took an epoch that cannot be stored")
	}
}

func TestEachListsOneSectionInOrder(t *testing.T) {
	a := heapArena(t)
	want := map[ids.Section][]ids.Key{}
	for i := range uint64(3000) {
		k := uid(i * 97)
		ensure(t, a, k)
		want[k.Section(testSections)] = append(want[k.Section(testSections)], k)
	}
	names := map[ids.Key]bool{}
	for i := range 500 {
		k := name(t, fmt.Sprint("n", i))
		names[k] = true
		ensure(t, a, k)
	}
	for s := range ids.Section(testSections) {
		var uids []ids.Key
		n := 0
		a.Each(s, func(k ids.Key, c Cell) bool {
			n++
			if k.Section(testSections) != s {
				t.Fatalf("%s is not of section %d", k, s)
			}
			if k.Space == 1 {
				uids = append(uids, k)
			} else if !names[k] {
				t.Fatalf("%s was never added", k)
			} else {
				delete(names, k)
			}
			return true
		})
		if fmt.Sprint(uids) != fmt.Sprint(want[s]) {
			t.Fatalf("section %d: %v, want %v", s, uids, want[s])
		}
		if int64(n) != a.SectionKeys(s) {
			t.Fatalf("section %d: %d listed, %d counted", s, n, a.SectionKeys(s))
		}
	}
	if len(names) > 0 {
		t.Fatalf("%d names were not listed", len(names))
	}
	n := 0
	a.Each(0, func(ids.Key, Cell) bool { n++; return n < 3 })
	if n != 3 {
		t.Fatalf("went on for %d keys", n)
	}
}

func TestFreedMemoryIsUsedAgain(t *testing.T) {
	o := testOptions(NewHeap("heap", 0))
	o.MaxBytes = 3 << 20 // two extents: 512 slots
	a := openArena(t, o)
	for round := range uint64(10) {
		for i := range uint64(400) {
			c := ensure(t, a, uid((round*400+i)<<8))
			wantCell(t, c, 0, 0, false)
			c.Extend(0, 100)
		}
		if round%2 == 0 {
			for i := range uint64(400) {
				a.Free(uid((round*400 + i) << 8))
			}
			continue
		}
		for s := range ids.Section(testSections) {
			a.CloseSection(s)
			a.FreeSection(s)
		}
		openAll(t, a, ids.Epoch(round+10))
	}
	if st := a.Stats(); st.Keys != 0 || st.Bytes != 0 {
		t.Fatalf("%+v", st)
	}
	const names = 40000 // 313 slots
	for i := range names {
		ensure(t, a, name(t, fmt.Sprint(i)))
	}
	for i := range names {
		a.Free(name(t, fmt.Sprint(i)))
	}
	for i := range names {
		ensure(t, a, name(t, fmt.Sprint("again", i)))
	}
}

func TestAPageIsNotReusedWhileAReaderMayHoldIt(t *testing.T) {
	o := testOptions(NewHeap("heap", 0))
	a := openArena(t, o)
	inside := a.Guard().Enter()
	old := ensure(t, a, uid(0))
	old.Extend(0, 10)
	old.Close()
	a.Free(uid(0))
	oldName := ensure(t, a, name(t, "x"))
	oldName.Close()
	a.Free(name(t, "x"))
	for i := range uint64(300) {
		ensure(t, a, uid((i+1)<<8)).Extend(0, 10)
		ensure(t, a, name(t, fmt.Sprint(i))).Extend(0, 10)
	}
	if _, _, r := old.Take(1); r != TakeClosed {
		t.Fatal("the freed uid issues:", r)
	}
	if _, _, r := oldName.Take(1); r != TakeClosed {
		t.Fatal("the freed name issues:", r)
	}
	inside.Exit()
}

func TestAFullArenaIsAnError(t *testing.T) {
	t.Run("by its own limit", func(t *testing.T) {
		o := testOptions(NewHeap("heap", 0))
		o.MaxBytes = 2 << 20
		wantFull(t, openArena(t, o), 2<<20)
	})
	t.Run("by the machine", func(t *testing.T) {
		wantFull(t, openArena(t, testOptions(NewHeap("heap", 2<<20))), 0)
	})
	t.Run("from the start", func(t *testing.T) {
		a, err := Open(testOptions(NewHeap("heap", 4096)))
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close(false)
		var full *FullError
		if err := a.Reset(testIdentity, testSections, testSpaces); !errors.As(err, &full) {
			t.Fatal(err)
		}
	})
}

func wantFull(t *testing.T, a *Arena, limit int64) {
	t.Helper()
	for i := range uint64(1000) {
		_, err := a.Ensure(uid(i << 8))
		if err == nil {
			continue
		}
		var full *FullError
		if !errors.As(err, &full) || full.Limit != limit || full.Need <= 2<<20 {
			t.Fatalf("got %v", err)
		}
		// What is there goes on being served, and freeing helps.
		c := ensure(t, a, uid(0))
		c.Extend(0, 10)
		if _, _, r := c.Take(1); r != TakeOK {
			t.Fatal(r)
		}
		a.Free(uid(1 << 8))
		ensure(t, a, uid(i<<8))
		return
	}
	t.Fatal("never full")
}

func TestAFullFileSystemIsAnErrorAndNoSignal(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small tmpfs needs root")
	}
	dir := smallTmpfs(t, 2<<20)
	o := testOptions(nil)
	o.Path = filepath.Join(dir, "arena")
	a := openArena(t, o)
	wantFull(t, a, 0)
	st, err := os.Stat(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Size() != a.Stats().Reserved {
		t.Fatalf("the file has %d bytes, %d are reserved", st.Size(), a.Stats().Reserved)
	}
}

func TestASecondProcessIsTurnedAway(t *testing.T) {
	o := testOptions(nil)
	o.Path = filepath.Join(t.TempDir(), "arena")
	a := openArena(t, o)
	_, err := Open(o)
	var inUse *InUseError
	if !errors.As(err, &inUse) || inUse.Path != o.Path {
		t.Fatal(err)
	}
	if err := a.Close(false); err != nil {
		t.Fatal(err)
	}
	reopen(t, o)
}

func TestTheArenaIsNotOpenedThroughALink(t *testing.T) {
	dir := t.TempDir()
	o := testOptions(nil)
	o.Path = filepath.Join(dir, "arena")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), o.Path); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(o); err == nil {
		t.Fatal("opened a symbolic link")
	}
	o.Path = filepath.Join(dir, "no", "such", "folder")
	if _, err := Open(o); err == nil {
		t.Fatal("opened a file in no folder")
	}
}

// Openers race with a holder that removes the file: at any time one has the arena, and it is the one at the path.
func TestRemovingTheFileIsSafeAgainstOpeners(t *testing.T) {
	path := filepath.Join(t.TempDir(), "arena")
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		holder int
	)
	for g := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 200 {
				r := NewFile(path, 1<<20)
				if err := r.Lock(); err != nil {
					var inUse *InUseError
					if !errors.As(err, &inUse) {
						t.Error(err)
						return
					}
					continue
				}
				mu.Lock()
				if holder++; holder != 1 {
					t.Errorf("%d hold the arena", holder)
				}
				mu.Unlock()
				mu.Lock()
				holder--
				mu.Unlock()
				if err := r.Close((g+i)%2 == 0); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
}

func TestResetClosesWhatWasServed(t *testing.T) {
	for what, o := range map[string]Options{"heap": testOptions(NewHeap("heap", 0)), "file": testOptions(nil)} {
		t.Run(what, func(t *testing.T) {
			if what == "file" {
				o.Path = filepath.Join(t.TempDir(), "arena")
			}
			a := openArena(t, o)
			ensure(t, a, uid(1)).Extend(0, 10)
			id := testIdentity
			id.Session++
			if err := a.Reset(id, 4, testSpaces[:1]); err != nil {
				t.Fatal(err)
			}
			if _, ok := a.Find(uid(1)); ok {
				t.Fatal("an old key is still there")
			}
			if got, err := a.Previous(); err != nil || got != id {
				t.Fatal(got, err)
			}
			if e, _ := a.Section(1); e != 0 {
				t.Fatal("an old epoch is still there")
			}
			var shape *ShapeError
			if err := a.Matches(testSections, testSpaces); !errors.As(err, &shape) {
				t.Fatal(err)
			}
			if err := a.Close(true); err != nil {
				t.Fatal(err)
			}
			if what == "file" {
				if _, err := os.Stat(o.Path); !os.IsNotExist(err) {
					t.Fatal("the file is still there")
				}
			}
		})
	}
}

func TestImpossibleShapesAreRefused(t *testing.T) {
	a := heapArena(t)
	uids := testSpaces[0]
	for what, err := range map[string]error{
		"no section":    a.Reset(testIdentity, 0, testSpaces),
		"a space twice": a.Reset(testIdentity, 1, []ids.Space{uids, uids}),
		"no kind":       a.Reset(testIdentity, 1, []ids.Space{{ID: 1}}),
	} {
		if err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
	if _, ok := a.Section(0); ok {
		t.Fatal("section 0 was closed")
	}
	ensure(t, a, uid(1)) // a refused reset changes nothing
}

func TestBugSwitches(t *testing.T) {
	t.Run("close without bit", func(t *testing.T) {
		o := testOptions(NewHeap("heap", 0))
		o.Bugs.CloseWithoutBit = true
		c := ensure(t, openArena(t, o), uid(1))
		c.Extend(0, 10)
		c.Take(2)
		if cur := c.Close(); cur != 2 {
			t.Fatal(cur)
		}
		if !c.Extend(0, 10) {
			t.Fatal("the bug is not there")
		}
	})
	t.Run("keep section openable", func(t *testing.T) {
		o := testOptions(NewHeap("heap", 0))
		o.Bugs.KeepSectionOpenable = true
		a := openArena(t, o)
		c := ensure(t, a, uid(1))
		c.Extend(0, 10)
		a.CloseSection(0)
		c.Close()
		if err := a.OpenSection(0, 1); err != nil {
			t.Fatal(err)
		}
		if first, _, r := c.Take(1); first != 1 || r != TakeOK {
			t.Fatal("the bug is not there")
		}
	})
	t.Run("trust any arena", func(t *testing.T) {
		h := NewHeap("heap", 0)
		a := openArena(t, testOptions(h))
		c := ensure(t, a, uid(1))
		c.Extend(0, 10)
		c.w[0].Store(c.w[0].Load() ^ 4)
		_ = a.Close(false)
		o := testOptions(h)
		o.BootID = "boot-2"
		o.Bugs.TrustAnyArena = true
		a = reopen(t, o)
		c, _ = a.Find(uid(1))
		if first, _, r := c.Take(1); first != 5 || r != TakeOK {
			t.Fatal("the bug is not there", first, r)
		}
	})
}
