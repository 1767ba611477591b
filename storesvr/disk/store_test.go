package disk

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const testSections = 8

func testMeta() *state.Meta {
	return &state.Meta{
		Out:      map[sets.MoveID]*state.Outgoing{},
		In:       map[sets.MoveID]*state.Incoming{},
		Genesis:  state.Genesis{Cluster: "c", ClusterID: "id-1", Set: "s1", Sections: testSections, Spaces: ids.DefaultSpaces()},
		Sections: make([]state.SectionState, testSections),
		Sessions: map[ids.SessionID]*state.SessionState{},
		Stores:   map[string]state.StoreNode{},
		Draining: map[string]bool{},
	}
}

func openTest(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	if err := Create(dir); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func mustClose(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func uid(n uint64) ids.Key { return ids.Key{Space: 1, Hi: n} }

func rec(n ids.Seq) state.Record { return state.Record{Floor: n, Bound: n + 10, Epoch: 1} }

// recordsOf are the wanted keys in order, with their ledgers.
func recordsOf(m *state.MapKeys, wants func(ids.Key) bool) (out []KeyRecord) {
	m.Each(func(k ids.Key, r state.Record) bool {
		if wants(k) {
			out = append(out, KeyRecord{Key: k, Record: r, Gaps: m.Gaps(k)})
		}
		return true
	})
	return out
}

// churn changes some keys and flushes at times.
func churn(rt *rapid.T, s *Store, want *state.MapKeys, index *uint64) {
	for range rapid.IntRange(0, 4).Draw(rt, "churn") {
		k := uid(rapid.Uint64Range(0, 5000).Draw(rt, "churned"))
		*index++
		if rapid.Bool().Draw(rt, "delete") {
			s.Delete(k)
			want.Delete(k)
		} else {
			g := []state.Gap{{From: 1, To: ids.Seq(*index), Cause: state.CauseAdvance}}
			r := rec(ids.Seq(*index))
			s.PutGaps(k, g)
			s.Put(k, r)
			want.PutGaps(k, g)
			want.Put(k, r)
		}
		s.Commit(*index, testMeta())
	}
	if rapid.Bool().Draw(rt, "flush") {
		if err := s.Flush(rt.Context(), *index, testMeta()); err != nil {
			rt.Fatal(err)
		}
	}
}

func TestReadsSeeTheNewestChangeInMemoryOrOnDisk(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "disk")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		o := Options{FlushKeys: rapid.IntRange(1, 20).Draw(rt, "flush")}
		s := openTest(t, dir, o)
		rt.Cleanup(func() { s.Close() })
		want := state.NewMapKeys()
		// What the file holds at the least: the state at the last Flush.
		index := uint64(0)
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			k := uid(rapid.Uint64Range(0, 5000).Draw(rt, "key"))
			switch rapid.IntRange(0, 9).Draw(rt, "do") {
			case 0:
				g := []state.Gap{{From: 1, To: ids.Seq(index + 1), Cause: state.CauseAdvance}}
				s.PutGaps(k, g)
				want.PutGaps(k, g)
				index++
				s.Commit(index, testMeta())
			case 1:
				if err := s.Flush(t.Context(), index, testMeta()); err != nil {
					rt.Fatal(err)
				}
				mustClose(t, s)
				s = openTest(t, dir, o)
				if applied, _, err := s.Load(); err != nil || applied != index {
					rt.Fatalf("after a flush at %d the file is at %d, %v", index, applied, err)
				}
			case 2:
				var got []KeyRecord
				sec := ids.Section(rapid.IntRange(0, testSections-1).Draw(rt, "section"))
				after, done := ids.Key{}, false
				for !done {
					var page []KeyRecord
					page, after, done = s.Cut(Filter{Sections: testSections, Of: map[ids.Section]bool{sec: true}}, after, rapid.IntRange(1, 7).Draw(rt, "limit")).Read()
					got = append(got, page...)
				}
				var exp []KeyRecord
				want.Each(func(k ids.Key, r state.Record) bool {
					if k.Section(testSections) == sec {
						exp = append(exp, KeyRecord{Key: k, Record: r})
					}
					return true
				})
				if !reflect.DeepEqual(got, exp) {
					rt.Fatalf("scan of section %d: got %v, want %v", sec, got, exp)
				}
			case 3:
				lo := rapid.Uint64Range(0, 5000).Draw(rt, "lo")
				r := sets.Range{Space: 1, Lo: ids.Position(lo), Last: ids.Position(lo + rapid.Uint64Range(0, 3000).Draw(rt, "length"))}
				limit := rapid.IntRange(1, 7).Draw(rt, "limit")
				for after, done := (ids.Key{}), false; !done; {
					counted, last, all := s.Cut(Filter{Within: &r}, after, limit).Count()
					cut := s.Cut(Filter{Within: &r, Ledgers: true}, after, limit)
					// What happens between the cut and its reading is not in it.
					before := want.Clone()
					rt.Cleanup(cut.Close)
					churn(rt, s, want, &index)
					var page []KeyRecord
					from := after
					page, after, done = cut.Read()
					if len(page) > limit {
						rt.Fatalf("a page of %d has %d records", limit, len(page))
					}
					upTo := func(last ids.Key, all bool) []KeyRecord {
						return recordsOf(before, func(k ids.Key) bool {
							return r.Contains(k.Space, k.Position()) && (from == ids.Key{} || k.Compare(from) > 0) && (all || k.Compare(last) <= 0)
						})
					}
					// A page that is counted may end elsewhere: a flush between the two cuts moves what is in memory.
					if exp := len(upTo(last, all)); counted != exp || counted > limit {
						rt.Fatalf("counted %d of %v after %v up to %v (all: %v), want %d", counted, r, from, last, all, exp)
					}
					exp := upTo(after, done)
					if !reflect.DeepEqual(page, exp) {
						rt.Fatalf("page of %v after %v: got %v, want %v", r, from, page, exp)
					}
				}
			case 5:
				keys := make([]ids.Key, 0, 60)
				for k := rapid.Uint64Range(0, 100).Draw(rt, "first"); k <= 5000; k += rapid.Uint64Range(1, 200).Draw(rt, "stride") {
					keys = append(keys, uid(k))
				}
				want.Each(func(k ids.Key, _ state.Record) bool { keys = append(keys, k); return true })
				slices.SortFunc(keys, ids.Key.Compare)
				keys = slices.Compact(keys)
				for i, got := range s.Find(keys) {
					r, known := want.Get(keys[i])
					if exp := (state.Found{Record: r, Known: known, HasGaps: len(want.Gaps(keys[i])) > 0}); got != exp {
						rt.Fatalf("key %v: found %+v, want %+v", keys[i], got, exp)
					}
				}
			case 4:
				want.Each(func(old ids.Key, _ state.Record) bool {
					k = old
					return rapid.Bool().Draw(rt, "another")
				})
				s.Delete(k)
				want.Delete(k)
				index++
				s.Commit(index, testMeta())
			default:
				r := rec(ids.Seq(index))
				s.Put(k, r)
				want.Put(k, r)
				index++
				s.Commit(index, testMeta())
			}
			got, ok := s.Get(k)
			exp, eok := want.Get(k)
			if got != exp || ok != eok || !slices.Equal(s.Gaps(k), want.Gaps(k)) {
				rt.Fatalf("key %v: got %v %v %v, want %v %v %v", k, got, ok, s.Gaps(k), exp, eok, want.Gaps(k))
			}
		}
	})
}

func TestACrashLeavesTheStateOfOneEntry(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Options{FlushKeys: 7, HardKeys: 14})
	// Entry i sets keys i and i+1 to i: any file must show both or neither.
	for i := uint64(1); i <= 500; i++ {
		s.Put(uid(i), rec(ids.Seq(i)))
		s.Put(uid(i+1), rec(ids.Seq(i)))
		s.Commit(i, testMeta())
	}
	mustClose(t, s) // no flush: as after a crash
	s = openTest(t, dir, Options{})
	applied, meta, err := s.Load()
	if err != nil || applied == 0 || meta == nil {
		t.Fatalf("applied %d, meta %v, %v: want something flushed", applied, meta, err)
	}
	for i := uint64(1); i <= 501; i++ {
		want := state.Record{}
		if i <= applied {
			want = rec(ids.Seq(i))
		} else if i == applied+1 {
			want = rec(ids.Seq(applied))
		}
		if got, ok := s.Get(uid(i)); got != want || ok != (want != state.Record{}) {
			t.Fatalf("applied %d: key %d is %v, want %v", applied, i, got, want)
		}
	}
}

func TestApplyingWaitsWhenTooMuchIsDirty(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{FlushKeys: 10, HardKeys: 20})
	for i := uint64(1); i <= 2000; i++ {
		s.Put(uid(i), rec(1))
		s.Commit(i, testMeta())
		if d := s.Dirty(); d >= 30 {
			t.Fatalf("%d keys are dirty, the limit is 20", d)
		}
	}
}

type mapSource struct {
	applied uint64
	meta    *state.Meta
	keys    *state.MapKeys
	gaps    map[ids.Key][]state.Gap
}

func (m *mapSource) Head() (uint64, *state.Meta) { return m.applied, m.meta }
func (m *mapSource) EachRecord(f func(ids.Key, state.Record) error) (err error) {
	m.keys.Each(func(k ids.Key, r state.Record) bool { err = f(k, r); return err == nil })
	return err
}
func (m *mapSource) EachGaps(f func(ids.Key, []state.Gap) error) error {
	for _, k := range slices.SortedFunc(maps.Keys(m.gaps), ids.Key.Compare) {
		if err := f(k, m.gaps[k]); err != nil {
			return err
		}
	}
	return nil
}

func fill(s *Store, from, to uint64) {
	for i := from; i <= to; i++ {
		s.Put(uid(i*7), rec(ids.Seq(i)))
		if i%10 == 0 {
			s.PutGaps(uid(i*7), []state.Gap{{From: 1, To: 2, Cause: state.CauseMachineLoss}})
		}
		s.Commit(i, testMeta())
	}
}

func TestSnapshotIsOfOneMoment(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{FlushKeys: 50})
	fill(s, 1, 1000)
	v, err := s.Snapshot(1000, testMeta())
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= 1000; i++ { // goes on changing the same keys
		s.Put(uid(i*7), rec(9999))
		s.Commit(1000+i, testMeta())
	}
	var b bytes.Buffer
	sum, err := WriteSnapshot(&b, v)
	if err != nil {
		t.Fatal(err)
	}
	v.Release()
	v.Release()
	if sum.Records != 1000 || sum.Gaps != 100 || sum.Applied != 1000 {
		t.Fatalf("summary %+v", sum)
	}
	o := openTest(t, t.TempDir(), Options{})
	fill(o, 1, 3) // replaced by the restore
	o.Put(uid(1), rec(1))
	got, err := o.Restore(bytes.NewReader(b.Bytes()), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.Records != 1000 || got.Applied != 1000 || got.Checksum != sum.Checksum {
		t.Fatalf("restored %+v, written %+v", got, sum)
	}
	if _, ok := o.Get(uid(1)); ok {
		t.Fatal("a key of before the restore is still there")
	}
	for i := uint64(1); i <= 1000; i++ {
		if r, _ := o.Get(uid(i * 7)); r != rec(ids.Seq(i)) {
			t.Fatalf("key %d is %v", i*7, r)
		}
		if n := len(o.Gaps(uid(i * 7))); (n == 1) != (i%10 == 0) {
			t.Fatalf("key %d has %d gaps", i*7, n)
		}
	}
	if applied, meta, err := o.Load(); err != nil || applied != 1000 || meta.Genesis.ClusterID != "id-1" {
		t.Fatalf("applied %d %v %v", applied, meta, err)
	}
}

// within fails the test if f does not end.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s does not end", what)
	}
}

// Raft takes a snapshot in one goroutine and installs one from the leader in
// another, and the first waits for the second in between: the view stays open.
func TestARestoreDoesNotWaitForAViewThatIsOpen(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	fill(s, 1, 100)
	var b bytes.Buffer
	v, err := s.Snapshot(100, testMeta())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := WriteSnapshot(&b, v); err != nil { // the view stays open
		t.Fatal(err)
	}
	s.Put(uid(7), rec(9999))
	s.Commit(101, testMeta())
	within(t, "the restore", func() {
		if _, err := s.Restore(&b, nil); err != nil {
			t.Error(err)
		}
	})
	if r, _ := s.Get(uid(7)); r != rec(1) {
		t.Fatalf("not restored: %v", r)
	}
	n := 0
	if err := v.EachRecord(func(ids.Key, state.Record) error { n++; return nil }); err != nil || n != 100 {
		t.Fatalf("the view of the replaced file has %d records: %v", n, err)
	}
	v.Release()
	within(t, "closing", func() { mustClose(t, s) })
}

// bbolt waits for all readers when the file outgrows its mapping.
func TestAFlushThatOutgrowsTheMappingDoesNotWaitForAReader(t *testing.T) {
	o := stateOptions()
	o.InitialMmapSize = 0
	dir := t.TempDir()
	small, err := OpenBolt(filepath.Join(dir, StateFile), o)
	if err == nil {
		err = errors.Join(initState(small), small.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	s := openTest(t, dir, Options{})
	if err := s.db.Close(); err != nil {
		t.Fatal(err)
	}
	s.mapped = 32 << 10
	if s.db, err = OpenBolt(s.path, o); err != nil {
		t.Fatal(err)
	}
	for round := range uint64(4) {
		s.Get(uid(1 << 30)) // not in memory
		for i := range uint64(5000) {
			s.Put(uid(round*5000+i), rec(1))
		}
		within(t, "the flush", func() {
			if err := s.Flush(t.Context(), round+1, testMeta()); err != nil {
				t.Error(err)
			}
		})
	}
	if r, ok := s.Get(uid(7)); !ok || r != rec(1) {
		t.Fatalf("%v %v", r, ok)
	}
}

func TestAFailureEndsTheWaitForAView(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{FlushKeys: 1})
	s.db.Close() // every write fails from now on
	c := make(chan viewResult, 1)
	v := &View{path: s.path, applied: 2, meta: testMeta(), wait: c}
	s.mu.Lock()
	s.freeze(1, testMeta(), nil)
	s.freeze(2, testMeta(), c) // as Snapshot does, before the first is written
	s.mu.Unlock()
	within(t, "the view", func() {
		var ie *IOError
		if _, err := WriteSnapshot(io.Discard, v); !errors.As(err, &ie) {
			t.Errorf("the view of a failed store: %v", err)
		}
		v.Release()
	})
}

func TestABadSnapshotLeavesTheOldState(t *testing.T) {
	src := &mapSource{applied: 5, meta: testMeta(), keys: state.NewMapKeys(), gaps: map[ids.Key][]state.Gap{uid(1): {{From: 1, To: 1, Cause: state.CauseAdvance}}}}
	for i := range uint64(20) {
		src.keys.Put(uid(i), rec(1))
	}
	var b bytes.Buffer
	if _, err := WriteSnapshot(&b, src); err != nil {
		t.Fatal(err)
	}
	good := b.Bytes()
	dir := t.TempDir()
	s := openTest(t, dir, Options{})
	s.Put(uid(77), rec(7))
	s.Commit(1, testMeta())
	refuse := func(what string, bad []byte) {
		t.Helper()
		_, err := s.Restore(bytes.NewReader(bad), nil)
		var se *SnapshotError
		if !errors.As(err, &se) {
			t.Fatalf("%s: %v, want a SnapshotError", what, err)
		}
	}
	for n := 0; n < len(good); n += 5 {
		refuse("cut short", good[:n])
	}
	for n := 0; n < len(good); n += 3 {
		bad := bytes.Clone(good)
		bad[n] ^= 1 << (n % 8)
		refuse("flipped bit", bad)
	}
	refuse("bytes after the end", append(bytes.Clone(good), 0))
	wrong := errors.New("another cluster")
	if _, err := s.Restore(bytes.NewReader(good), func(uint64, *state.Meta) error { return wrong }); !errors.Is(err, wrong) {
		t.Fatalf("the check was not heard: %v", err)
	}
	if r, ok := s.Get(uid(77)); !ok || r != rec(7) {
		t.Fatal("the old state is gone")
	}
	if _, err := os.Stat(filepath.Join(dir, StateFile+restoreSuffix)); !os.IsNotExist(err) {
		t.Fatalf("the failed restore left its file: %v", err)
	}
	if _, err := s.Restore(bytes.NewReader(good), nil); err != nil {
		t.Fatal(err)
	}
	if r, ok := s.Get(uid(3)); !ok || r != rec(1) {
		t.Fatal("the good snapshot was not taken")
	}
}

func TestScanFindsHashedNamesToo(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{FlushKeys: 300})
	sp := ids.DefaultSpaces()[1]
	want := map[ids.Section]int{}
	for i := range uint64(1000) {
		k, err := sp.NameKey(string(rune('a'+i%26)) + string(rune('a'+i/26)))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := s.Get(k); ok {
			continue
		}
		s.Put(k, rec(1))
		s.Put(uid(i*100), rec(1))
		want[k.Section(testSections)]++
		want[uid(i*100).Section(testSections)]++
		s.Commit(i+1, testMeta())
	}
	all := map[ids.Section]bool{}
	for sec := range ids.Section(testSections) {
		all[sec] = true
		n, after, done := 0, ids.Key{}, false
		for !done {
			var page []KeyRecord
			page, after, done = s.Cut(Filter{Sections: testSections, Of: map[ids.Section]bool{sec: true}}, after, 64).Read()
			n += len(page)
		}
		if n != want[sec] {
			t.Errorf("section %d: %d keys, want %d", sec, n, want[sec])
		}
	}
	matched, total := 0, 0
	for _, n := range want {
		total += n
	}
	f := Filter{Sections: testSections, Of: all, Match: func(_ ids.Section, r state.Record) bool { return r.Epoch == 1 }}
	for after, done := (ids.Key{}), false; !done; {
		var page []KeyRecord
		page, after, done = s.Cut(f, after, 100).Read()
		matched += len(page)
	}
	if matched != total {
		t.Errorf("all sections at once: %d keys, want %d", matched, total)
	}
}

func TestAFlushThatFailsIsToldAndEndsApplying(t *testing.T) {
	failed := make(chan error, 1)
	s := openTest(t, t.TempDir(), Options{FlushKeys: 1, Failed: func(err error) { failed <- err }})
	s.db.Close() // every write fails from now on
	s.Put(uid(1), rec(1))
	s.Commit(1, testMeta())
	var ie *IOError
	if err := <-failed; !errors.As(err, &ie) {
		t.Fatalf("%T %v", err, err)
	}
	if err := s.Flush(t.Context(), 1, testMeta()); !errors.As(err, &ie) {
		t.Fatalf("flush: %v", err)
	}
	defer func() {
		if err, ok := recover().(error); !ok || !errors.As(err, &ie) {
			t.Fatalf("recovered %v", err)
		}
	}()
	s.Commit(2, testMeta())
	t.Fatal("applying goes on")
}

// Replicas count the same dirty keys; what each draws keeps them from flushing at once.
func TestReplicasFlushAtDifferentNumbersOfKeys(t *testing.T) {
	for _, c := range []struct {
		draw float64
		at   int // dirty keys with which a flush starts
	}{{0, 100}, {0.5, 150}, {0.99, 199}} {
		s := openTest(t, t.TempDir(), Options{FlushKeys: 100, Spread: func() float64 { return c.draw }})
		meta := &state.Meta{}
		for i := range 250 {
			s.Put(ids.Key{Space: 1, Hi: uint64(i)}, state.Record{Floor: 1, Bound: 1})
			s.mu.Lock()
			before := s.active.dirty()
			s.mu.Unlock()
			s.Commit(uint64(i+1), meta)
			s.mu.Lock()
			frozen := s.active.dirty() == 0
			s.mu.Unlock()
			if frozen != (before == c.at) {
				t.Fatalf("drawn %v: frozen %v with %d dirty keys", c.draw, frozen, before)
			}
			if frozen {
				break
			}
		}
	}
}

func TestChangesAreCollectedWhileFlushesRest(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{FlushKeys: 4, HardKeys: 80, Spread: func() float64 { return 0 }})
	frozen := func() bool {
		s.mu.RLock()
		defer s.mu.RUnlock()
		return len(s.frozen) > 0 || s.flushes.Load() > 0
	}
	s.mu.Lock()
	s.restUntil = time.Now().Add(time.Hour)
	s.mu.Unlock()
	for n := uint64(1); n < 20; n++ {
		s.Put(uid(n), rec(1))
		s.Commit(n, testMeta())
		if frozen() {
			t.Fatalf("a flush of %d keys began in the rest after a long one", n)
		}
	}
	s.Put(uid(20), rec(1))
	s.Commit(20, testMeta())
	if !frozen() {
		t.Fatal("no flush began with a quarter of the bound dirty")
	}
	if err := s.Flush(t.Context(), 20, testMeta()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.restUntil = time.Now()
	s.mu.Unlock()
	before := s.flushes.Load()
	for n := uint64(21); n < 25; n++ {
		s.Put(uid(n), rec(1))
		s.Commit(n, testMeta())
	}
	if err := s.Flush(t.Context(), 24, testMeta()); err != nil {
		t.Fatal(err)
	}
	if n := s.flushes.Load() - before; n != 2 {
		t.Fatalf("%d flushes after the rest, want one of the changes and one that was asked for", n)
	}
}
