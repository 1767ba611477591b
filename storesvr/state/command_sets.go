package state

import (
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// MovesVersion grows when a Set must know another command of moves to take part in
// one: 2 brought Preload.
const MovesVersion = 2

// ImportMax is the most records of one Import.
const ImportMax = 4096

// SweepMax is the most keys of one Sweep.
const SweepMax = 4096

// PutMap caches a newer map. An older one, or the same, changes nothing. The
// directory Set refuses it (RefusedDirectory): it has the original.
type PutMap struct{ Published sets.Published }

// The source's side of a part. Every command may come late, twice, or for a part
// that was never heard of here.
type (
	// Freeze stops everything in a range that this Set owns: whoever owns a section
	// then is in Waiting until it has vacated the range, or its session has ended.
	Freeze struct {
		Move  sets.MoveID
		Part  sets.Part
		Range sets.Range
		To    string
	}
	// Thaw lets the range be served here again. Without Forced it is the source's
	// own decision, and refused once the part is sealed (RefusedSealed); Forced is
	// the directory's verdict that the part was aborted. A part that was never
	// frozen here never will be.
	Thaw struct {
		Move   sets.MoveID
		Part   sets.Part
		Forced bool
	}
	// Seal gives up the right to thaw without the directory.
	Seal struct {
		Move sets.MoveID
		Part sets.Part
	}
	// Drop gives the range away. Published (or the map that is cached here) must
	// say that it is another Set's.
	Drop struct {
		Move      sets.MoveID
		Part      sets.Part
		Published sets.Published
	}
)

// The target's side of a part.
type (
	// Import takes records of a range that this Set does not own: of each key the
	// higher floor wins, with its ledger. The first one of a part opens it; it may
	// have no records.
	Import struct {
		Move    sets.MoveID
		Part    sets.Part
		Range   sets.Range
		From    string
		Records []KeyedRecord
	}
	// Preload takes records of a range of the move ahead of their part, while one is
	// under way. They are leftovers like any others until their part's import: nothing
	// rests on them, and this Set may not own any of the range.
	Preload struct {
		Move    sets.MoveID
		Range   sets.Range
		From    string
		Records []KeyedRecord
	}
	// Activate makes the range this Set's own. Published (or the map that is cached
	// here) must say that it is: no other proof of the commit is taken.
	Activate struct {
		Move      sets.MoveID
		Part      sets.Part
		Published sets.Published
	}
	// Discard ends a part that was aborted. One that was never opened here never will be.
	Discard struct {
		Move sets.MoveID
		Part sets.Part
	}
)

// EndMove forgets all moves up to Move: the directory says that they are over.
// (It is sets.Directory.EndedThrough, so not always the move that ended last.)
type EndMove struct{ Move sets.MoveID }

// Sweep forgets keys that are neither in own ranges nor in importing ones, and
// is refused whole (RefusedRange) if one is.
type Sweep struct{ Keys []ids.Key }

// The directory's commands are methods of sets.Directory; their refusals are
// RefusedDirectory, with the text in Reply.Detail.
type (
	CreateSet struct {
		Name   string
		Stores []string
	}
	UpdateSet struct {
		Name   string
		Stores []string
	}
	RetireSet struct{ Name string }
	StartMove struct {
		From, To string
		Ranges   []sets.Range
		NowMS    int64
	}
	OpenPart struct {
		Move  sets.MoveID
		Part  sets.Part
		Range sets.Range
	}
	CommitPart struct {
		Move     sets.MoveID
		Part     sets.Part
		Keys     uint64
		Checksum uint64
		FrozenUS uint32
	}
	AbortPart struct {
		Move   sets.MoveID
		Part   sets.Part
		Reason string
	}
	// EndPart opens the next part in the same step if Next is given, unless the move
	// does not go on there.
	EndPart struct {
		Move  sets.MoveID
		Part  sets.Part
		NowMS int64
		Next  sets.Range
	}
	AbortMove struct {
		Move   sets.MoveID
		Reason string
		NowMS  int64
	}
)

func (PutMap) command()     {}
func (Freeze) command()     {}
func (Thaw) command()       {}
func (Seal) command()       {}
func (Drop) command()       {}
func (Import) command()     {}
func (Preload) command()    {}
func (Activate) command()   {}
func (Discard) command()    {}
func (EndMove) command()    {}
func (Sweep) command()      {}
func (CreateSet) command()  {}
func (UpdateSet) command()  {}
func (RetireSet) command()  {}
func (StartMove) command()  {}
func (OpenPart) command()   {}
func (CommitPart) command() {}
func (AbortPart) command()  {}
func (EndPart) command()    {}
func (AbortMove) command()  {}
