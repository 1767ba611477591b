package main

import (
	"reflect"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/router"
	"github.com/seqsvr/seqsvr/sets"
)

// tableOf has a node for each name, by session, and sections owned by session.
func tableOf(t *testing.T, version uint64, nodes map[ids.SessionID]string, owners ...ids.SessionID) *router.Table {
	t.Helper()
	r := &router.SetRoutes{Name: "s1", Version: version}
	for s, id := range nodes {
		r.Nodes = append(r.Nodes, router.Node{Session: s, ID: id, Addr: id + ":1"})
	}
	router.SortNodes(r.Nodes)
	for _, o := range owners {
		r.Sections = append(r.Sections, router.Section{Owner: o, Epoch: 1, Changed: version})
	}
	table, err := router.New("demo", "id-1", ids.DefaultSpaces(), sets.Single("s1", ids.DefaultSpaces()), r)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestChangesOfTheRoutes(t *testing.T) {
	type owners = []ids.SessionID
	two := map[ids.SessionID]string{1: "a1", 2: "a2"}
	three := map[ids.SessionID]string{1: "a1", 2: "a2", 3: "a3"}
	base := tableOf(t, 1, two, owners{1, 1, 2, 0}...)
	again := tableOf(t, 2, two, owners{1, 1, 2, 0}...)
	again.Sets[0].Sections[1].Epoch = 2
	for _, c := range []struct {
		name     string
		old, now *router.Table
		want     []string
	}{
		{"the first table", nil, base, []string{"set s1  routes 1  a1 2, a2 1, nobody 1"}},
		{"the same", base, base, nil},
		{"moves, grouped", base, tableOf(t, 2, two, owners{2, 2, 0, 1}...), []string{
			"set s1  routes 2  1 sections  nobody → a1  (3)",
			"set s1  routes 2  2 sections  a1 → a2  (0 1)",
			"set s1  routes 2  1 sections  a2 → nobody  (2)",
		}},
		{"a node comes and gets sections", base, tableOf(t, 2, three, owners{1, 3, 2, 0}...), []string{
			"set s1  routes 2  a3 joined  a3:1",
			"set s1  routes 2  1 sections  a1 → a3  (1)",
		}},
		{"a node goes and its sections are taken", base, tableOf(t, 2, map[ids.SessionID]string{1: "a1"}, owners{1, 1, 1, 1}...), []string{
			"set s1  routes 2  1 sections  nobody → a1  (3)",
			"set s1  routes 2  1 sections  a2 → a1  (2)",
			"set s1  routes 2  a2 left  a2:1",
		}},
		{"a node starts anew", base, tableOf(t, 2, map[ids.SessionID]string{1: "a1", 5: "a2"}, owners{1, 1, 5, 0}...), []string{
			"set s1  routes 2  a2 joined  a2:1",
			"set s1  routes 2  1 sections  a2 → a2  (2)",
			"set s1  routes 2  a2 left  a2:1",
		}},
		{"the same owner in a new epoch", base, again, []string{"set s1  routes 2  1 sections  a1 → a1  (1)"}},
		{"another number of sections", base, tableOf(t, 2, two, owners{1, 2}...), []string{"set s1  routes 2  a1 1, a2 1"}},
	} {
		var got []string
		for _, e := range changes(c.old, c.now) {
			got = append(got, e.text())
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
	if got := sectionText([]uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}); got != "(1 2 3 4 5 6 7 8 …)" {
		t.Error(got)
	}
}
