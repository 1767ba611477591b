package router

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// SectionsMax bounds the sections of one Set, so that a table from the network has a size.
const SectionsMax = 1 << 20

// Node is an AllocSvr as clients reach it.
type Node struct {
	// Session is not 0.
	Session ids.SessionID
	// ID is the node's configured name, which outlives its sessions.
	ID        string
	Addr      string
	RedisAddr string
	HTTPAddr  string
}

// Section is who may serve a section.
type Section struct {
	// Owner is the session; 0 for none.
	Owner ids.SessionID
	Epoch ids.Epoch
	// Changed is at or after the version of the last change of Owner or Epoch,
	// and not above the Set's Version. 0 only if it was never assigned: an
	// epoch never returns to 0. So what has Changed > v is, for a reader who
	// has version v, at least all that it lacks.
	Changed uint64
}

// SetRoutes is one Set's part of a table.
type SetRoutes struct {
	Name string
	// Version is 0 when only the Set's ranges are known, not its owners.
	Version uint64
	// Sections is indexed by ids.Section. Empty only when Version is 0.
	Sections []Section
	// Nodes are sorted by session, and include every section's owner.
	Nodes []Node
	// Stores are the client addresses of the Set's StoreSvrs. Those of a Set with
	// unknown owners come with the Set map: they know the owners.
	Stores []string
}

// Table is one version of the routes. It must not be changed once made.
// The zero Table is that of a node that knows nothing yet.
type Table struct {
	Cluster   string
	ClusterID string
	Spaces    []ids.Space
	Map       sets.Map
	// Sets has one entry for each of Map.Sets, in the same order.
	Sets []*SetRoutes

	// entrySet has the index in Sets for each of Map.Entries, -1 for an unassigned one.
	entrySet []int
}

// New makes a table of its parts, which it keeps. Parts that are missing for a
// Set of the map are added as Sets with unknown owners.
func New(cluster, clusterID string, spaces []ids.Space, m sets.Map, parts ...*SetRoutes) (*Table, error) {
	t := &Table{Cluster: cluster, ClusterID: clusterID, Spaces: spaces, Map: m}
	if clusterID == "" {
		return nil, &InvalidError{Reason: "no cluster id"}
	}
	if err := validateSpaces(spaces); err != nil {
		return nil, err
	}
	if err := m.Validate(spaces); err != nil {
		return nil, &InvalidError{Reason: err.Error()}
	}
	byName := make(map[string]*SetRoutes, len(parts))
	for _, p := range parts {
		if !m.Has(p.Name) {
			return nil, &InvalidError{Reason: fmt.Sprintf("routes of set %q, which the set map does not have", p.Name)}
		}
		if err := p.validate(); err != nil {
			return nil, err
		}
		byName[p.Name] = p
	}
	for _, name := range m.Sets {
		p := byName[name]
		if p == nil {
			p = &SetRoutes{Name: name}
		}
		t.Sets = append(t.Sets, p)
	}
	t.entrySet = make([]int, len(m.Entries))
	for i, e := range m.Entries {
		t.entrySet[i] = -1
		if e.Set != sets.Unassigned {
			t.entrySet[i], _ = slices.BinarySearch(m.Sets, e.Set)
		}
	}
	return t, nil
}

func validateSpaces(spaces []ids.Space) error {
	if len(spaces) == 0 {
		return &InvalidError{Reason: "no spaces"}
	}
	for i, s := range spaces {
		if s.ID == 0 || s.Name == "" || s.Kind != ids.KindUID && s.Kind != ids.KindName {
			return &InvalidError{Reason: fmt.Sprintf("space %d %q of kind %v: want an id, a name, and kind uid or name", s.ID, s.Name, s.Kind)}
		}
		for _, o := range spaces[:i] {
			if o.ID == s.ID || o.Name == s.Name {
				return &InvalidError{Reason: fmt.Sprintf("spaces %q (%d) and %q (%d) share a name or id", o.Name, o.ID, s.Name, s.ID)}
			}
		}
	}
	return nil
}

func (r *SetRoutes) validate() error {
	bad := func(format string, args ...any) error {
		return &InvalidError{Reason: fmt.Sprintf("set %q: ", r.Name) + fmt.Sprintf(format, args...)}
	}
	if r.Version == 0 && (len(r.Sections) > 0 || len(r.Nodes) > 0) {
		return bad("owners without a version")
	}
	if r.Version > 0 && len(r.Sections) == 0 || len(r.Sections) > SectionsMax {
		return bad("%d sections, want 1 to %d", len(r.Sections), SectionsMax)
	}
	for i, n := range r.Nodes {
		if n.Session == 0 || n.Addr == "" {
			return bad("node %q has session %d and address %q, want both", n.ID, n.Session, n.Addr)
		}
		if i > 0 && r.Nodes[i-1].Session >= n.Session {
			return bad("nodes are not in ascending order of sessions: %d, %d", r.Nodes[i-1].Session, n.Session)
		}
	}
	for i, s := range r.Sections {
		if s.Changed > r.Version {
			return bad("section %d changed at version %d, above the table's %d", i, s.Changed, r.Version)
		}
		if s.Owner != 0 && r.Node(s.Owner) == nil {
			return bad("section %d is owned by session %d, which is no listed node", i, s.Owner)
		}
	}
	return nil
}

// SortNodes puts nodes in the order that a SetRoutes keeps them in.
func SortNodes(nodes []Node) {
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Session, b.Session) })
}

// Node finds a node by its session; nil if it is not listed.
func (r *SetRoutes) Node(s ids.SessionID) *Node {
	i := sort.Search(len(r.Nodes), func(i int) bool { return r.Nodes[i].Session >= s })
	if i == len(r.Nodes) || r.Nodes[i].Session != s {
		return nil
	}
	return &r.Nodes[i]
}

// Set finds a Set's part by name; nil if the map does not have it.
func (t *Table) Set(name string) *SetRoutes {
	i, ok := slices.BinarySearch(t.Map.Sets, name)
	if !ok {
		return nil
	}
	return t.Sets[i]
}

// Space finds a space by name.
func (t *Table) Space(name string) (ids.Space, bool) {
	for _, s := range t.Spaces {
		if s.Name == name {
			return s, true
		}
	}
	return ids.Space{}, false
}

// Known tells whether the table has a Set map at all.
func (t *Table) Known() bool { return t.Map.Version > 0 }
