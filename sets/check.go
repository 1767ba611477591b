package sets

import "fmt"

// Check verifies the invariants of a directory.
func (d *Directory) Check() error {
	if err := d.Published.Validate(); err != nil {
		return err
	}
	if d.Map.Version == 0 {
		return &FormError{Reason: "the directory has no map"}
	}
	over, running := 0, []Range(nil)
	for i := range d.Moves {
		m := &d.Moves[i]
		if m.ID == 0 || m.ID > d.LastMove || i > 0 && d.Moves[i-1].ID >= m.ID {
			return fmt.Errorf("directory: move %d is out of order, the last one is %d", m.ID, d.LastMove)
		}
		if err := m.check(); err != nil {
			return fmt.Errorf("directory: move %d: %w", m.ID, err)
		}
		if m.Over() {
			over++
			continue
		}
		if err := d.checkRunning(m, running); err != nil {
			return fmt.Errorf("directory: move %d: %w", m.ID, err)
		}
		running = append(running, m.Ranges...)
	}
	if over > EndedMax || len(d.Moves)-over > RunningMax {
		return fmt.Errorf("directory: %d moves are kept, of which %d have ended", len(d.Moves), over)
	}
	return nil
}

// checkRunning: the map says what the move says of how far it is.
func (d *Directory) checkRunning(m *Move, others []Range) error {
	for _, r := range m.Ranges {
		if OverlapAny(others, r) {
			return fmt.Errorf("range %s is of another move too", r)
		}
	}
	moved := m.Moved()
	left := m.Left()
	if m.PartState == PartCommitted {
		moved = With(moved, m.PartRange)
		left = Without(left, m.PartRange)
	}
	for set, ranges := range map[string][]Range{m.To: moved, m.From: left} {
		owned := Normal(d.Map.Owned(set))
		for _, r := range ranges {
			if !CoverAll(owned, r) {
				return fmt.Errorf("set %q should own %s and does not", set, r)
			}
		}
	}
	return nil
}

func (m *Move) check() error {
	switch {
	case m.From == m.To || m.From == "" || m.To == "":
		return fmt.Errorf("it goes from set %q to set %q", m.From, m.To)
	case len(m.Ranges) == 0 || len(m.Ranges) > MoveRangesMax || !IsNormal(m.Ranges):
		return fmt.Errorf("its %d ranges are not in normal form", len(m.Ranges))
	case m.State < MoveRunning || m.State > MoveAborted || m.PartState > PartAborted:
		return fmt.Errorf("it is %s, its part is %s", m.State, m.PartState)
	case m.At < 0 || m.At > len(m.Ranges):
		return fmt.Errorf("it is at range %d of %d", m.At, len(m.Ranges))
	case (m.At == len(m.Ranges)) != (m.State == MoveDone):
		return fmt.Errorf("it is %s at range %d of %d", m.State, m.At, len(m.Ranges))
	case m.At == len(m.Ranges) && m.Next != 0:
		return fmt.Errorf("it goes on at %d, after its end", m.Next)
	case m.At < len(m.Ranges) && (m.Next < m.Ranges[m.At].Lo || m.Next > m.Ranges[m.At].Last):
		return fmt.Errorf("it goes on at %d, outside of range %s", m.Next, m.Ranges[m.At])
	case m.PartState != PartNone && (m.Over() || m.Part == 0):
		return fmt.Errorf("it is %s, its part %d is %s", m.State, m.Part, m.PartState)
	case m.State == MoveAborting && m.PartState != PartCommitted && m.PartState != PartAborted:
		return fmt.Errorf("it is aborting, its part is %s", m.PartState)
	case len(m.Reason) > ReasonBytesMax:
		return fmt.Errorf("its reason has %d bytes", len(m.Reason))
	}
	if m.PartState != PartNone {
		left := m.Left()[0]
		if r := m.PartRange; !left.Covers(r) || r.Lo != left.Lo || r.Lo > r.Last {
			return fmt.Errorf("its part %s does not begin %s", r, left)
		}
	}
	return nil
}
