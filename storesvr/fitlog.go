package storesvr

import (
	"errors"

	"github.com/hashicorp/raft"
)

// tail is what becomes of entries that follow another entry than the snapshot's.
type tail int

const (
	// dropTail is for before Raft runs.
	dropTail tail = iota
	// keepTail is for while Raft runs: it has the last entry's index and term in
	// memory, counts on finding what is before it, and drops the tail itself as
	// soon as the leader sends the first entry that differs.
	keepTail
)

// fit makes the log one that leads to, or follows, a snapshot that was installed.
// Raft's own way is to delete or keep entries without looking at them.
func (g *logGuard) fit(snap *raft.SnapshotMeta) error {
	g.deleting.Lock()
	defer g.deleting.Unlock()
	return g.change(func() error { return fitLog(g.LogStore, snap, keepTail) })
}

// fitLog leaves a log that has the snapshot's entry, S of term T, with that term:
//
//   - If it is there, everything stays (§7 of the Raft paper): what follows may
//     have been committed on this node's word.
//   - If the log ends before, everything goes. Among it may be entries that were
//     never committed, and as a leader this node would send them on.
//   - If the entry at S is missing, what follows was stored after a snapshot and stays.
//   - If it is of another term, it and what follows were never committed: a tail left
//     by a leader that was cut off.
//
// Where the entry was not there a stand-in takes its place. Nobody ever gets it: a
// leader sends what follows an entry that it has, and the stand-in is the first.
//
// A tail that Raft is to drop (keepTail) still counts as this node's end in
// elections, (L, U). That decides none. Let c be the term in which S was committed.
// A leader of c or later has S of term T, and so would this log if it came from
// one; hence U < c. The majority that committed S did so without this node, which
// had another entry there; each of them ends in term c or later ever since. So this
// node cannot be elected with that end, those who can be are ahead of it and get
// its vote, and whoever lacks S is refused by that majority, whatever this node votes.
//
// A crash between two steps leaves what the next start makes right: the snapshot is
// there, and either S still has another term, or all steps were done.
func fitLog(log raft.LogStore, snap *raft.SnapshotMeta, t tail) error {
	first, err := log.FirstIndex()
	if err != nil {
		return err
	}
	last, err := log.LastIndex()
	if err != nil {
		return err
	}
	keepFrom := snap.Index // entries before it go, and all if it is beyond the end
	switch {
	case last == 0 || first == snap.Index+1:
		return log.StoreLog(standIn(snap))
	case first > snap.Index:
		return nil
	case last >= snap.Index:
		var l raft.Log
		switch err := log.GetLog(snap.Index, &l); {
		case errors.Is(err, raft.ErrLogNotFound):
		case err != nil:
			return err
		case l.Term == snap.Term:
			return nil
		case t == dropTail:
			keepFrom = last + 1
		}
	}
	if to := min(last, keepFrom-1); first <= to {
		if err := log.DeleteRange(first, to); err != nil {
			return err
		}
	}
	return log.StoreLog(standIn(snap))
}

// standIn stands for the last entry that a snapshot has. If that was a change of the
// members it is the entry itself: an entry 1 always is, and is the one that has none before it.
func standIn(snap *raft.SnapshotMeta) *raft.Log {
	l := &raft.Log{Index: snap.Index, Term: snap.Term, Type: raft.LogNoop}
	if snap.ConfigurationIndex == snap.Index {
		l.Type, l.Data = raft.LogConfiguration, raft.EncodeConfiguration(snap.Configuration)
	}
	return l
}
