package state

import "github.com/seqsvr/seqsvr/internal/ids"

// Command is one entry of the Raft log.
type Command interface{ command() }

// Genesis founds the cluster; it is the first command and refused later.
type Genesis struct {
	Cluster   string
	ClusterID string
	Set       string
	Sections  uint32
	Spaces    []ids.Space
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

// Resume continues a session after its process died: incarnation From → From+1.
// Every batch of the old incarnation is refused from then on. Refused when the
// session is unknown, expired, or no longer at incarnation From.
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

// Leave marks a session as leaving (Done false), or ends one that owns nothing (Done true).
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
// of an owned section, or to an unknown session, is skipped; the reply lists
// which took effect.
type Assign struct{ Assignments []Assignment }

// SetDraining makes a node give all its sections away, or undoes it.
type SetDraining struct {
	Node     string
	Draining bool
}

// Settle ends the risk of an unclean epoch: each listed key whose record is
// still of that epoch gets its hole declared (Floor = Bound). Done, sent after
// a complete scan of the section, removes the epoch from the unclean list.
type Settle struct {
	Section ids.Section
	Epoch   ids.Epoch
	Keys    []ids.Key
	Done    bool
}

// Advance raises the counter of a key that no owner holds; it never lowers one.
// The jump is declared in the ledger.
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
	// went before it as OpReturn ops, in the same batch or earlier ones.
	OpRelease OpKind = 3
)

// Op is one operation of a batch.
type Op struct {
	Kind  OpKind
	Epoch ids.Epoch
	// Key of an extend or return.
	Key ids.Key
	// Cur is the last number that the owner issued (0: it has none in memory).
	Cur ids.Seq
	// Step of an extend: how many numbers beyond the new floor are wanted, ≥ 1.
	Step ids.Seq
	// Section of a release.
	Section ids.Section
	// Next owner of a released section, filled in by the leader; 0 for none.
	Next ids.SessionID
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
