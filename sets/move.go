package sets

import (
	"fmt"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
)

type (
	// MoveID names a move of ranges from one Set to another; it grows by one. 0 means none.
	MoveID uint64
	// Part numbers the parts of a move, and each attempt at one: 1, 2, 3 … 0 means none.
	Part uint32
)

// MoveState is where a move as a whole stands.
type MoveState uint8

const (
	MoveRunning MoveState = 1
	// MoveAborting: no further part is opened; it ends when the part at hand has ended.
	MoveAborting MoveState = 2
	// MoveDone: everything has moved.
	MoveDone MoveState = 3
	// MoveAborted: what had moved by then stays moved.
	MoveAborted MoveState = 4
)

// PartState is what was decided of the part at hand.
type PartState uint8

const (
	// PartNone: no part is under way; the last one, if any, has ended on both sides.
	PartNone PartState = 0
	PartOpen PartState = 1
	// PartCommitted: the map has the range at its new owner. Nothing undoes that.
	PartCommitted PartState = 2
	// PartAborted: it will never be committed; the source may serve on.
	PartAborted PartState = 3
)

// Verdict is the directory's answer about one part.
type Verdict uint8

const (
	// VerdictOpen: nothing is decided, as far as the directory knows. Who asks waits.
	VerdictOpen      Verdict = 0
	VerdictCommitted Verdict = 1
	VerdictAborted   Verdict = 2
	// VerdictOver: it was decided, and has ended. What it was is not remembered, but
	// only a target that was given up may not have heard it, and never that it was committed.
	VerdictOver Verdict = 3
)

// Bounds of what may be under way.
const (
	// RunningMax is the most moves under way at once.
	RunningMax = 16
	// SpanMax is how far the newest move may be ahead of the oldest one under way:
	// what the Sets must remember of moves that have ended is bounded by it.
	SpanMax = 64
	// EndedMax is how many ended moves the directory remembers.
	EndedMax = 64
	// MoveRangesMax is the most ranges of one move.
	MoveRangesMax = 256
	// ReasonBytesMax is the longest reason kept; longer ones are cut.
	ReasonBytesMax = 512
)

// Bounds and defaults of a part, for whoever configures or checks them: more keys make
// a freeze longer, fewer make a move all overhead.
const (
	PartKeysMin     = 1
	PartKeysMax     = 1 << 17
	PartKeysDefault = 32 << 10
	// A part that is frozen for longer, and not sealed, thaws by itself.
	FreezeTimeoutMin     = 50 * time.Millisecond
	FreezeTimeoutDefault = 3 * time.Second
)

// Move takes ranges from one Set to another, part by part, in the order of the ranges.
type Move struct {
	ID       MoveID
	From, To string
	// Ranges are in normal form.
	Ranges []Range
	State  MoveState
	Reason string
	// At and Next say how far it is: everything before Ranges[At] at Next has
	// moved. At == len(Ranges) when all has; Next is 0 then.
	At   int
	Next ids.Position
	// Part is the last one opened. PartRange begins at Ranges[At] at Next while the
	// part is under way (PartState is not PartNone).
	Part      Part
	PartRange Range
	PartState PartState
	// Parts, Keys and Checksum (the sum of the parts' digests) are of what has moved.
	Parts    uint32
	Keys     uint64
	Checksum uint64
	// Frozen tells how long parts were frozen.
	Frozen Frozen
	// StartedMS and EndedMS are of the leaders' clocks, for people.
	StartedMS, EndedMS int64
}

// Over: nothing of the move is under way any more.
func (m *Move) Over() bool { return m.State == MoveDone || m.State == MoveAborted }

// Left are the ranges that have not moved yet.
func (m *Move) Left() []Range {
	if m.At >= len(m.Ranges) {
		return nil
	}
	left := append([]Range{}, m.Ranges[m.At:]...)
	left[0].Lo = m.Next
	return left
}

// Moved are the ranges that have moved, in normal form.
func (m *Move) Moved() []Range {
	moved := append([]Range{}, m.Ranges[:m.At]...)
	if m.At < len(m.Ranges) && m.Next > m.Ranges[m.At].Lo {
		r := m.Ranges[m.At]
		r.Last = m.Next - 1
		moved = append(moved, r)
	}
	return moved
}

// advance steps over a part that has moved.
func (m *Move) advance(r Range) {
	if r.Last < m.Ranges[m.At].Last {
		m.Next = r.Last + 1
		return
	}
	m.At++
	m.Next = 0
	if m.At < len(m.Ranges) {
		m.Next = m.Ranges[m.At].Lo
	}
}

func (s MoveState) String() string {
	switch s {
	case MoveRunning:
		return "running"
	case MoveAborting:
		return "aborting"
	case MoveDone:
		return "done"
	case MoveAborted:
		return "aborted"
	}
	return fmt.Sprintf("move state(%d)", uint8(s))
}

func (s PartState) String() string {
	switch s {
	case PartNone:
		return "ended"
	case PartOpen:
		return "open"
	case PartCommitted:
		return "committed"
	case PartAborted:
		return "aborted"
	}
	return fmt.Sprintf("part state(%d)", uint8(s))
}

func (v Verdict) String() string {
	switch v {
	case VerdictOpen:
		return "open"
	case VerdictCommitted:
		return "committed"
	case VerdictAborted:
		return "aborted"
	case VerdictOver:
		return "over"
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}
