package dedupe

import (
	"runtime"
	"testing"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// All in: pages with their directory, index, and what Go keeps beside them.
func TestARecordTakesAtMostFortyEightBytes(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has memory of its own")
	}
	const n = 400_000
	f := newFixture(t, n)
	fill := func(from, to uint64) {
		for i := from; i < to; i++ {
			if _, _, err := f.alloc(uid(i%testSections*256), reqID(i), 1, start); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(0, 1000)
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	// The arena is in the heap here, so what it reserves ahead is taken off.
	before, pagesBefore, reservedBefore := heap(), f.a.Stats().Bytes, f.a.Stats().Reserved
	fill(1000, n)
	entries := float64(f.table.Stats().Entries - 1000)
	pages := f.a.Stats().Bytes - pagesBefore
	beside := heap() - before - (f.a.Stats().Reserved - reservedBefore)
	perEntry := float64(pages) * (1 + 1.0/256) / entries
	perEntry += float64(beside) / entries
	t.Logf("%.1f bytes a record, %.1f of it in ordinary memory; by its own account %.1f",
		perEntry, float64(beside)/entries, float64(f.table.Stats().Bytes)/float64(f.table.Stats().Entries))
	if perEntry > 48 {
		t.Errorf("%.1f bytes a record", perEntry)
	}
}

// As it is in a cluster: a table that is full, over many sections and two spaces, so
// that the page each of them writes to is half empty.
func TestARecordTakesAtMostFortyEightBytesInAFullTableOfManySections(t *testing.T) {
	if raceEnabled || testing.Short() {
		t.Skip("half a million records")
	}
	const sections, entriesMax = 512, DefaultEntriesMax / 2
	a, err := arena.Open(arena.Options{Cluster: "test", Node: "a1", BootID: "boot-1", Region: arena.NewHeap("heap", 0), MaxBytes: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close(false) })
	table := testTable(a, entriesMax)
	if err := a.Reset(testIdentity, sections, testSpaces); err != nil {
		t.Fatal(err)
	}
	for s := range ids.Section(sections) {
		if err := a.OpenSection(s, 1); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(entriesMax) {
		k := ids.Key{Space: ids.SpaceID(1 + i%2), Hi: i * 0x9e3779b97f4a7c15 >> 40 << 8}
		no := k.Section(sections)
		o, err := table.Begin(no, k, reqID(i), 1, start+i/1000)
		if err != nil {
			t.Fatal(err)
		}
		// Without a counter: this is about the record.
		r, err := o.Token.s.reserve(o.Token.life, k.Space, start+i/1000)
		if err != nil {
			t.Fatal(err)
		}
		r.write(o.Token.digest, 1, 1, start+i/1000)
		o.Token.s.commit(o.Token.life, r, o.Token.digest, o.Token.pending)
		o.Token.end(1)
	}
	st := table.Stats()
	perEntry := float64(st.Bytes) / float64(st.Entries)
	t.Logf("%d records of at most %d, %d forgotten: %.1f bytes each", st.Entries, st.EntriesMax, st.Forgotten, perEntry)
	if perEntry > 48 || st.Entries < entriesMax*8/10 {
		t.Errorf("%.1f bytes a record, %d records", perEntry, st.Entries)
	}
}

func BenchmarkBeginTake(b *testing.B) {
	f := newFixture(b, 1<<17)
	defer f.a.Guard().Enter().Exit()
	c, _ := f.a.Ensure(uid(0))
	c.Extend(0, ids.MaxSeq)
	b.ReportAllocs()
	i := uint64(0)
	for b.Loop() {
		i++
		o, err := f.table.Begin(0, uid(0), reqID(i), 1, start+i/1000)
		if err != nil {
			b.Fatal(err)
		}
		if _, _, r, err := o.Token.Take(c, start+i/1000); r != arena.TakeOK || err != nil {
			b.Fatal(r, err)
		}
	}
}

func BenchmarkReplay(b *testing.B) {
	f := newFixture(b, 1<<17)
	for i := range uint64(100_000) {
		if _, _, err := f.alloc(uid(i%testSections*256), reqID(i), 1, start); err != nil {
			b.Fatal(err)
		}
	}
	i := uint64(0)
	for b.Loop() {
		i = (i + 7919) % 100_000
		k := uid(i % testSections * 256)
		if o, err := f.table.Begin(sectionOf(k), k, reqID(i), 1, start); err != nil || o.Kind != Hit {
			b.Fatal(o, err)
		}
	}
}
