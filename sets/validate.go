package sets

import (
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// OverlapError: two entries share positions.
type OverlapError struct{ A, B Entry }

func (e *OverlapError) Error() string { return e.text(nil) }

func (e *OverlapError) text(spaces []ids.Space) string {
	return fmt.Sprintf("set map: %s and %s overlap: give the shared positions to one of them", e.A.in(spaces), e.B.in(spaces))
}

// HoleError: positions between two entries (or a space's edge) belong to nobody.
type HoleError struct {
	Hole Range
	// Before and After are the entries beside the hole; nil at the edge of the space.
	Before, After *Entry
}

func (e *HoleError) Error() string { return e.text(nil) }

func (e *HoleError) text(spaces []ids.Space) string {
	side := func(n *Entry, edge string) string {
		if n == nil {
			return edge
		}
		return n.in(spaces)
	}
	return fmt.Sprintf("set map: %s between %s and %s belongs to no set: assign it or declare it unassigned",
		e.Hole.In(spaces), side(e.Before, "the start of the space"), side(e.After, "the end of the space"))
}

// UnknownSetError: an entry names a Set that the map does not list.
type UnknownSetError struct{ Entry Entry }

func (e *UnknownSetError) Error() string { return e.text(nil) }

func (e *UnknownSetError) text(spaces []ids.Space) string {
	return fmt.Sprintf("set map: %s names an unknown set: create it first", e.Entry.in(spaces))
}

// OutsideError: an entry reaches outside its space, or its space is unknown (then Space is zero).
type OutsideError struct {
	Entry Entry
	Space ids.Space
}

func (e *OutsideError) Error() string { return e.text(nil) }

func (e *OutsideError) text(spaces []ids.Space) string {
	if e.Space.ID == 0 {
		return fmt.Sprintf("set map: %s is of an unknown space: add the space first", e.Entry.in(spaces))
	}
	return fmt.Sprintf("set map: %s reaches outside space %q, which is %s", e.Entry.in(spaces), e.Space.Name, Whole(e.Space).In(spaces))
}

// FormError: the map is not in its normal form.
type FormError struct{ Reason string }

func (e *FormError) Error() string { return "set map: " + e.Reason }

// String is SPACE:LO-HI=SET with the id of the space.
func (e Entry) String() string { return e.in(nil) }

func (e Entry) in(spaces []ids.Space) string {
	if e.Set == Unassigned {
		return e.In(spaces) + "=(unassigned)"
	}
	return e.In(spaces) + "=" + e.Set
}

// Validate tells whether every position of every space belongs to exactly one
// known Set or is declared unassigned. The error is one of the types above.
func (m *Map) Validate(spaces []ids.Space) error {
	if err := m.validateForm(); err != nil {
		return err
	}
	byID := make(map[ids.SpaceID]ids.Space, len(spaces))
	for _, s := range spaces {
		if _, twice := byID[s.ID]; twice {
			return &FormError{Reason: fmt.Sprintf("space id %d is listed twice", s.ID)}
		}
		byID[s.ID] = s
	}
	for i, e := range m.Entries {
		if e.Lo > e.Last {
			return &FormError{Reason: fmt.Sprintf("an entry of space %d ends at %d before it starts at %d", e.Space, e.Last, e.Lo)}
		}
		s, ok := byID[e.Space]
		if !ok || !Whole(s).Covers(e.Range) {
			return &OutsideError{Entry: e, Space: s}
		}
		if e.Set != Unassigned && !m.Has(e.Set) {
			return &UnknownSetError{Entry: e}
		}
		if i > 0 && m.Entries[i-1].Overlaps(e.Range) {
			return &OverlapError{A: m.Entries[i-1], B: e}
		}
	}
	if missing := holes(m.Entries, spaces); len(missing) > 0 {
		return m.holeError(missing[0].Range)
	}
	return nil
}

// validateForm checks what Lookup relies on: order and unique names.
func (m *Map) validateForm() error {
	for i, name := range m.Sets {
		switch {
		case name == Unassigned:
			return &FormError{Reason: "a set has an empty name"}
		case i > 0 && m.Sets[i-1] == name:
			return &FormError{Reason: fmt.Sprintf("set %q is listed twice", name)}
		case i > 0 && m.Sets[i-1] > name:
			return &FormError{Reason: fmt.Sprintf("set names are not sorted: %q before %q", m.Sets[i-1], name)}
		}
	}
	for i := 1; i < len(m.Entries); i++ {
		if m.Entries[i-1].compare(m.Entries[i].Range) > 0 {
			return &FormError{Reason: fmt.Sprintf("entries are not sorted: %s before %s", m.Entries[i-1], m.Entries[i])}
		}
	}
	return nil
}

// holeError names the entries on both sides of a hole.
func (m *Map) holeError(hole Range) *HoleError {
	err := &HoleError{Hole: hole}
	for i := range m.Entries {
		e := &m.Entries[i]
		if e.Space != hole.Space {
			continue
		}
		if e.Last < hole.Lo {
			err.Before = e
		}
		if e.Lo > hole.Last && err.After == nil {
			err.After = e
		}
	}
	return err
}
