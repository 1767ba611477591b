package dedupe

import (
	"encoding/binary"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/internal/ids"
)

func TestMain(m *testing.M) {
	if path := killPath(); path != "" {
		answerUntilKilled(path)
	}
	goleak.VerifyTestMain(m)
}

const (
	testSections = 4
	minute       = 60_000
	start        = 1_700_000_000_000
)

var testSpaces = []ids.Space{
	{ID: 1, Name: "uid", Kind: ids.KindUID, MaxUID: 1 << 40},
	{ID: 2, Name: "conv", Kind: ids.KindName},
	{ID: 3, Name: "short", Kind: ids.KindUID, MaxUID: 1 << 40},
	{ID: 4, Name: "few", Kind: ids.KindUID, MaxUID: 1 << 40},
}

var testIdentity = arena.Identity{ClusterID: "c0ffee", Session: 42, Incarnation: 3}

type fixture struct {
	t     testing.TB
	heap  *arena.Heap
	a     *arena.Arena
	table *Table
	max   int
}

func newFixture(t testing.TB, entriesMax int) *fixture {
	f := &fixture{t: t, heap: arena.NewHeap("heap", 0), max: entriesMax}
	f.open()
	if err := f.a.Reset(testIdentity, testSections, testSpaces); err != nil {
		t.Fatal(err)
	}
	for s := range ids.Section(testSections) {
		if err := f.a.OpenSection(s, 1); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = f.a.Close(false) })
	return f
}

func testTable(a *arena.Arena, entriesMax int) *Table {
	t := New(Options{Arena: a, EntriesMax: entriesMax})
	t.SetSpaces(map[ids.SpaceID]SpaceOptions{3: {Window: time.Minute}, 4: {EntriesMax: 2 * pageEntries}})
	return t
}

func (f *fixture) open() {
	f.t.Helper()
	a, err := arena.Open(arena.Options{Cluster: "test", Node: "a1", BootID: "boot-1", Region: f.heap, MaxBytes: 256 << 20})
	if err != nil {
		f.t.Fatal(err)
	}
	f.a, f.table = a, testTable(a, f.max)
}

// die is the end of the process and the resumption by the next.
func (f *fixture) die() {
	f.t.Helper()
	_ = f.a.Close(false)
	f.open()
	if _, err := f.a.Previous(); err != nil {
		f.t.Fatal(err)
	}
	if err := f.a.Adopt(4); err != nil {
		f.t.Fatal(err)
	}
}

func uid(u uint64) ids.Key { return ids.Key{Space: 1, Hi: u} }

func reqID(n uint64) (id ID) {
	binary.BigEndian.PutUint64(id[8:], n)
	return id
}

func sectionOf(k ids.Key) ids.Section { return k.Section(testSections) }

// alloc is what an AllocSvr does for one request.
func (f *fixture) alloc(k ids.Key, id ID, n uint32, now uint64) (first ids.Seq, replayed bool, err error) {
	return alloc(f.t, f.a, f.table, k, id, n, now)
}

func alloc(t testing.TB, a *arena.Arena, table *Table, k ids.Key, id ID, n uint32, now uint64) (ids.Seq, bool, error) {
	for {
		o, err := table.Begin(sectionOf(k), k, id, n, now)
		if err != nil {
			return 0, false, err
		}
		switch o.Kind {
		case Hit:
			return o.First, true, nil
		case Busy:
			if first, err := o.Pending.Wait(t.Context()); err == nil {
				return first, true, nil
			}
			continue
		}
		first, err := carryOut(a, o.Token, k, n, now)
		if err != nil {
			o.Token.Abort()
		}
		return first, false, err
	}
}

func carryOut(a *arena.Arena, token *Token, k ids.Key, n uint32, now uint64) (ids.Seq, error) {
	defer a.Guard().Enter().Exit()
	c, err := a.Ensure(k)
	if err != nil {
		return 0, err
	}
	for {
		first, _, r, err := token.Take(c, now)
		switch {
		case err != nil:
			return 0, err
		case r == arena.TakeOK:
			return first, nil
		case r == arena.TakeClosed:
			return 0, ErrMoved
		}
		cur, max, _ := c.Load()
		if max == 0 {
			first, err := token.ExtendTake(c, cur, cur+ids.Seq(n)+5, now)
			if err != nil || first != 0 {
				return first, err
			}
		}
		c.Extend(cur, cur+ids.Seq(n)+5)
	}
}

func (f *fixture) want(k ids.Key, id ID, n uint32, now uint64, first ids.Seq, replayed bool) {
	f.t.Helper()
	got, re, err := f.alloc(k, id, n, now)
	if err != nil || got != first || re != replayed {
		f.t.Fatalf("%s: got %d, replayed %v, %v; want %d, replayed %v", k, got, re, err, first, replayed)
	}
}
