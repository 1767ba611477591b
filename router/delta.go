package router

import (
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// Delta is a message about routes: a whole table, or what changed in one.
type Delta struct {
	Cluster    string
	ClusterID  string
	MapVersion uint64
	// Spaces not empty: the Delta has the whole Set map of MapVersion, and Sets
	// names every Set of it with its ranges. Empty: the map is left as it is.
	Spaces []ids.Space
	Sets   []SetDelta
}

// SetDelta is what a Delta says of one Set.
type SetDelta struct {
	Name string
	// Ranges that the Set owns; only in a Delta with the Set map.
	Ranges []sets.Range
	// Version of the Set's routes; 0 when the Delta says nothing of its owners,
	// and then all fields below but Stores are zero.
	Version uint64
	// Since 0: Changes has every section, in order. Else it has at least all
	// that changed after version Since.
	Since uint64
	// SectionCount is that of the Set, whatever Changes has.
	SectionCount uint32
	Changes      []Change
	// Nodes and Stores are always whole.
	Nodes  []Node
	Stores []string
}

// Change is the present owner and epoch of a section.
type Change struct {
	Section ids.Section
	Owner   ids.SessionID
	Epoch   ids.Epoch
}

// Versions is what a holder of a table has.
type Versions struct {
	Map  uint64
	Sets map[string]uint64
}

// Versions of the table's parts.
func (t *Table) Versions() Versions {
	v := Versions{Map: t.Map.Version, Sets: make(map[string]uint64, len(t.Sets))}
	for _, s := range t.Sets {
		v.Sets[s.Name] = s.Version
	}
	return v
}

// Whole is the table as a message.
func (t *Table) Whole() Delta {
	d, _ := t.since(0, func(*SetRoutes) (uint64, bool) { return 0, true })
	return d
}

// Since is what a holder of the known versions lacks; false if nothing.
func (t *Table) Since(known Versions) (Delta, bool) {
	return t.since(known.Map, func(s *SetRoutes) (uint64, bool) { return known.Sets[s.Name], true })
}

// SinceOf is the same for a holder who spoke of one Set only: it is told of
// that Set's owners and of the map, not of other Sets' owners.
func (t *Table) SinceOf(set string, mapVersion, setVersion uint64) (Delta, bool) {
	return t.since(mapVersion, func(s *SetRoutes) (uint64, bool) { return setVersion, s.Name == set })
}

// since leaves out the owners of the Sets for which known answers false.
func (t *Table) since(mapVersion uint64, known func(*SetRoutes) (version uint64, wanted bool)) (Delta, bool) {
	d := Delta{Cluster: t.Cluster, ClusterID: t.ClusterID, MapVersion: t.Map.Version}
	withMap := mapVersion < t.Map.Version
	if withMap {
		d.Spaces = t.Spaces
	}
	for _, s := range t.Sets {
		version, wanted := known(s)
		part := SetDelta{Name: s.Name}
		news := wanted && version < s.Version
		if news {
			part = s.since(version)
		}
		if withMap {
			part.Ranges = t.Map.Owned(s.Name)
			part.Stores = s.Stores
		}
		if withMap || news {
			d.Sets = append(d.Sets, part)
		}
	}
	return d, withMap || len(d.Sets) > 0
}

// since is what a holder of an older version lacks; for one of version 0, the whole.
func (r *SetRoutes) since(version uint64) SetDelta {
	d := SetDelta{
		Name: r.Name, Version: r.Version, SectionCount: uint32(len(r.Sections)),
		Since: version, Nodes: r.Nodes, Stores: r.Stores,
	}
	for i, s := range r.Sections {
		if version == 0 || s.Changed > version {
			d.Changes = append(d.Changes, Change{Section: ids.Section(i), Owner: s.Owner, Epoch: s.Epoch})
		}
	}
	return d
}
