package router

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
	"pgregory.net/rapid"
)

// truth plays the durable tier: it evolves one Set and can make the exact table of its present version.
type truth struct {
	set      SetRoutes
	sessions ids.SessionID
	m        sets.Map
}

func newTruth(name string) *truth {
	return &truth{
		set: SetRoutes{Name: name, Version: 1, Sections: make([]Section, 8)},
		m:   sets.Single(name, ids.DefaultSpaces()),
	}
}

func (w *truth) step(t *rapid.T) {
	w.set.Version += uint64(rapid.IntRange(1, 5).Draw(t, "skip"))
	switch rapid.SampledFrom([]string{"join", "leave", "assign", "assign", "free", "map", "stores"}).Draw(t, "step") {
	case "join":
		w.sessions++
		w.set.Nodes = append(slices.Clone(w.set.Nodes), Node{Session: w.sessions, ID: "n", Addr: fmt.Sprintf("h%d:1", w.sessions)})
	case "leave":
		if len(w.set.Nodes) == 0 {
			return
		}
		i := rapid.IntRange(0, len(w.set.Nodes)-1).Draw(t, "node")
		for s := range w.set.Sections {
			if w.set.Sections[s].Owner == w.set.Nodes[i].Session {
				w.set.Sections[s].Owner, w.set.Sections[s].Changed = 0, w.set.Version
			}
		}
		w.set.Nodes = slices.Delete(slices.Clone(w.set.Nodes), i, i+1)
	case "assign":
		if len(w.set.Nodes) == 0 {
			return
		}
		n := rapid.SampledFrom(w.set.Nodes).Draw(t, "to")
		s := &w.set.Sections[rapid.IntRange(0, 7).Draw(t, "section")]
		*s = Section{Owner: n.Session, Epoch: s.Epoch + 1, Changed: w.set.Version}
	case "free":
		s := &w.set.Sections[rapid.IntRange(0, 7).Draw(t, "section")]
		s.Owner, s.Changed = 0, w.set.Version
	case "map":
		w.m.Version++
	case "stores":
		w.set.Stores = []string{fmt.Sprint("st", w.set.Version)}
	}
}

func (w *truth) table(t *rapid.T) *Table {
	part := w.set
	part.Sections = slices.Clone(part.Sections)
	table, err := New("demo", "id-1", ids.DefaultSpaces(), w.m, &part)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// holder merges what it is sent, and fetches the whole when told to.
type holder struct{ table *Table }

func (h *holder) receive(t *rapid.T, d Delta, whole func() Delta) {
	next, err := h.table.Merge(d)
	if err != nil {
		if !NeedsWhole(err) {
			t.Fatalf("merge: %v", err)
		}
		if next, err = h.table.Merge(whole()); err != nil {
			t.Fatalf("merge of the whole: %v", err)
		}
	}
	if e, back := next.Behind(h.table); back {
		t.Fatalf("went back: %v", e)
	}
	h.table = next
}

func TestAnySequenceOfDeltasLeadsToTheFullTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newTruth("s1")
		near, far := holder{&Table{}}, holder{&Table{}} // far hears from near too
		var sentNear, sentFar []Delta
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"step", "step", "near", "far", "far from truth", "deliver near", "deliver far"}).Draw(t, "do") {
			case "step":
				w.step(t)
			case "near":
				if d, ok := w.table(t).Since(near.table.Versions()); ok {
					sentNear = append(sentNear, d)
				}
			case "far":
				known := far.table.Versions()
				if d, ok := near.table.SinceOf("s1", known.Map, known.Sets["s1"]); ok && near.table.Known() {
					sentFar = append(sentFar, d)
				}
			case "far from truth": // so that far may be newer than near, or older than what near began with
				if d, ok := w.table(t).Since(far.table.Versions()); ok {
					sentFar = append(sentFar, d)
				}
			case "deliver near": // any earlier message, also a second time
				if len(sentNear) > 0 {
					near.receive(t, rapid.SampledFrom(sentNear).Draw(t, "message"), func() Delta { return w.table(t).Whole() })
				}
			case "deliver far":
				if len(sentFar) > 0 {
					far.receive(t, rapid.SampledFrom(sentFar).Draw(t, "message"), func() Delta { return w.table(t).Whole() })
				}
			}
		}
		truthTable := w.table(t)
		for name, h := range map[string]*holder{"near": &near, "far": &far} {
			if d, ok := truthTable.Since(h.table.Versions()); ok {
				h.receive(t, d, truthTable.Whole)
			}
			if got, want := h.table.Whole(), truthTable.Whole(); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s holds\n%+v\nwant\n%+v", name, got, want)
			}
		}
	})
}

func TestMergeRefusesADeltaThatSkipsChanges(t *testing.T) {
	held := demo(t)
	d := Delta{Cluster: "demo", ClusterID: "id-1", MapVersion: 1, Sets: []SetDelta{{
		Name: "s1", Version: 12, Since: 9, SectionCount: testSections, Nodes: held.Sets[0].Nodes,
		Changes: []Change{{Section: 1, Owner: 1, Epoch: 6}},
	}}}
	_, err := held.Merge(d)
	var gap *GapError
	if !errors.As(err, &gap) || gap.Set != "s1" || gap.Held != 7 || gap.Since != 9 || !NeedsWhole(err) {
		t.Fatalf("got %v", err)
	}
	d.Sets[0].Since = 7
	next, err := held.Merge(d)
	if err != nil || next.Sets[0].Sections[1].Owner != 1 {
		t.Fatalf("the delta that follows: %v", err)
	}
	if held.Sets[0].Sections[1].Owner != 2 {
		t.Fatal("merging changed the held table")
	}
	if again, err := next.Merge(d); err != nil || again != next {
		t.Fatalf("a repeated delta is not ignored: %v", err)
	}
	_, err = held.Merge(Delta{Cluster: "demo", ClusterID: "id-1", MapVersion: 2})
	if !errors.As(err, &gap) || gap.Set != "" {
		t.Fatalf("a newer map that is not there: %v", err)
	}
	_, err = (&Table{}).Merge(d)
	if !errors.As(err, &gap) {
		t.Fatalf("a delta to the empty table: %v", err)
	}
}

func TestMergeRefusesWithoutChange(t *testing.T) {
	held := demo(t)
	before := held.Whole()
	base := func() Delta {
		return Delta{Cluster: "demo", ClusterID: "id-1", MapVersion: 1, Sets: []SetDelta{{
			Name: "s1", Version: 12, Since: 7, SectionCount: testSections, Nodes: held.Sets[0].Nodes,
			Changes: []Change{{Section: 1, Owner: 1, Epoch: 6}},
		}}}
	}
	if _, err := held.Merge(base()); err != nil {
		t.Fatal(err)
	}
	var (
		invalid  *InvalidError
		foreign  *ForeignError
		conflict *ConflictError
	)
	for name, c := range map[string]struct {
		change func(*Delta)
		want   any
	}{
		"another cluster id":        {func(d *Delta) { d.ClusterID = "id-2" }, &foreign},
		"another cluster":           {func(d *Delta) { d.Cluster = "other" }, &foreign},
		"no cluster id":             {func(d *Delta) { d.ClusterID = "" }, &invalid},
		"an owner that is no node":  {func(d *Delta) { d.Sets[0].Changes[0].Owner = 77 }, &invalid},
		"an owner whose node left":  {func(d *Delta) { d.Sets[0].Nodes = held.Sets[0].Nodes[:1] }, &invalid},
		"a section past the end":    {func(d *Delta) { d.Sets[0].Changes[0].Section = testSections }, &invalid},
		"other number of sections":  {func(d *Delta) { d.Sets[0].SectionCount = 32 }, &conflict},
		"a whole that is not whole": {func(d *Delta) { d.Sets[0].Since = 0 }, &invalid},
		"an epoch that went back":   {func(d *Delta) { d.Sets[0].Changes[0].Epoch = 4 }, &conflict},
		"the same map but different": {func(d *Delta) {
			d.Spaces = ids.DefaultSpaces()
			d.Sets[0].Ranges = []sets.Range{{Space: 1, Last: 5}}
		}, &conflict},
		"a map that overlaps": {func(d *Delta) {
			d.MapVersion, d.Spaces = 2, ids.DefaultSpaces()
			d.Sets[0].Ranges = []sets.Range{{Space: 1, Last: 5}, {Space: 1, Lo: 5, Last: 9}}
		}, &invalid},
		"a map without version": {func(d *Delta) { d.MapVersion, d.Spaces = 0, ids.DefaultSpaces() }, &invalid},
	} {
		t.Run(name, func(t *testing.T) {
			d := base()
			c.change(&d)
			_, err := held.Merge(d)
			if !errors.As(err, c.want) {
				t.Fatalf("got %v, want a %T", err, c.want)
			}
			if !reflect.DeepEqual(held.Whole(), before) {
				t.Fatal("the held table changed")
			}
		})
	}
}

func TestMergeIgnoresWhatIsOlder(t *testing.T) {
	held := demo(t)
	old := held.Whole()
	old.Sets[0].Version = 6
	old.Sets[0].Changes[0].Owner = 2
	if next, err := held.Merge(old); err != nil || next != held {
		t.Fatalf("an older whole table: %v, changed %v", err, next != held)
	}
}

func TestAMapChangeKeepsTheOwnersOfOtherSets(t *testing.T) {
	held := demo(t)
	spaces := ids.DefaultSpaces()
	d := Delta{Cluster: "demo", ClusterID: "id-1", MapVersion: 2, Spaces: spaces, Sets: []SetDelta{
		{Name: "s1", Ranges: []sets.Range{{Space: 1, Last: 999}, sets.Whole(spaces[1])}},
		{Name: "s2", Ranges: []sets.Range{{Space: 1, Lo: 1000, Last: ids.DefaultMaxUID}}},
	}}
	next, err := held.Merge(d)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := next.Lookup(ids.Key{Space: 1, Hi: 5}); err != nil || r.Owner.ID != "a1" || r.Set != "s1" {
		t.Fatalf("s1: %+v, %v", r, err)
	}
	if r, err := next.Lookup(ids.Key{Space: 1, Hi: 1000}); err != nil || r.Owned() || r.Set != "s2" {
		t.Fatalf("s2: %+v, %v", r, err)
	}
}

func TestATableThatWasItselfMergedPassesTheChangeOn(t *testing.T) {
	source := demo(t) // version 7
	near, far := source, source
	moved := Delta{Cluster: "demo", ClusterID: "id-1", MapVersion: 1, Sets: []SetDelta{{
		Name: "s1", Version: 12, Since: 7, SectionCount: testSections, Nodes: source.Sets[0].Nodes,
		Changes: []Change{{Section: 1, Owner: 1, Epoch: 6}},
	}}}
	near, err := near.Merge(moved)
	if err != nil {
		t.Fatal(err)
	}
	d, news := near.SinceOf("s1", 1, 7)
	if !news || len(d.Sets[0].Changes) != 1 {
		t.Fatalf("passed on: %+v", d)
	}
	if far, err = far.Merge(d); err != nil || far.Sets[0].Sections[1].Owner != 1 {
		t.Fatalf("the change was lost: %v", err)
	}
}

// A client that has heard of a Set only by the map learns from it where to ask
// for owners; and what the Set itself said since is not taken back.
func TestTheMapSaysWhereToAskForASetsOwners(t *testing.T) {
	held := demo(t)
	d := Delta{Cluster: "demo", ClusterID: "id-1", MapVersion: 2, Spaces: ids.DefaultSpaces(), Sets: []SetDelta{
		{Name: "s1", Ranges: []sets.Range{{Space: 1, Last: 999}, sets.Whole(ids.DefaultSpaces()[1])}, Stores: []string{"old:1"}},
		{Name: "s2", Ranges: []sets.Range{{Space: 1, Lo: 1000, Last: ids.DefaultMaxUID}}, Stores: []string{"st2:1"}},
	}}
	next, err := held.Merge(d)
	if err != nil {
		t.Fatal(err)
	}
	if got := next.Set("s2").Stores; !slices.Equal(got, []string{"st2:1"}) {
		t.Fatalf("stores of s2: %v", got)
	}
	if got, want := next.Set("s1").Stores, held.Set("s1").Stores; !slices.Equal(got, want) {
		t.Fatalf("stores of s1, whose owners are known: %v, want %v", got, want)
	}
	again, err := FromDelta(next.Whole())
	if err != nil || !reflect.DeepEqual(again.Whole(), next.Whole()) {
		t.Fatalf("passed on: %+v, %v", again, err)
	}
	if loaded, err := Decode(Encode(next)); err != nil || !reflect.DeepEqual(loaded.Whole(), next.Whole()) {
		t.Fatalf("saved and loaded: %+v, %v", loaded, err)
	}
	asked, _ := next.SinceOf("s1", 0, 0)
	if far, err := FromDelta(asked); err != nil || far.Set("s2").Version != 0 || !slices.Equal(far.Set("s2").Stores, []string{"st2:1"}) {
		t.Fatalf("to one who asked for s1: %+v, %v", far, err)
	}
}
