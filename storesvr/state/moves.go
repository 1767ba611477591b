package state

import (
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// OutPhase is how far the source of a part is.
type OutPhase uint8

const (
	// OutFrozen: nothing of the range is acquired or raised here any more.
	OutFrozen OutPhase = 1
	// OutSealed: nothing but the directory's verdict changes that.
	OutSealed OutPhase = 2
	// OutThawed: served here as ever; the part is over for good.
	OutThawed OutPhase = 3
	// OutGone: another Set's now.
	OutGone OutPhase = 4
)

// InPhase is how far the target of a part is.
type InPhase uint8

const (
	// InImporting: records come in; nothing of the range is served here.
	InImporting InPhase = 1
	// InActive: the range became this Set's own (it may have moved on since).
	InActive InPhase = 2
	// InDiscarded: the part is over for good; what came in is garbage.
	InDiscarded InPhase = 3
)

// Outgoing is the newest part of a move that gives ranges away.
type Outgoing struct {
	Move sets.MoveID
	Part sets.Part
	// Range and To are zero of a part that was thawed before it was ever frozen.
	Range sets.Range
	To    string
	Phase OutPhase
	// Waiting are the sessions that owned a section at the freeze and have neither
	// vacated nor ended, ascending. It is empty in every phase but frozen, and the
	// part is not sealed before it is empty.
	Waiting []ids.SessionID
	// Vacated are the epochs that ended uncleanly after their session had vacated the
	// part: they are clean as far as the range goes. Ascending by section, then epoch.
	Vacated []OwnedSection
	// Frozen is the Raft index of the freeze.
	Frozen uint64
}

// Incoming is the newest part of a move that takes ranges in.
type Incoming struct {
	Move sets.MoveID
	Part sets.Part
	// Range and From are zero of a part that was discarded before it was ever opened.
	Range sets.Range
	From  string
	Phase InPhase
	// Keys counts the records that changed something, as data for operators.
	Keys uint64
}

// holds: the range is neither free here nor gone.
func (o *Outgoing) holds() bool { return o.Phase == OutFrozen || o.Phase == OutSealed }

// PartAtHand: a range is frozen here for a move, or comes in.
func (m *Meta) PartAtHand() bool {
	for _, o := range m.Out {
		if o.holds() {
			return true
		}
	}
	for _, in := range m.In {
		if in.Phase == InImporting {
			return true
		}
	}
	return false
}

// out finds the part that has frozen the key's range; nil if none has.
func (s *State) out(k ids.Key) *Outgoing {
	for _, o := range s.Meta.Out {
		if o.holds() && o.Range.Contains(k.Space, k.Position()) {
			return o
		}
	}
	return nil
}

// Owns: the key is in one of this Set's own ranges.
func (s *State) Owns(k ids.Key) bool { return sets.Has(s.Meta.Ranges, k.Space, k.Position()) }

// MaySpeak: this Set may say what the key's counter is. From the seal on it may
// not: the next owner may be at work before this Set hears of it.
func (s *State) MaySpeak(k ids.Key) bool {
	if !s.Owns(k) {
		return false
	}
	o := s.out(k)
	return o == nil || o.Phase != OutSealed
}

// admitKey is the fence of ranges: only the Set that owns a position, and is not
// giving it away, acquires, raises or advances a key there.
func (s *State) admitKey(k ids.Key) Refusal {
	switch {
	case s.Bugs.ExtendOutsideRanges:
		return OK
	case !s.Owns(k):
		return RefusedRange
	case s.out(k) != nil:
		return RefusedFrozen
	}
	return OK
}

func (p OutPhase) String() string {
	switch p {
	case OutFrozen:
		return "frozen"
	case OutSealed:
		return "sealed"
	case OutThawed:
		return "thawed"
	case OutGone:
		return "gone"
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}

func (p InPhase) String() string {
	switch p {
	case InImporting:
		return "importing"
	case InActive:
		return "active"
	case InDiscarded:
		return "discarded"
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}
