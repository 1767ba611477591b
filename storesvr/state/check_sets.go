package state

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/seqsvr/seqsvr/sets"
)

// checkSets verifies ranges, moves and the directory.
func checkSets(m *Meta) error {
	whole := sets.WholeSpaces(m.Genesis.Spaces)
	if !sets.IsNormal(m.Ranges) {
		return fmt.Errorf("state: own ranges %v are not in normal form", m.Ranges)
	}
	for _, r := range m.Ranges {
		if !sets.CoverAll(whole, r) {
			return fmt.Errorf("state: own range %v is outside every space", r)
		}
	}
	if err := checkMaps(m); err != nil {
		return err
	}
	var held []sets.Range
	for id, o := range m.Out {
		if err := checkOut(m, id, o); err != nil {
			return fmt.Errorf("state: outgoing part %+v of move %d: %w", *o, id, err)
		}
		if !o.holds() {
			continue
		}
		if sets.OverlapAny(held, o.Range) {
			return fmt.Errorf("state: range %v is frozen for two moves", o.Range)
		}
		held = append(held, o.Range)
	}
	var coming []sets.Range
	for id, in := range m.In {
		if err := checkIn(m, id, in); err != nil {
			return fmt.Errorf("state: incoming part %+v of move %d: %w", *in, id, err)
		}
		if in.Phase != InImporting {
			continue
		}
		if sets.OverlapAny(coming, in.Range) {
			return fmt.Errorf("state: range %v comes in for two moves", in.Range)
		}
		coming = append(coming, in.Range)
	}
	return nil
}

func checkMaps(m *Meta) error {
	if err := m.Published.Validate(); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if m.Published.Map.Version != 0 {
		if err := m.Published.Map.Validate(m.Genesis.Spaces); err != nil {
			return fmt.Errorf("state: %w", err)
		}
	}
	if (m.Directory != nil) != m.Genesis.Directory {
		return errors.New("state: the directory is not where it was founded")
	}
	if m.Directory == nil {
		return nil
	}
	if err := m.Directory.Check(); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if !reflect.DeepEqual(m.Directory.Published, m.Published) {
		return errors.New("state: the map is not the directory's")
	}
	return nil
}

func checkOut(m *Meta, id sets.MoveID, o *Outgoing) error {
	switch {
	case o.Move != id || id == 0 || o.Part == 0 || id <= m.MovesEnded:
		return fmt.Errorf("it cannot be of this move with moves up to %d over", m.MovesEnded)
	case o.Phase < OutFrozen || o.Phase > OutGone:
		return errors.New("no such phase")
	case o.Range.Lo > o.Range.Last:
		return errors.New("its range is empty")
	case o.holds() && !sets.CoverAll(m.Ranges, o.Range):
		return errors.New("it is not in the own ranges")
	case o.Phase != OutFrozen && len(o.Waiting) > 0:
		return errors.New("sessions wait in this phase")
	case !o.holds() && len(o.Vacated) > 0:
		return errors.New("epochs are kept in this phase")
	case !slices.IsSortedFunc(o.Vacated, compareSections):
		return errors.New("vacated epochs out of order")
	}
	for i, s := range o.Waiting {
		if m.Sessions[s] == nil || i > 0 && o.Waiting[i-1] >= s {
			return fmt.Errorf("session %d waits, but does not exist or is out of order", s)
		}
	}
	return nil
}

func checkIn(m *Meta, id sets.MoveID, in *Incoming) error {
	switch {
	case in.Move != id || id == 0 || in.Part == 0 || id <= m.MovesEnded:
		return fmt.Errorf("it cannot be of this move with moves up to %d over", m.MovesEnded)
	case in.Phase < InImporting || in.Phase > InDiscarded:
		return errors.New("no such phase")
	case in.Range.Lo > in.Range.Last:
		return errors.New("its range is empty")
	case in.Phase == InImporting && sets.OverlapAny(m.Ranges, in.Range):
		return errors.New("it overlaps the own ranges")
	}
	return nil
}
