package arena

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// fill makes keys in all states.
func fill(t testing.TB, a *Arena) {
	t.Helper()
	for i, k := range []ids.Key{
		uid(0), uid(1), uid(700), uid(1 << 40), {Space: 7, Hi: 5},
		name(t, "a"), name(t, "b"), name(t, "c"), {Space: 9, Hi: 1 << 8, Lo: 1},
	} {
		c := ensure(t, a, k)
		switch i % 4 {
		case 0:
			c.Extend(0, 10000)
			c.Take(uint64(57 + i))
		case 1:
			c.Extend(1<<50+7, 1<<50+10007)
			c.Take(3)
			c.Close()
		case 2:
			c.Extend(0, 1)
		case 3: // its answer is still on the way
		}
	}
	a.CloseSection(3)
}

func TestTheNextProcessContinuesExactly(t *testing.T) {
	for what, o := range map[string]Options{"heap": testOptions(NewHeap("heap", 0)), "file": testOptions(nil)} {
		t.Run(what, func(t *testing.T) {
			if what == "file" {
				o.Path = filepath.Join(t.TempDir(), "arena")
			}
			a := openArena(t, o)
			fill(t, a)
			want, stats := known(a), a.Stats()
			for range 3 {
				if err := a.Close(false); err != nil {
					t.Fatal(err)
				}
				a = reopen(t, o)
				if got := known(a); got != want {
					t.Fatalf("got\n%swant\n%s", got, want)
				}
				if got := a.Stats(); got.Keys != stats.Keys || got.Bytes != stats.Bytes || got.Reserved != stats.Reserved {
					t.Fatalf("got %+v, want %+v", got, stats)
				}
			}
			c, _ := a.Find(uid(0))
			if first, _, _ := c.Take(1); first != 58 {
				t.Fatal(first)
			}
			var ee *EpochError
			if err := a.OpenSection(3, 1); !errors.As(err, &ee) {
				t.Fatal("a section closed by the dead process opened again:", err)
			}
		})
	}
}

func TestAResumedArenaGoesOnGrowingAndFreeing(t *testing.T) {
	h := NewHeap("heap", 0)
	a := openArena(t, testOptions(h))
	const n = 12000 // names enough for several tables in a section
	model := map[ids.Key]ids.Seq{}
	for i := range n {
		k := name(t, fmt.Sprint(i))
		ensure(t, a, k).Extend(ids.Seq(i), ids.Seq(i+100))
		model[k] = ids.Seq(i)
	}
	for round := range 3 {
		_ = a.Close(false)
		a = reopen(t, testOptions(h))
		for k, cur := range model {
			c, ok := a.Find(k)
			if !ok {
				t.Fatalf("round %d: %s is gone", round, k)
			}
			wantCell(t, c, cur, cur+100, false)
		}
		for i := round * 1000; i < round*1000+1000; i++ {
			k := name(t, fmt.Sprint(i))
			a.Free(k)
			delete(model, k)
			k = name(t, fmt.Sprint("more", i))
			ensure(t, a, k).Extend(7, 107)
			model[k] = 7
		}
		if got := a.Stats().Keys; got != int64(len(model)) {
			t.Fatalf("round %d: %d keys, want %d", round, got, len(model))
		}
	}
}

func TestAdoptNotesTheIncarnation(t *testing.T) {
	h := NewHeap("heap", 0)
	a := openArena(t, testOptions(h))
	_ = a.Close(false)
	a = reopen(t, testOptions(h))
	if err := a.Adopt(9); err != nil {
		t.Fatal(err)
	}
	_ = a.Close(false)
	a, err := Open(testOptions(h))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(false)
	if id, err := a.Previous(); err != nil || id.Incarnation != 9 || id.Session != testIdentity.Session {
		t.Fatal(id, err)
	}
}

func TestADeathWhileGrowingIsHarmless(t *testing.T) {
	h := NewHeap("heap", 0)
	a := openArena(t, testOptions(h))
	fill(t, a)
	want := known(a)
	if err := h.Grow(h.Size() + extentBytes); err != nil { // and the count was not stored yet
		t.Fatal(err)
	}
	_ = a.Close(false)
	a = reopen(t, testOptions(h))
	if got := known(a); got != want {
		t.Fatalf("got\n%swant\n%s", got, want)
	}
	for i := range uint64(600) {
		ensure(t, a, uid(i*testSections<<8))
	}
}

// Each bad arena has a name, and must be refused for the right reason.
func TestBadArenasAreNotTrusted(t *testing.T) {
	word := func(h *Heap, off int64) interface{ Store(uint64) } { return &h.Words(off, 8)[0] }
	load := func(h *Heap, off int64) uint64 { return h.Words(off, 8)[0].Load() }
	front := int64(3 * pageBytes) // header, table and intents of the test's shape
	for what, tc := range map[string]struct {
		reason Reason
		spoil  func(h *Heap, o *Options)
	}{
		"torn header": {ReasonTorn, func(h *Heap, _ *Options) {
			word(h, wordMagic*8).Store(0)
		}},
		"not an arena": {ReasonMagic, func(h *Heap, _ *Options) {
			word(h, wordMagic*8).Store(0x7f454c46)
		}},
		"half a header": {ReasonHeader, func(h *Heap, _ *Options) {
			for off := int64(fixedBytes + 16); off < pageBytes; off += 8 {
				word(h, off).Store(0)
			}
		}},
		"foreign cluster": {ReasonCluster, func(_ *Heap, o *Options) { o.Cluster = "prod" }},
		"other node":      {ReasonNode, func(_ *Heap, o *Options) { o.Node = "a2" }},
		"other boot":      {ReasonBoot, func(_ *Heap, o *Options) { o.BootID = "boot-2" }},
		"older format": {ReasonOldFormat, func(h *Heap, _ *Options) {
			word(h, wordVersion*8).Store(pageBytes<<32 | (FormatVersion - 1))
		}},
		"newer format": {ReasonNewFormat, func(h *Heap, _ *Options) {
			word(h, wordVersion*8).Store(pageBytes<<32 | (FormatVersion + 1))
		}},
		"wrong size": {ReasonSize, func(h *Heap, _ *Options) {
			_ = h.Grow(h.Size() + 2*extentBytes)
		}},
		"truncated": {ReasonSize, func(h *Heap, _ *Options) {
			h.size -= pageBytes
		}},
		"truncated to half a page": {ReasonSize, func(h *Heap, _ *Options) {
			h.size = pageBytes / 2
		}},
		"truncated to the header": {ReasonSize, func(h *Heap, _ *Options) {
			h.size = pageBytes
		}},
		"header longer than the file": {ReasonHeader, func(h *Heap, _ *Options) {
			word(h, wordVersion*8).Store(1<<60 | FormatVersion)
		}},
		"incarnation": {ReasonHeader, func(h *Heap, _ *Options) {
			word(h, wordIncarnation*8).Store(load(h, wordIncarnation*8) + 1)
		}},
		"extent count": {ReasonHeader, func(h *Heap, _ *Options) {
			word(h, wordExtents*8).Store(0)
		}},
		"section epoch": {ReasonSections, func(h *Heap, _ *Options) {
			word(h, pageBytes).Store(load(h, pageBytes) + 1)
		}},
		"section forgotten": {ReasonDirectory, func(h *Heap, _ *Options) {
			word(h, pageBytes).Store(0)
		}},
		"directory number": {ReasonDirectory, func(h *Heap, _ *Options) {
			word(h, front).Store(12345)
		}},
		"directory of other spaces": {ReasonDirectory, func(h *Heap, _ *Options) {
			d := dirEntry{kind: ids.KindUID, space: 4}
			word(h, front).Store(0)
			word(h, front+8).Store(d.word(0))
		}},
		"the same page twice": {ReasonDirectory, func(h *Heap, _ *Options) {
			d, _ := readDirEntry(extentOf(h.Words(front, extentBytes)).entry(0), 0)
			word(h, front+16*200).Store(d.no)
			word(h, front+16*200+8).Store(d.word(200))
		}},
		"a page moved": {ReasonCell, func(h *Heap, _ *Options) {
			// The directory is sound, but the cells are of other uids.
			d := dirEntry{kind: ids.KindUID, space: 1, no: 64}
			word(h, front).Store(d.no)
			word(h, front+8).Store(d.word(0))
		}},
		"cur": {ReasonCell, func(h *Heap, _ *Options) {
			off := front + pageBytes
			word(h, off).Store(load(h, off) + 1)
		}},
		"a parity": {ReasonCell, func(h *Heap, _ *Options) {
			off := front + pageBytes + 8
			word(h, off).Store(load(h, off) ^ 1)
		}},
		"cur beyond max": {ReasonCell, func(h *Heap, _ *Options) {
			word(h, front+pageBytes).Store(seal(100, false, saltOf(uid(0))))
			word(h, front+pageBytes+8).Store(sealMax(99))
		}},
		"an opened cell": {ReasonCell, func(h *Heap, _ *Options) {
			off := front + pageBytes + 16 // uid 1 is closed
			word(h, off).Store(load(h, off) &^ flagBit)
		}},
	} {
		t.Run(what, func(t *testing.T) {
			h := NewHeap("heap", 0)
			a := openArena(t, testOptions(h))
			fill(t, a)
			_ = a.Close(false)
			o := testOptions(h)
			tc.spoil(h, &o)
			a, err := Open(o)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close(false)
			_, err = a.Previous()
			wantUntrusted(t, err, tc.reason)
			if msg := err.Error(); !strings.Contains(msg, "heap") || !strings.Contains(msg, string(tc.reason)) {
				t.Fatal("message:", msg)
			}
			t.Log(err)
			if err := a.Adopt(4); !errors.Is(err, ErrNotReady) {
				t.Fatal("adopted:", err)
			}
			if err := a.Reset(testIdentity, testSections, testSpaces); err != nil {
				t.Fatal(err)
			}
			if a.Stats().Keys != 0 {
				t.Fatal("a reset arena has keys")
			}
		})
	}
}

func TestABadFileIsNotTrusted(t *testing.T) {
	for what, content := range map[string][]byte{
		"one byte": {1}, "text": []byte(strings.Repeat("hello ", 1000)), "zero pages": make([]byte, 3*pageBytes),
		"ones": []byte(strings.Repeat("\xff", 2*pageBytes)),
	} {
		o := testOptions(nil)
		o.Path = filepath.Join(t.TempDir(), "arena")
		if err := os.WriteFile(o.Path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		var u *UntrustedError
		if _, err := a.Previous(); !errors.As(err, &u) {
			t.Errorf("%s: %v", what, err)
		}
		if err := a.Reset(testIdentity, testSections, testSpaces); err != nil {
			t.Error(err)
		}
		_ = a.Close(false)
	}
}

// Every single flipped bit of every byte in use is noticed, or changes nothing of
// what is known. Exhaustive over a small arena.
func TestEveryFlippedBitIsNoticedOrHarmless(t *testing.T) {
	h := NewHeap("heap", 0)
	a := openArena(t, testOptions(h))
	for i := range uint64(8) {
		for _, k := range []ids.Key{uid(i * 3), {Space: 2, Hi: i * testSections << 8, Lo: i << 60}} {
			c := ensure(t, a, k)
			floor := ids.Seq(i / 4 << 50)
			if i%4 < 3 {
				c.Extend(floor, floor+10000)
				c.Take(i * 57)
			}
			if i%2 == 1 {
				c.Close()
			}
		}
	}
	a.CloseSection(3)
	a.NoteRecordsSince(5, 1234567890123)
	interrupted := ensure(t, a, uid(100)) // a note on its way, and one that is void
	interrupted.Extend(0, 10)
	dieAt(a, 4, func() {
		interrupted.TakeNoted(2, &Note{Key: uid(100), Data: [3]uint64{1, 2, 3}, Commit: func(ids.Seq) {}})
	})
	void := Note{Key: uid(3), Data: [3]uint64{4, 5, 6}}
	c, _ := a.Find(uid(3))
	void.intend(c, 7, 1)
	want := known(a)
	used := a.mem.Load().pool.used
	_ = a.Close(false)
	regions := []struct {
		name   string
		off, n int64
	}{
		{"header", 0, pageBytes},
		{"section table", pageBytes, pageBytes},
		{"intents", 2 * pageBytes, pageBytes},
		{"directory", 3 * pageBytes, pageBytes},
		{"slots", 4 * pageBytes, int64(used+1) * pageBytes}, // and one that is free
	}
	step := 1
	if testing.Short() || raceEnabled {
		step = 199
	}
	reader, err := Open(testOptions(h))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close(false)
	for _, r := range regions {
		noticed, harmless := 0, 0
		words := h.Words(r.off, r.n)
		for bit := 0; bit < len(words)*64; bit += step {
			w := &words[bit/64]
			old := w.Load()
			w.Store(old ^ 1<<(bit%64))
			_, err := reader.Previous()
			var u *UntrustedError
			switch {
			case errors.As(err, &u):
				noticed++
			case err != nil:
				t.Fatal(err)
			default:
				harmless++
				reader.install(reader.verified)
				if got := known(reader); got != want {
					t.Fatalf("%s: bit %d of word %d (%#x) flipped unnoticed:\n%swant\n%s", r.name, bit%64, bit/64, old, got, want)
				}
				reader.mem.Store(nil)
			}
			w.Store(old)
		}
		t.Logf("%s: %d noticed, %d harmless", r.name, noticed, harmless)
		if noticed == 0 {
			t.Errorf("%s: nothing was noticed", r.name)
		}
	}
}
