package state

import (
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// Refusal says why a command, a batch or an op had no effect.
type Refusal uint8

const (
	OK Refusal = iota
	// RefusedNotFounded: no Genesis yet. RefusedFounded: a second Genesis.
	RefusedNotFounded
	RefusedFounded
	// RefusedSession: the session is unknown or has ended.
	RefusedSession
	// RefusedIncarnation: not the session's present incarnation.
	RefusedIncarnation
	// RefusedOldBatch: the batch sequence was applied already, or a later one was.
	RefusedOldBatch
	// RefusedNotOwner: another session (or none) owns the section.
	RefusedNotOwner
	// RefusedEpoch: the section is at another epoch.
	RefusedEpoch
	// RefusedCur: Cur is outside what the record allows; the sender's memory cannot be trusted.
	RefusedCur
	// RefusedExhausted: the key has no numbers left below MaxSeq.
	RefusedExhausted
	// RefusedHeld: the key or section is held by an owner, which must hand it back first.
	RefusedHeld
	// RefusedLower: the command would lower a counter.
	RefusedLower
	// RefusedInvalid: a field is out of its range.
	RefusedInvalid
	// RefusedRange: the position is not (yet, or any more) of this Set's own
	// ranges; of a move's command: its range is not what the command needs.
	RefusedRange
	// RefusedFrozen: the key's range is frozen or sealed, on its way to another Set.
	RefusedFrozen
	// RefusedSealed: the part is sealed; only the directory's verdict releases it.
	RefusedSealed
	// RefusedThawed: the part has thawed and never goes on.
	RefusedThawed
	// RefusedWaiting: sessions have not vacated the part yet.
	RefusedWaiting
	// RefusedOldPart: not the part of the move that is at hand here.
	RefusedOldPart
	// RefusedDirectory: the directory refuses; Reply.Detail says why.
	RefusedDirectory
)

// Reply is what Apply answers.
type Reply struct {
	Refusal Refusal
	// Session is the session's state after Register, Resume, and as it is when a
	// Resume is refused with RefusedIncarnation.
	Session SessionState
	// Owned lists the sections of a resumed session.
	Owned []OwnedSection
	// Applied lists the assignments that took effect.
	Applied []Assignment
	// Results has one entry per op of a batch, and one for an Advance.
	Results []OpResult
	// Move is what a StartMove started.
	Move sets.MoveID
	// Detail is the directory's refusal in words.
	Detail string
}

// OwnedSection is a section with the epoch in which it is owned.
type OwnedSection struct {
	Section ids.Section
	Epoch   ids.Epoch
}

// OpResult answers one op.
type OpResult struct {
	Refusal Refusal
	// Floor and Bound of the key after an extend; after a return both are Cur, or
	// the end of a hole that follows Cur and that the owner had not heard of.
	Floor, Bound ids.Seq
	// Hole that ends at Floor and that no reply to a client can have declared
	// yet, since nothing was issued after it; HoleTo is 0 when there is none.
	// Repeating the extend answers it again until Cur has passed it. It spans
	// holes of several causes when they touch.
	HoleFrom, HoleTo ids.Seq
	HoleCause        Cause
	// SectionEpoch is the section's present epoch, also in a refusal, for a
	// sender that lost a reply. After a release to nobody it is still the
	// sender's, and the refusal is RefusedNotOwner.
	SectionEpoch ids.Epoch
}

var refusalNames = [...]string{
	OK:                 "ok",
	RefusedNotFounded:  "cluster not founded yet",
	RefusedFounded:     "cluster already founded",
	RefusedSession:     "session unknown or ended",
	RefusedIncarnation: "not the session's present incarnation",
	RefusedOldBatch:    "batch sequence already applied",
	RefusedNotOwner:    "section not owned by the session",
	RefusedEpoch:       "not the section's present epoch",
	RefusedCur:         "number outside what the record allows",
	RefusedExhausted:   "no numbers left",
	RefusedHeld:        "held by an owner",
	RefusedLower:       "would lower a counter",
	RefusedInvalid:     "field out of range",
	RefusedRange:       "range not of this set",
	RefusedFrozen:      "range frozen",
	RefusedSealed:      "part sealed",
	RefusedThawed:      "part thawed",
	RefusedWaiting:     "part not vacated yet",
	RefusedOldPart:     "not the part at hand",
	RefusedDirectory:   "refused by the directory",
}

func (r Refusal) String() string {
	if int(r) < len(refusalNames) {
		return refusalNames[r]
	}
	return fmt.Sprintf("refusal(%d)", uint8(r))
}
