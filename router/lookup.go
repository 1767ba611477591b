package router

import (
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Route is where a key is served, as far as a table knows.
type Route struct {
	Set     string
	Section ids.Section
	Epoch   ids.Epoch
	// Owner is the zero Node while no session owns the section, or when the
	// table does not know the Set's owners (Version 0).
	Owner Node
	// Version is that of the Set's part of the table.
	Version uint64
}

// Owned tells whether the route has somewhere to go.
func (r *Route) Owned() bool { return r.Owner.Session != 0 }

// UnassignedError: no Set owns the key's position.
type UnassignedError struct {
	Key        ids.Key
	MapVersion uint64
}

func (e *UnassignedError) Error() string {
	return fmt.Sprintf("key %v belongs to no set in set map version %d: assign its range to one", e.Key, e.MapVersion)
}

// Lookup finds the route of a key. The error is an *UnassignedError.
func (t *Table) Lookup(k ids.Key) (Route, error) {
	i := t.Map.Find(k.Space, k.Position())
	if i < 0 || t.entrySet[i] < 0 {
		return Route{}, &UnassignedError{Key: k, MapVersion: t.Map.Version}
	}
	set := t.Sets[t.entrySet[i]]
	r := Route{Set: set.Name, Version: set.Version}
	if len(set.Sections) == 0 {
		return r, nil
	}
	r.Section = k.Section(uint32(len(set.Sections)))
	s := set.Sections[r.Section]
	r.Epoch = s.Epoch
	if s.Owner != 0 {
		r.Owner = *set.Node(s.Owner)
	}
	return r, nil
}
