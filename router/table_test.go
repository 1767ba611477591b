package router

import (
	"errors"
	"math"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

const testSections = 16

// demo is a table of one Set with two nodes that share the sections; section 3 has no owner.
func demo(t testing.TB) *Table {
	t.Helper()
	r := &SetRoutes{
		Name: "s1", Version: 7,
		Nodes:  []Node{{Session: 1, ID: "a1", Addr: "h1:1"}, {Session: 2, ID: "a2", Addr: "h2:1", RedisAddr: "h2:2"}},
		Stores: []string{"st1:1", "st2:1"},
	}
	for i := range testSections {
		r.Sections = append(r.Sections, Section{Owner: ids.SessionID(1 + i%2), Epoch: 5, Changed: 7})
	}
	r.Sections[3].Owner = 0
	table, err := New("demo", "id-1", ids.DefaultSpaces(), sets.Single("s1", ids.DefaultSpaces()), r)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestLookupFindsTheOwner(t *testing.T) {
	table := demo(t)
	uid := func(u uint64) ids.Key { return ids.Key{Space: 1, Hi: u} }
	for _, c := range []struct {
		key     ids.Key
		section ids.Section
		owner   string
	}{
		{uid(0), 0, "a1"},
		{uid(255), 0, "a1"},
		{uid(256), 1, "a2"},
		{uid(16*256 + 1), 0, "a1"},
		{uid(3 * 256), 3, ""},
		{uid(math.MaxUint32), 15, "a2"},
		{ids.Key{Space: 2, Hi: math.MaxUint64, Lo: 9}, 15, "a2"},
	} {
		r, err := table.Lookup(c.key)
		if err != nil {
			t.Errorf("%v: %v", c.key, err)
			continue
		}
		if r.Set != "s1" || r.Section != c.section || r.Owner.ID != c.owner || r.Owned() != (c.owner != "") || r.Epoch != 5 || r.Version != 7 {
			t.Errorf("%v: got %+v, want section %d of %q", c.key, r, c.section, c.owner)
		}
	}
	for _, k := range []ids.Key{uid(1 << 32), {Space: 3}, {}} {
		var e *UnassignedError
		if _, err := table.Lookup(k); !errors.As(err, &e) || e.Key != k {
			t.Errorf("%v: got %v, want an UnassignedError", k, err)
		}
		if _, err := (&Table{}).Lookup(k); !errors.As(err, &e) {
			t.Errorf("%v in the empty table: got %v", k, err)
		}
	}
}

func TestASetWithUnknownOwnersRoutesToNobody(t *testing.T) {
	table, err := New("demo", "id-1", ids.DefaultSpaces(), sets.Single("s1", ids.DefaultSpaces()))
	if err != nil {
		t.Fatal(err)
	}
	r, err := table.Lookup(ids.Key{Space: 1})
	if err != nil || r.Set != "s1" || r.Owned() || r.Version != 0 {
		t.Fatalf("got %+v, %v", r, err)
	}
}

func TestNewRefusesWhatContradictsItself(t *testing.T) {
	spaces := ids.DefaultSpaces()
	good := func() *SetRoutes {
		return &SetRoutes{Name: "s1", Version: 2, Sections: []Section{{Owner: 1, Epoch: 1}}, Nodes: []Node{{Session: 1, Addr: "a"}, {Session: 4, Addr: "b"}}}
	}
	for name, change := range map[string]func(*SetRoutes){
		"an owner that is no node":       func(r *SetRoutes) { r.Sections[0].Owner = 9 },
		"owners without a version":       func(r *SetRoutes) { r.Version = 0 },
		"a version without sections":     func(r *SetRoutes) { r.Sections = nil },
		"a session listed twice":         func(r *SetRoutes) { r.Nodes[1].Session = 1 },
		"a node without address":         func(r *SetRoutes) { r.Nodes[1].Addr = "" },
		"a node without session":         func(r *SetRoutes) { r.Nodes[0].Session = 0 },
		"a change later than the table":  func(r *SetRoutes) { r.Sections[0].Changed = 3 },
		"a set that the map has not":     func(r *SetRoutes) { r.Name = "s2" },
		"more sections than are allowed": func(r *SetRoutes) { r.Sections = make([]Section, SectionsMax+1) },
	} {
		t.Run(name, func(t *testing.T) {
			r := good()
			if _, err := New("demo", "id-1", spaces, sets.Single("s1", spaces), r); err != nil {
				t.Fatal(err)
			}
			change(r)
			var e *InvalidError
			if _, err := New("demo", "id-1", spaces, sets.Single("s1", spaces), r); !errors.As(err, &e) {
				t.Fatalf("got %v, want an InvalidError", err)
			}
		})
	}
	twice := append(spaces, ids.Space{ID: 9, Name: "uid", Kind: ids.KindUID})
	var e *InvalidError
	if _, err := New("demo", "id-1", twice, sets.Single("s1", twice)); !errors.As(err, &e) {
		t.Fatalf("a space name twice: got %v", err)
	}
}
