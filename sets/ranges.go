package sets

import (
	"slices"
	"sort"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// The functions below work on lists of ranges in normal form: sorted, without
// overlap, neighbours merged. They never change their argument.

// Normal brings ranges into normal form; ranges that overlap are joined.
func Normal(ranges []Range) []Range {
	var out []Range
	for _, r := range slices.SortedFunc(slices.Values(ranges), Range.compare) {
		if n := len(out); n > 0 && (out[n-1].Overlaps(r) || out[n-1].meets(r)) {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// IsNormal tells whether the ranges are in normal form.
func IsNormal(ranges []Range) bool {
	for i, r := range ranges {
		if r.Lo > r.Last {
			return false
		}
		if i > 0 && (ranges[i-1].compare(r) >= 0 || ranges[i-1].Overlaps(r) || ranges[i-1].meets(r)) {
			return false
		}
	}
	return true
}

// meets: o begins where r ends.
func (r Range) meets(o Range) bool {
	return r.Space == o.Space && r.Last < o.Lo && r.Last+1 == o.Lo
}

// Has tells whether one of the ranges has the position.
func Has(ranges []Range, space ids.SpaceID, p ids.Position) bool {
	// The last range that starts at or before the position is the only candidate.
	i := sort.Search(len(ranges), func(i int) bool {
		r := &ranges[i]
		return r.Space > space || r.Space == space && r.Lo > p
	}) - 1
	return i >= 0 && ranges[i].Contains(space, p)
}

// CoverAll tells whether all of r lies in the ranges.
func CoverAll(ranges []Range, r Range) bool {
	// Neighbours are merged, so it lies in one of them or reaches out.
	return slices.ContainsFunc(ranges, func(o Range) bool { return o.Covers(r) })
}

// OverlapAny tells whether r shares a position with one of the ranges.
func OverlapAny(ranges []Range, r Range) bool { return slices.ContainsFunc(ranges, r.Overlaps) }

// With is the ranges and r.
func With(ranges []Range, r Range) []Range {
	return Normal(append(slices.Clone(ranges), r))
}

// Without is the ranges less all positions of r.
func Without(ranges []Range, r Range) []Range {
	var out []Range
	for _, o := range ranges {
		if !o.Overlaps(r) {
			out = append(out, o)
			continue
		}
		if o.Lo < r.Lo {
			out = append(out, Range{Space: o.Space, Lo: o.Lo, Last: r.Lo - 1})
		}
		if o.Last > r.Last {
			out = append(out, Range{Space: o.Space, Lo: r.Last + 1, Last: o.Last})
		}
	}
	return out
}

// WholeSpaces are the ranges that have every position of the spaces.
func WholeSpaces(spaces []ids.Space) []Range {
	out := make([]Range, 0, len(spaces))
	for _, s := range spaces {
		out = append(out, Whole(s))
	}
	return Normal(out)
}
