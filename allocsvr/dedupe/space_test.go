package dedupe

import (
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
)

func few(u uint64) ids.Key { return ids.Key{Space: 4, Hi: u} }

// A space at its own bound forgets its own oldest, and says so; others keep theirs.
func TestASpaceAtItsOwnBoundForgetsItsOwnOldest(t *testing.T) {
	f := newFixture(t, 40*pageEntries)
	f.want(uid(0), reqID(1), 1, start, 1, false)
	const n = 20 * pageEntries
	for i := range uint64(n) {
		f.want(few(0), reqID(i), 1, start+i, ids.Seq(i+1), false)
	}
	now := uint64(start + n)
	if st := f.table.Stats(); st.Entries > 2*pageEntries+1 || st.Entries <= pageEntries || st.Forgotten != uint64(n+1-st.Entries) {
		t.Errorf("%+v", st)
	}
	if got := f.table.Since(0, 1, now); got != start {
		t.Errorf("the other space's window begins at +%d", got-start)
	}
	since := f.table.Since(0, 4, now)
	if since < start+n-2*pageEntries || since > start+n-pageEntries {
		t.Errorf("since +%d, want what two pages hold of the last %d", since-start, n)
	}
	f.want(uid(0), reqID(1), 1, now, 1, true)
	f.want(few(0), reqID(n-1), 1, now, n, true)
	f.want(few(0), reqID(since-start), 1, now, ids.Seq(since-start+1), true)
	f.want(few(0), reqID(0), 1, now, n+1, false)

	// The next process remembers the same. It promises no more, of any space.
	f.die()
	f.want(uid(0), reqID(1), 1, now, 1, true)
	f.want(few(0), reqID(n-1), 1, now, n, true)
	if got := f.table.Since(0, 4, now); got < since {
		t.Errorf("since +%d after the process died, was +%d", got-start, since-start)
	}
}

// Sections that all use a small space take its pages from each other.
func TestASpaceHasItsBoundOverAllSections(t *testing.T) {
	f := newFixture(t, 40*pageEntries)
	for i := range uint64(4000) {
		if _, _, err := f.alloc(few(i%testSections*256), reqID(i), 1, start+i); err != nil {
			t.Fatal(err)
		}
	}
	if st := f.table.Stats(); st.Entries > 2*pageEntries {
		t.Errorf("%d records of a space that may have %d", st.Entries, 2*pageEntries)
	}
	for s := range ids.Section(testSections) {
		if since := f.table.Since(s, 4, start+4000); since < start+4000-2*pageEntries*testSections {
			t.Errorf("section %d promises all since +%d", s, since-start)
		}
	}
}

// What was written before pages had a space is remembered, and of any space.
func TestPagesOfAnOlderVersionAreRemembered(t *testing.T) {
	f := newFixture(t, 0)
	s, err := f.table.lock(0, start)
	if err != nil {
		t.Fatal(err)
	}
	old := []ids.Key{uid(0), few(0)}
	for i, k := range old {
		r, err := s.reserveLocked(0, start)
		if err != nil {
			t.Fatal(err)
		}
		r.write(digestOf(k, reqID(9)), ids.Seq(i+5), 1, start)
		r.p.reserved--
	}
	s.mu.Unlock()
	f.die()
	for i, k := range old {
		f.want(k, reqID(9), 1, start+1, ids.Seq(i+5), true)
		f.want(k, reqID(10), 1, start+1, 1, false)
	}
	f.die()
	for i, k := range old {
		f.want(k, reqID(9), 1, start+1, ids.Seq(i+5), true)
		f.want(k, reqID(10), 1, start+1, 1, true)
	}
}

// Spaces go along to the next owner, so that a bound holds there too.
func TestTheNextOwnerKnowsTheSpaces(t *testing.T) {
	f, g := newFixture(t, 0), newFixture(t, 40*pageEntries)
	for i := range uint64(pageEntries * 3 / 2) {
		f.want(few(0), reqID(i), 1, start+i, ids.Seq(i+1), false)
	}
	f.want(uid(0), reqID(1), 1, start, 1, false)
	now := uint64(start + 1000)
	e, err := f.table.Export(0, now)
	if err != nil {
		t.Fatal(err)
	}
	if e, err = DecodeExport(e.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if err := g.table.Import(0, e, now); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(4 * pageEntries) {
		if _, _, err := g.alloc(few(0), reqID(10_000+i), 1, now+i); err != nil {
			t.Fatal(err)
		}
	}
	if st := g.table.Stats(); st.Entries > 2*pageEntries+1 {
		t.Errorf("%d records", st.Entries)
	}
	g.want(uid(0), reqID(1), 1, now, 1, true)
}
