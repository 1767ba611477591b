package state

import (
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// Command is one entry of the Raft log.
type Command interface{ command() }

// Genesis founds the Set; it is the first command and refused later.
type Genesis struct {
	Cluster   string
	ClusterID string
	Set       string
	Sections  uint32
	Spaces    []ids.Space
	// Directory: this Set has the directory of the cluster, and so founds it.
	Directory bool
	// Ranges that the Set owns from the start, in normal form: everything in the
	// directory Set (see OwningAll), nothing in any other, or two Sets would own it.
	Ranges []sets.Range
}

// OwningAll is the genesis of a cluster: that of its directory Set, which owns
// everything until some of it is moved.
func (g Genesis) OwningAll() Genesis {
	g.Directory = true
	g.Ranges = sets.WholeSpaces(g.Spaces)
	return g
}

// PutStore records how a StoreSvr is reached; DropStore forgets it.
type (
	PutStore  struct{ Node StoreNode }
	DropStore struct{ ID string }
)

// Register makes a new session with incarnation 1.
type Register struct {
	Node, Addr, RedisAddr, HTTPAddr, Version string
}

// Resume continues a session after its process died, or lost its stream, as the
// next incarnation. Every batch of an older one is refused from then on. Refused
// when the session is unknown or expired, and when a batch of an incarnation
// after From was applied: then the sender's arena is stale. (That none was means
// that the replies to earlier resumptions got lost.)
type Resume struct {
	Session                            ids.SessionID
	From                               ids.Incarnation
	Addr, RedisAddr, HTTPAddr, Version string
}

// Expire is the leader's verdict that the lease of this incarnation ran out.
// The session ends; the present epochs of its sections become unclean.
// Refused if the session has resumed since (another incarnation).
type Expire struct {
	Session     ids.SessionID
	Incarnation ids.Incarnation
}

// Leave marks a session as leaving (Done false), or ends one that owns nothing
// (Done true; refused while it owns a section). A leaving session that resumes
// is not leaving any more: the process that asked is dead.
type Leave struct {
	Session     ids.SessionID
	Incarnation ids.Incarnation
	Done        bool
}

// Assignment gives a section to a session.
type Assignment struct {
	Section ids.Section
	To      ids.SessionID
}

// Assign gives unowned sections to sessions, each with Epoch+1. An assignment
// of an owned section, or to a session that is unknown, leaving or on a
// draining node, is skipped; the reply lists which took effect.
type Assign struct{ Assignments []Assignment }

// SetDraining makes a node give all its sections away, or undoes it.
type SetDraining struct {
	Node     string
	Draining bool
}

// Settle ends the risk of an unclean epoch: each listed key whose record is
// still of that epoch gets its hole declared (Floor = Bound). Done removes the
// epoch from the unclean list; the sender must have scanned the whole section
// in a state that has the epoch unclean (a record never joins a past epoch, so
// any such scan is complete). Refused with RefusedHeld while the epoch is
// owned, with RefusedEpoch when it is not unclean (any more).
type Settle struct {
	Section ids.Section
	Epoch   ids.Epoch
	Keys    []ids.Key
	Done    bool
}

// Advance raises the counter of a key that no owner holds; it never lowers one.
// The jump is declared in the ledger, and so is what an unclean epoch may have
// lost before it. The reply has one result, with the key's Floor and Bound.
type Advance struct {
	Key ids.Key
	To  ids.Seq
}

// Batch is an AllocSvr's group of operations under one fence.
type Batch struct {
	Session     ids.SessionID
	Incarnation ids.Incarnation
	// Seq grows with each batch of a session, also across incarnations. A batch
	// not above the last applied one is ignored (it is a delayed copy).
	Seq ids.BatchSeq
	Ops []Op
}

// OpKind selects what an Op does.
type OpKind uint8

const (
	// OpExtend acquires a key or raises its bound; the one way to get numbers.
	OpExtend OpKind = 1
	// OpReturn hands one key back: Floor = Bound = Cur, Epoch = 0.
	OpReturn OpKind = 2
	// OpRelease is the last step of handing a section back: it marks the epoch
	// clean and frees the section, or assigns it to Next. The keys themselves
	// went before it as OpReturn ops, in the same batch or earlier ones. It is
	// refused with RefusedCur when a return of the section was so refused in the
	// same batch: a hand-back that cannot be trusted must not end cleanly.
	OpRelease OpKind = 3
	// OpVacate says that the session has closed a frozen part and handed back every
	// key of it that it knew of, in whichever sections; those went before it as
	// OpReturn ops, in the same batch or earlier ones. It is of the whole session:
	// Epoch is 0. Refused with RefusedOldPart unless that very part is frozen (or
	// sealed), and with RefusedCur as OpRelease is.
	OpVacate OpKind = 4
)

// Op is one operation of a batch. Fields that a kind does not use are not
// encoded and must be zero.
type Op struct {
	Kind  OpKind
	Epoch ids.Epoch
	// Key of an extend or return.
	Key ids.Key
	// Cur is the last number that the owner issued (0: it has none in memory).
	Cur ids.Seq
	// Step of an extend: how many numbers beyond the new floor are wanted, in [1, MaxSeq].
	Step ids.Seq
	// Section of a release.
	Section ids.Section
	// Next owner of a released section, filled in by the leader; 0 for none. One
	// that may not get sections (see Assign) counts as none.
	Next ids.SessionID
	// Move and Part that are vacated.
	Move sets.MoveID
	Part sets.Part
}

func (Genesis) command()     {}
func (PutStore) command()    {}
func (DropStore) command()   {}
func (Register) command()    {}
func (Resume) command()      {}
func (Expire) command()      {}
func (Leave) command()       {}
func (Assign) command()      {}
func (SetDraining) command() {}
func (Settle) command()      {}
func (Advance) command()     {}
func (Batch) command()       {}
