package sets

import (
	"slices"
	"sort"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Unassigned as an entry's Set declares that no Set serves the range.
const Unassigned = ""

// Entry gives a range to a Set, or declares it Unassigned.
type Entry struct {
	Range
	Set string
}

// Map is one version of the assignment of ranges to Sets. It is not changed
// once made; a change makes a Map with a higher Version.
type Map struct {
	// Version grows by one with each change. 0 is the empty Map of a node that knows none.
	Version uint64
	// Sets are the names of all Sets, sorted; a Set may own nothing.
	Sets []string
	// Entries are sorted by space and position, and cover each space without overlap or hole.
	Entries []Entry
}

// Single is the map of a cluster with one Set, which owns everything.
func Single(name string, spaces []ids.Space) Map {
	m := Map{Version: 1, Sets: []string{name}}
	for _, s := range spaces {
		m.Entries = append(m.Entries, Entry{Range: Whole(s), Set: name})
	}
	m.sort()
	return m
}

// Assemble makes a map of what each Set says it owns: positions that no Set
// names are declared unassigned. It validates the result.
func Assemble(version uint64, owned map[string][]Range, spaces []ids.Space) (Map, error) {
	m := Map{Version: version}
	for name, ranges := range owned {
		m.Sets = append(m.Sets, name)
		for _, r := range ranges {
			m.Entries = append(m.Entries, Entry{Range: r, Set: name})
		}
	}
	m.sort()
	m.Entries = append(m.Entries, holes(m.Entries, spaces)...)
	m.sort()
	if err := m.Validate(spaces); err != nil {
		return Map{}, err
	}
	return m, nil
}

func (m *Map) sort() {
	slices.Sort(m.Sets)
	slices.SortFunc(m.Entries, func(a, b Entry) int { return a.compare(b.Range) })
}

// holes lists, as unassigned entries, what sorted entries leave out of the
// spaces. Overlaps and stray entries are left for Validate to name.
func holes(sorted []Entry, spaces []ids.Space) []Entry {
	var out []Entry
	for _, s := range spaces {
		whole := Whole(s)
		next, full := whole.Lo, false
		for _, e := range sorted {
			if e.Space != s.ID || full {
				continue
			}
			if e.Lo > next {
				out = append(out, Entry{Range: Range{Space: s.ID, Lo: next, Last: min(e.Lo-1, whole.Last)}})
			}
			if e.Last >= whole.Last {
				full = true
			} else if e.Last >= next {
				next = e.Last + 1
			}
		}
		if !full && next <= whole.Last {
			out = append(out, Entry{Range: Range{Space: s.ID, Lo: next, Last: whole.Last}})
		}
	}
	return out
}

// Lookup names the Set that owns a position; false if it is unassigned or
// outside every space of the map.
func (m *Map) Lookup(space ids.SpaceID, p ids.Position) (string, bool) {
	i := m.Find(space, p)
	if i < 0 || m.Entries[i].Set == Unassigned {
		return "", false
	}
	return m.Entries[i].Set, true
}

// Find is the index in Entries of the entry that has a position, -1 if none has.
func (m *Map) Find(space ids.SpaceID, p ids.Position) int {
	// The last entry that starts at or before the position is the only candidate.
	i := sort.Search(len(m.Entries), func(i int) bool {
		e := &m.Entries[i]
		return e.Space > space || e.Space == space && e.Lo > p
	}) - 1
	if i < 0 || !m.Entries[i].Contains(space, p) {
		return -1
	}
	return i
}

// Owned lists the ranges of a Set in order.
func (m *Map) Owned(set string) []Range {
	var out []Range
	for _, e := range m.Entries {
		if e.Set == set {
			out = append(out, e.Range)
		}
	}
	return out
}

// Has tells whether the map knows a Set of that name.
func (m *Map) Has(set string) bool {
	_, ok := slices.BinarySearch(m.Sets, set)
	return ok
}
