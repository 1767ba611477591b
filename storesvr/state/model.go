package state

import (
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// Record is what is durably known of a key. The zero Record is a key never touched.
type Record struct {
	// Floor: every number ≤ Floor was issued or is in the gap ledger. Floor ≤ Bound.
	Floor ids.Seq
	// Bound: no number above it was issued.
	Bound ids.Seq
	// Epoch is the section epoch in which the key was last acquired; 0 when it
	// was handed back or advanced (then Floor == Bound).
	Epoch ids.Epoch
	// HoleAtFloor: the newest hole of the ledger ends at Floor. Nothing was issued
	// after it, so nobody has been told of it: the next extend answers it.
	HoleAtFloor bool
	// Moved: the record came here with its range and nobody has acquired it since
	// (then Epoch is 0). An owner that still wants to hand the key back held it
	// before the range had left, and left with it what it had to say.
	Moved bool
}

// Cause says why a hole exists.
type Cause uint8

const (
	// CauseMachineLoss: an owner's lease ran out without a hand-back.
	CauseMachineLoss Cause = 1
	// CauseAdvance: an operator or an import raised the counter.
	CauseAdvance Cause = 2
	// CauseRestore: a backup was restored.
	CauseRestore Cause = 3
)

// Gap is a declared hole: numbers From..To (inclusive) may never have been issued. From ≤ To.
// Holes of one cause that touch are one Gap, so a key that is lost again and
// again without being used does not push older holes out of its ledger.
type Gap struct {
	From, To ids.Seq
	Cause    Cause
	// Epoch of the section when the hole was recorded.
	Epoch ids.Epoch
	// Merged: the bounded ledger joined several old holes; numbers between them were issued.
	Merged bool
}

// GapsMax bounds the ledger of one key; past it the two oldest holes are joined.
const GapsMax = 32

// Keys holds the per-key part of the state. An implementation may be backed by
// a disk; if it cannot read or write it must panic with its error, since an
// apply that guesses would fork the replicas. A slice of gaps is never changed
// after it was put, and whoever gets it must not change it.
type Keys interface {
	Get(ids.Key) (Record, bool)
	Put(ids.Key, Record)
	Gaps(ids.Key) []Gap
	PutGaps(ids.Key, []Gap)
	// Delete forgets the record and the ledger of a key.
	Delete(ids.Key)
}

// Found is what Finder answers of a key.
type Found struct {
	Record Record
	Known  bool
	// HasGaps: its ledger is not empty.
	HasGaps bool
}

// Finder is implemented by Keys that find many keys, in ascending order, sooner than
// one by one. It answers as many.
type Finder interface {
	Find([]ids.Key) []Found
}

// SectionState is the placement of one section.
type SectionState struct {
	// Owner is the session that may serve the section; 0 for none.
	Owner ids.SessionID
	// Epoch grows by one with each assignment; it stays when the owner goes.
	Epoch ids.Epoch
	// Unclean lists past epochs that ended without a complete hand-back and
	// whose keys are not settled yet, ascending. An epoch < Epoch (or == Epoch
	// with Owner == 0) that is not listed ended cleanly.
	Unclean []ids.Epoch
	// Changed is the Raft index of the last change of Owner or Epoch.
	Changed uint64
}

// SessionState is one registered AllocSvr.
type SessionState struct {
	ID          ids.SessionID
	Incarnation ids.Incarnation
	// Acted is the last incarnation of which a batch was applied; 0 for none. Acted ≤ Incarnation.
	Acted ids.Incarnation
	// LastBatch is the highest batch sequence applied.
	LastBatch ids.BatchSeq
	Node      string
	Addr      string
	RedisAddr string
	HTTPAddr  string
	Version   string
	// Leaving: the process has asked to stop; it gets no sections.
	Leaving bool
	// Changed is the Raft index of the last change that clients can see.
	Changed uint64
}

// StoreNode is one StoreSvr as its peers and AllocSvrs reach it.
type StoreNode struct {
	ID       string
	RaftAddr string
	RPCAddr  string
	HTTPAddr string
}

// Meta is all state that is not per key; it is small and kept whole in memory.
type Meta struct {
	Genesis  Genesis
	Sections []SectionState
	Sessions map[ids.SessionID]*SessionState
	// NextSession is the last SessionID given out.
	NextSession ids.SessionID
	Stores      map[string]StoreNode
	// Draining nodes (by AllocSvr node name) get no sections.
	Draining map[string]bool
	// RouteVersion is the Raft index of the last change that clients can see.
	RouteVersion uint64

	// Ranges are this Set's own, in normal form: nothing else decides what it
	// serves. No slice of ranges is changed in place.
	Ranges []sets.Range
	// Published is the newest map heard of, for routing; its version only grows.
	// In the directory Set it is the directory's.
	Published sets.Published
	// Directory is nil in every Set but one.
	Directory *sets.Directory
	// Out and In have, for each move that gives or takes a range, its newest part here.
	Out map[sets.MoveID]*Outgoing
	In  map[sets.MoveID]*Incoming
	// MovesEnded: all moves up to it are over. Nothing of them is in Out or In, or will be.
	MovesEnded sets.MoveID
}

// State is the whole state machine. It is not safe for concurrent use.
type State struct {
	Meta Meta
	Keys Keys
	// Bugs switches mechanisms off, for fault-injection tests only. It is not
	// part of the replicated state; the zero value is correct behaviour.
	Bugs Bugs
}

// New makes a state machine that is not founded yet: everything but Genesis is refused.
func New(k Keys) *State { return &State{Keys: k} }

func (c Cause) String() string {
	switch c {
	case CauseMachineLoss:
		return "machine loss"
	case CauseAdvance:
		return "advance"
	case CauseRestore:
		return "restore"
	}
	return fmt.Sprintf("cause(%d)", uint8(c))
}
