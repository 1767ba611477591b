package state

import "github.com/seqsvr/seqsvr/internal/ids"

// session admits a command that speaks of one incarnation of a session.
func (s *State) session(id ids.SessionID, incarnation ids.Incarnation) (*SessionState, Refusal) {
	ses, ok := s.Meta.Sessions[id]
	if !ok {
		return nil, RefusedSession
	}
	if ses.Incarnation != incarnation {
		return ses, RefusedIncarnation
	}
	return ses, OK
}

// admitBatch lets in a batch of the present incarnation that is newer than any
// applied before, and makes every copy and predecessor of it old. Without it, a
// delayed hand-back would lower a bound below numbers issued since.
func (s *State) admitBatch(b *Batch) Refusal {
	ses, refusal := s.session(b.Session, b.Incarnation)
	if refusal == RefusedSession || refusal == RefusedIncarnation && !s.Bugs.SkipIncarnationFence {
		return refusal
	}
	if b.Seq <= ses.LastBatch && !s.Bugs.SkipBatchFence {
		return RefusedOldBatch
	}
	ses.LastBatch = max(ses.LastBatch, b.Seq)
	ses.Acted = ses.Incarnation
	return OK
}

// admitOp lets in an op on a section by its owner in its present epoch.
func (s *State) admitOp(session ids.SessionID, sec ids.Section, epoch ids.Epoch) Refusal {
	st := &s.Meta.Sections[sec]
	switch {
	case s.Bugs.SkipEpochFence:
		return OK
	case st.Owner != session:
		return RefusedNotOwner
	case st.Epoch != epoch:
		return RefusedEpoch
	}
	return OK
}
