package sets

// The life of a part in the directory:
//
//	ended --OpenPart--> open --CommitPart--> committed --EndPart--> ended
//	                     \---AbortPart-----> aborted ----EndPart--> ended
//
// Committed and aborted exclude each other for ever: that is all that the two
// Sets rely on. EndPart is only for when both have acknowledged the verdict, so
// at most one part of a move is under way anywhere.

// OpenPart begins the next part: r begins where the last one that moved ended.
// p is one above the last one opened.
func (d *Directory) OpenPart(id MoveID, p Part, r Range) error {
	m, err := d.underWay(id)
	if err != nil {
		return err
	}
	switch {
	case m.PartState == PartOpen && m.Part == p && m.PartRange == r:
		return nil
	case m.State != MoveRunning:
		return &MoveOverError{Move: id, State: m.State}
	case m.PartState != PartNone:
		return m.refuse(p, "it cannot be opened before the part at hand has ended")
	case p != m.Part+1:
		return m.refuse(p, "parts are opened in order")
	}
	want := m.Left()[0]
	if r.Space != want.Space || r.Lo != want.Lo || r.Lo > r.Last || r.Last > want.Last {
		return &PartRangeError{Move: id, Range: r, Want: want}
	}
	m.Part, m.PartRange, m.PartState = p, r, PartOpen
	d.put(m)
	return nil
}

// CommitPart changes the map. It is the only point of no return, and the caller
// must have the seal of the source and both checksums equal.
func (d *Directory) CommitPart(id MoveID, p Part, keys, checksum uint64, frozenUS uint32) error {
	m, err := d.atHand(id, p)
	if err != nil {
		return err
	}
	switch m.PartState {
	case PartCommitted:
		return nil
	case PartOpen:
	default:
		return m.refuse(p, "it cannot be committed")
	}
	next, err := d.Map.Give(m.PartRange, m.From, m.To)
	if err != nil {
		return err
	}
	m.PartState = PartCommitted
	m.Parts++
	m.Keys += keys
	m.Checksum += checksum
	m.Frozen.note(frozenUS)
	d.Map = next
	d.put(m)
	return nil
}

// AbortPart decides that the part will never be committed.
func (d *Directory) AbortPart(id MoveID, p Part, reason string) error {
	m, err := d.atHand(id, p)
	if err != nil {
		return err
	}
	switch m.PartState {
	case PartAborted:
		return nil
	case PartOpen:
	default:
		return m.refuse(p, "it cannot be aborted")
	}
	m.PartState = PartAborted
	m.Reason = cut(reason)
	d.put(m)
	return nil
}

// EndPart closes a part that was decided; both Sets have acknowledged the
// verdict. With the last one the move ends.
func (d *Directory) EndPart(id MoveID, p Part, nowMS int64) error {
	if m, ok := d.Move(id); ok && m.Part == p && m.PartState == PartNone && p != 0 {
		return nil
	}
	m, err := d.atHand(id, p)
	if err != nil {
		return err
	}
	switch m.PartState {
	case PartCommitted:
		m.advance(m.PartRange)
		if m.State == MoveRunning {
			m.Reason = ""
		}
	case PartAborted:
	default:
		return m.refuse(p, "nothing was decided of it")
	}
	m.PartState = PartNone
	switch {
	case m.At == len(m.Ranges):
		m.State, m.EndedMS = MoveDone, nowMS
	case m.State == MoveAborting:
		m.State, m.EndedMS = MoveAborted, nowMS
	}
	d.put(m)
	return nil
}

// AbortMove ends a move early: what has moved stays moved, and so does a part
// that is committed; an open one is aborted.
func (d *Directory) AbortMove(id MoveID, reason string, nowMS int64) error {
	m, err := d.underWay(id)
	if err != nil {
		return err
	}
	if m.State == MoveAborting {
		return nil
	}
	m.State, m.Reason = MoveAborting, cut(reason)
	switch m.PartState {
	case PartOpen:
		m.PartState = PartAborted
	case PartNone:
		m.State, m.EndedMS = MoveAborted, nowMS
	}
	d.put(m)
	return nil
}

// Verdict is what was decided of a part. Of one that has ended it is known whether it was
// aborted until the next one is opened, or the move is forgotten: a target that was given
// up may come back later than that.
func (d *Directory) Verdict(id MoveID, p Part) Verdict {
	m, listed := d.Move(id)
	switch {
	case id == 0 || p == 0 || id > d.LastMove:
		return VerdictOpen
	case !listed || p < m.Part:
		return VerdictOver
	case p > m.Part:
		return VerdictOpen
	}
	switch m.PartState {
	case PartOpen:
		return VerdictOpen
	case PartCommitted:
		return VerdictCommitted
	case PartNone:
		if m.At == len(m.Ranges) || m.Ranges[m.At].Space != m.PartRange.Space || m.Next != m.PartRange.Lo {
			return VerdictOver // it has moved
		}
	}
	return VerdictAborted
}

func (d *Directory) underWay(id MoveID) (Move, error) {
	m, ok := d.Move(id)
	if !ok {
		return Move{}, &NoSuchMoveError{Move: id}
	}
	if m.Over() {
		return Move{}, &MoveOverError{Move: id, State: m.State}
	}
	return m, nil
}

func (d *Directory) atHand(id MoveID, p Part) (Move, error) {
	m, err := d.underWay(id)
	if err != nil {
		return Move{}, err
	}
	if m.Part != p || m.PartState == PartNone {
		return Move{}, m.refuse(p, "it is not the part at hand")
	}
	return m, nil
}

func (m *Move) refuse(p Part, want string) error {
	return &PartError{Move: m.ID, Part: p, At: m.Part, State: m.PartState, Want: want}
}

func cut(reason string) string {
	if len(reason) > ReasonBytesMax {
		return reason[:ReasonBytesMax]
	}
	return reason
}
