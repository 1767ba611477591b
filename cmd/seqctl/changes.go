package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/router"
)

// What an event is.
const (
	eventTable  = "table"  // how a Set's sections are spread
	eventMap    = "map"    // a new version of the Set map
	eventJoined = "joined" // a node has come
	eventLeft   = "left"   // a node has gone
	eventMoved  = "moved"  // sections have another owner, or the same in a new epoch
)

// event is one line of watch.
type event struct {
	Time  string `json:"time"`
	Event string `json:"event"`
	Set   string `json:"set,omitempty"`
	// Version of the Set's routes; of the Set map with eventMap.
	Version uint64 `json:"version"`
	// Owners counts the sections of each node, and Unowned those of none.
	Owners  map[string]int `json:"owners,omitempty"`
	Unowned *int           `json:"unowned,omitempty"`
	// Node has come or gone.
	Node string `json:"node,omitempty"`
	Addr string `json:"addr,omitempty"`
	// Sections went From one node To another; empty is nobody.
	From     string   `json:"from,omitempty"`
	To       string   `json:"to,omitempty"`
	Sections []uint32 `json:"sections,omitempty"`
}

// changes are what leads from one table to a later one. From nil it is the whole.
func changes(old, now *client.Table) []event {
	var events []event
	if old != nil && old.Map.Version != now.Map.Version {
		events = append(events, event{Event: eventMap, Version: now.Map.Version})
	}
	for _, s := range now.Sets {
		var before *router.SetRoutes
		if old != nil {
			before = old.Set(s.Name)
		}
		if before == nil || len(before.Sections) != len(s.Sections) {
			events = append(events, whole(s))
			continue
		}
		events = append(events, setChanges(before, s)...)
	}
	return events
}

func whole(s *router.SetRoutes) event {
	e := event{Event: eventTable, Set: s.Name, Version: s.Version, Owners: map[string]int{}, Unowned: new(int)}
	for _, sec := range s.Sections {
		if n := s.Node(sec.Owner); n != nil {
			e.Owners[n.ID]++
		} else {
			*e.Unowned++
		}
	}
	return e
}

func setChanges(old, now *router.SetRoutes) []event {
	var events []event
	add := func(e event) {
		e.Set, e.Version = now.Name, now.Version
		events = append(events, e)
	}
	for i := range now.Nodes {
		if n := &now.Nodes[i]; old.Node(n.Session) == nil {
			add(event{Event: eventJoined, Node: n.ID, Addr: n.Addr})
		}
	}
	type way struct{ from, to string }
	moved := map[way][]uint32{}
	for i := range now.Sections {
		if was, is := old.Sections[i], now.Sections[i]; was.Owner != is.Owner || was.Epoch != is.Epoch {
			w := way{nodeName(old, was.Owner), nodeName(now, is.Owner)}
			moved[w] = append(moved[w], uint32(i))
		}
	}
	ways := slices.SortedFunc(maps.Keys(moved), func(a, b way) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	})
	for _, w := range ways {
		add(event{Event: eventMoved, From: w.from, To: w.to, Sections: moved[w]})
	}
	for i := range old.Nodes {
		if n := &old.Nodes[i]; now.Node(n.Session) == nil {
			add(event{Event: eventLeft, Node: n.ID, Addr: n.Addr})
		}
	}
	return events
}

func nodeName(s *router.SetRoutes, session ids.SessionID) string {
	if n := s.Node(session); n != nil {
		return n.ID
	}
	return ""
}

// spread is how the sections lie, for people.
func (e *event) spread() string {
	var parts []string
	for _, n := range slices.Sorted(maps.Keys(e.Owners)) {
		parts = append(parts, fmt.Sprintf("%s %d", n, e.Owners[n]))
	}
	if *e.Unowned > 0 {
		parts = append(parts, fmt.Sprintf("nobody %d", *e.Unowned))
	}
	return strings.Join(parts, ", ")
}

// sectionsShown bounds a line of watch.
const sectionsShown = 8

func sectionText(sections []uint32) string {
	text := strings.Trim(fmt.Sprint(sections[:min(len(sections), sectionsShown)]), "[]")
	if len(sections) > sectionsShown {
		text += " …"
	}
	return "(" + text + ")"
}
