package arena

import (
	"errors"
	"strconv"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
)

const testSections = 16

var testSpaces = []ids.Space{
	{ID: 1, Name: "uid", Kind: ids.KindUID, MaxUID: 1<<63 - 1},
	{ID: 2, Name: "conv", Kind: ids.KindName},
	{ID: 7, Name: "other", Kind: ids.KindUID, MaxUID: 1 << 40},
	{ID: 9, Name: "topic", Kind: ids.KindName},
}

var testIdentity = Identity{ClusterID: "c0ffee", Session: 42, Incarnation: 3}

func testOptions(r Region) Options {
	return Options{Cluster: "test", Node: "a1", BootID: "boot-1", Region: r, MaxBytes: 64 << 20}
}

func uid(u uint64) ids.Key { return ids.Key{Space: 1, Hi: u} }

func name(t testing.TB, s string) ids.Key {
	t.Helper()
	k, err := testSpaces[1].NameKey(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// openArena opens and resets an arena with all sections open at epoch 1.
func openArena(t testing.TB, o Options) *Arena {
	t.Helper()
	a, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close(false) })
	if err := a.Reset(testIdentity, testSections, testSpaces); err != nil {
		t.Fatal(err)
	}
	openAll(t, a, 1)
	return a
}

func openAll(t testing.TB, a *Arena, epoch ids.Epoch) {
	t.Helper()
	for s := range ids.Section(testSections) {
		if err := a.OpenSection(s, epoch); err != nil {
			t.Fatal(err)
		}
	}
}

func heapArena(t testing.TB) *Arena {
	return openArena(t, testOptions(NewHeap("heap", 0)))
}

func ensure(t testing.TB, a *Arena, k ids.Key) Cell {
	t.Helper()
	c, err := a.Ensure(k)
	if err != nil {
		t.Fatalf("ensure %s: %v", k, err)
	}
	return c
}

// reopen takes the region over as the next process would.
func reopen(t testing.TB, o Options) *Arena {
	t.Helper()
	a, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close(false) })
	id, err := a.Previous()
	if err != nil {
		t.Fatal(err)
	}
	if id != testIdentity {
		t.Fatalf("previous is %+v", id)
	}
	if err := a.Matches(testSections, testSpaces); err != nil {
		t.Fatal(err)
	}
	if err := a.Adopt(id.Incarnation); err != nil {
		t.Fatal(err)
	}
	return a
}

func wantCell(t testing.TB, c Cell, cur, max ids.Seq, closed bool) {
	t.Helper()
	gc, gm, gcl := c.Load()
	if gc != cur || gm != max || gcl != closed {
		t.Fatalf("cell is (%d, %d, closed %v), want (%d, %d, closed %v)", gc, gm, gcl, cur, max, closed)
	}
}

func wantUntrusted(t testing.TB, err error, reason Reason) {
	t.Helper()
	var u *UntrustedError
	if !errors.As(err, &u) {
		t.Fatalf("got %v, want an UntrustedError: %s", err, reason)
	}
	if u.Reason != reason {
		t.Fatalf("reason %q (%v), want %q", u.Reason, err, reason)
	}
}

type death struct{}

// dieAt runs f until its nth store and abandons it there, as a killed process would.
func dieAt(a *Arena, n int, f func()) (died bool) {
	defer func() {
		a.owner.stored = nil
		if r := recover(); r != nil {
			if _, ok := r.(death); !ok {
				panic(r)
			}
			died = true
		}
	}()
	a.owner.stored = func() {
		if n--; n < 0 {
			panic(death{})
		}
	}
	f()
	return false
}

// known lists all of an arena that matters: identity, sections, intents, and the
// keys of which something is known. It is called often, hence no fmt.
func known(a *Arena) string {
	var s []byte
	line := func(what string, values ...uint64) {
		s = append(s, what...)
		for _, v := range values {
			s = strconv.AppendUint(append(s, ' '), v, 10)
		}
		s = append(s, '\n')
	}
	id, err := a.Previous()
	if err != nil {
		return err.Error()
	}
	line(id.ClusterID, uint64(id.Session), uint64(id.Incarnation))
	for i := range cellStripes {
		if in, _ := readIntent(a.owner.intent(i)); in.N != 0 {
			line("intent", uint64(in.Key.Space), in.Key.Hi, in.Key.Lo, uint64(in.First), in.N, in.Data[0], in.Data[1], in.Data[2])
		}
	}
	flag := map[bool]string{true: " closed", false: " open"}
	for sec := range ids.Section(testSections) {
		e, closed := a.Section(sec)
		line("section"+flag[closed], uint64(sec), uint64(e), a.RecordsSince(sec))
		a.Each(sec, func(k ids.Key, c Cell) bool {
			if cur, max, closed := c.Load(); max != 0 {
				line("key"+flag[closed], uint64(k.Space), k.Hi, k.Lo, uint64(cur), uint64(max))
			}
			return true
		})
	}
	return string(s)
}
