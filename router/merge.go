package router

import (
	"fmt"
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// FromDelta makes a table of a message that has the Set map.
func FromDelta(d Delta) (*Table, error) { return (&Table{}).Merge(d) }

// Merge returns the table with what is newer in the message. What is not newer
// is ignored; if nothing is, it returns t itself. On an error (InvalidError,
// ForeignError, GapError or ConflictError) nothing of the message was taken.
func (t *Table) Merge(d Delta) (*Table, error) {
	if d.ClusterID == "" {
		return nil, &InvalidError{Reason: "no cluster id"}
	}
	if t.Known() && (d.ClusterID != t.ClusterID || d.Cluster != t.Cluster) {
		return nil, &ForeignError{Cluster: t.Cluster, ClusterID: t.ClusterID, GotCluster: d.Cluster, GotClusterID: d.ClusterID}
	}
	m, spaces, err := t.mergeMap(d)
	if err != nil {
		return nil, err
	}
	changed := m.Version != t.Map.Version
	parts := make([]*SetRoutes, 0, len(m.Sets))
	for _, name := range m.Sets {
		held := t.Set(name)
		if held == nil {
			held = &SetRoutes{Name: name}
		}
		part := held
		if i := slices.IndexFunc(d.Sets, func(s SetDelta) bool { return s.Name == name }); i >= 0 {
			if part, err = held.merge(&d.Sets[i]); err != nil {
				return nil, err
			}
			if len(d.Spaces) > 0 && d.MapVersion == m.Version {
				part = part.reachedAt(&d.Sets[i])
			}
		}
		changed = changed || part != held
		parts = append(parts, part)
	}
	if !changed {
		return t, nil
	}
	return New(d.Cluster, d.ClusterID, spaces, m, parts...)
}

// mergeMap is the newer of the held Set map and the message's, and its spaces.
func (t *Table) mergeMap(d Delta) (sets.Map, []ids.Space, error) {
	if len(d.Spaces) == 0 {
		if d.MapVersion > t.Map.Version || !t.Known() {
			return sets.Map{}, nil, &GapError{Held: t.Map.Version, Since: d.MapVersion}
		}
		return t.Map, t.Spaces, nil
	}
	if d.MapVersion == 0 {
		return sets.Map{}, nil, &InvalidError{Reason: "a set map without a version"}
	}
	if d.MapVersion < t.Map.Version {
		return t.Map, t.Spaces, nil
	}
	if err := validateSpaces(d.Spaces); err != nil {
		return sets.Map{}, nil, err
	}
	owned := make(map[string][]sets.Range, len(d.Sets))
	for _, s := range d.Sets {
		if _, twice := owned[s.Name]; twice {
			return sets.Map{}, nil, &InvalidError{Reason: fmt.Sprintf("set %q is listed twice", s.Name)}
		}
		owned[s.Name] = s.Ranges
	}
	m, err := sets.Assemble(d.MapVersion, owned, d.Spaces)
	if err != nil {
		return sets.Map{}, nil, &InvalidError{Reason: err.Error()}
	}
	if d.MapVersion > t.Map.Version {
		return m, d.Spaces, nil
	}
	if !slices.Equal(m.Sets, t.Map.Sets) || !slices.Equal(m.Entries, t.Map.Entries) || !slices.Equal(d.Spaces, t.Spaces) {
		return sets.Map{}, nil, &ConflictError{Reason: fmt.Sprintf("two different set maps of version %d", d.MapVersion)}
	}
	return t.Map, t.Spaces, nil
}

// merge returns r itself when the message has nothing newer.
func (r *SetRoutes) merge(d *SetDelta) (*SetRoutes, error) {
	if d.Version <= r.Version {
		return r, nil
	}
	if d.Since > r.Version {
		return nil, &GapError{Set: r.Name, Held: r.Version, Since: d.Since}
	}
	if err := d.validate(); err != nil {
		return nil, err
	}
	if r.Version > 0 && int(d.SectionCount) != len(r.Sections) {
		return nil, &ConflictError{Reason: fmt.Sprintf("set %q with %d sections, which had %d", r.Name, d.SectionCount, len(r.Sections))}
	}
	next := &SetRoutes{Name: r.Name, Version: d.Version, Nodes: d.Nodes, Stores: d.Stores}
	if r.Version == 0 {
		next.Sections = make([]Section, d.SectionCount)
	} else {
		next.Sections = slices.Clone(r.Sections)
	}
	for _, c := range d.Changes {
		s := &next.Sections[c.Section]
		if c.Epoch < s.Epoch {
			return nil, &ConflictError{Reason: fmt.Sprintf("set %q section %d: epoch %d at version %d, after epoch %d at version %d",
				r.Name, c.Section, c.Epoch, d.Version, s.Epoch, r.Version)}
		}
		// A pair of owner and epoch never comes back, so an equal one did not change.
		if s.Owner != c.Owner || s.Epoch != c.Epoch {
			*s = Section{Owner: c.Owner, Epoch: c.Epoch, Changed: d.Version}
		}
	}
	return next, nil
}

// reachedAt is r with what a message with the newest Set map says of where to ask
// for the Set's owners. Whoever knows the owners has that from the Set itself.
func (r *SetRoutes) reachedAt(d *SetDelta) *SetRoutes {
	if r.Version > 0 || len(d.Stores) == 0 || slices.Equal(r.Stores, d.Stores) {
		return r
	}
	return &SetRoutes{Name: r.Name, Stores: d.Stores}
}

func (d *SetDelta) validate() error {
	bad := func(format string, args ...any) error {
		return &InvalidError{Reason: fmt.Sprintf("set %q: ", d.Name) + fmt.Sprintf(format, args...)}
	}
	if d.SectionCount == 0 || d.SectionCount > SectionsMax {
		return bad("%d sections, want 1 to %d", d.SectionCount, SectionsMax)
	}
	if d.Since >= d.Version {
		return bad("a delta from version %d to %d", d.Since, d.Version)
	}
	if d.Since == 0 && len(d.Changes) != int(d.SectionCount) {
		return bad("a whole table that lists %d of %d sections", len(d.Changes), d.SectionCount)
	}
	for i, c := range d.Changes {
		if c.Section >= ids.Section(d.SectionCount) || d.Since == 0 && c.Section != ids.Section(i) {
			return bad("section %d out of place", c.Section)
		}
	}
	return nil
}

// Behind names the first part of t that is older than o's; false if none is.
func (t *Table) Behind(o *Table) (*BackwardsError, bool) {
	if t.Map.Version < o.Map.Version {
		return &BackwardsError{Held: o.Map.Version, Got: t.Map.Version}, true
	}
	for _, s := range t.Sets {
		if held := o.Set(s.Name); held != nil && s.Version < held.Version {
			return &BackwardsError{Set: s.Name, Held: held.Version, Got: s.Version}, true
		}
	}
	return nil, false
}
