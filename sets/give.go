package sets

import (
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Give is the next version of the map: all of r goes from one Set to another.
// It splits and merges entries, and refuses if any of r is not owned by `from`.
func (m *Map) Give(r Range, from, to string) (Map, error) {
	if from == to {
		return Map{}, &SameSetError{Set: from}
	}
	if !m.Has(to) {
		return Map{}, &NoSuchSetError{Set: to}
	}
	if r.Lo > r.Last {
		return Map{}, &EmptyRangeError{Range: r}
	}
	next := Map{Version: m.Version + 1, Sets: m.Sets}
	for _, e := range m.Entries {
		if !e.Overlaps(r) {
			next.Entries = append(next.Entries, e)
			continue
		}
		if e.Set != from {
			return Map{}, &NotOwnedError{Range: r, By: from, Entry: e}
		}
		for _, rest := range Without([]Range{e.Range}, r) {
			next.Entries = append(next.Entries, Entry{Range: rest, Set: e.Set})
		}
	}
	next.Entries = append(next.Entries, Entry{Range: r, Set: to})
	next.sort()
	next.merge()
	// What r has outside of every entry would show up as a space of another extent.
	if err := next.Validate(m.spaces()); err != nil {
		return Map{}, err
	}
	return next, nil
}

// merge joins neighbours of one Set. The entries are sorted.
func (m *Map) merge() {
	merged := make([]Entry, 0, len(m.Entries))
	for _, e := range m.Entries {
		if n := len(merged); n > 0 && merged[n-1].Set == e.Set && merged[n-1].meets(e.Range) {
			merged[n-1].Last = e.Last
			continue
		}
		merged = append(merged, e)
	}
	m.Entries = slices.Clip(merged)
}

// spaces are those that the map covers, as far as Validate looks at them: all
// that it needs is where they end.
func (m *Map) spaces() []ids.Space {
	var out []ids.Space
	for _, e := range m.Entries {
		if n := len(out); n > 0 && out[n-1].ID == e.Space {
			out[n-1].MaxUID = max(out[n-1].MaxUID, uint64(e.Last))
			continue
		}
		out = append(out, ids.Space{ID: e.Space, Kind: ids.KindUID, MaxUID: uint64(e.Last)})
	}
	return out
}
