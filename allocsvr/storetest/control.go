package storetest

import (
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// SessionOf is the newest session of a node; 0 for none.
func (s *Store) SessionOf(node string) ids.SessionID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessionOf(node)
}

func (s *Store) sessionOf(node string) (id ids.SessionID) {
	for i, ses := range s.state.Meta.Sessions {
		if ses.Node == node {
			id = max(id, i)
		}
	}
	return id
}

// Assign gives unowned sections to a node; all of them if none are named.
func (s *Store) Assign(node string, secs ...ids.Section) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := s.sessionOf(node)
	if len(secs) == 0 {
		for i := range s.state.Meta.Sections {
			secs = append(secs, ids.Section(i))
		}
	}
	var as []state.Assignment
	for _, sec := range secs {
		as = append(as, state.Assignment{Section: sec, To: to})
	}
	s.apply(state.Assign{Assignments: as})
	s.changed()
}

// Move asks the owners of sections to hand them back, for node ("": nobody).
func (s *Store) Move(node string, secs ...ids.Section) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := ids.SessionID(0)
	if node != "" {
		to = s.sessionOf(node)
	}
	for _, sec := range secs {
		s.revoking[sec] = to
	}
	s.changed()
}

// Keep takes a Move back, as a leader must not.
func (s *Store) Keep(secs ...ids.Section) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sec := range secs {
		delete(s.revoking, sec)
	}
	s.changed()
}

// Owner of a section by node name ("" for none), and its epoch.
func (s *Store) Owner(sec ids.Section) (node string, e ids.Epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.state.Meta.Sections[sec]
	if ses := s.state.Meta.Sessions[st.Owner]; ses != nil {
		node = ses.Node
	}
	return node, st.Epoch
}

// Record is what is durably known of a key.
func (s *Store) Record(k ids.Key) state.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, _ := s.state.Keys.Get(k)
	return r
}

// Gaps of a key.
func (s *Store) Gaps(k ids.Key) []state.Gap {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Keys.Gaps(k)
}

// Apply puts any command into the log.
func (s *Store) Apply(c state.Command) state.Reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	rep := s.apply(c)
	s.changed()
	return rep
}

// Check verifies the state machine's invariants.
func (s *Store) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return state.Check(s.state)
}

// Executed are the batches applied or refused so far.
func (s *Store) Executed() []state.Batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]state.Batch(nil), s.executed...)
}

// Expire ends a node's session as if its lease had run out, without telling it.
func (s *Store) Expire(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.sessionOf(node)
	st := s.streams[id]
	s.expire(id)
	delete(s.streams, id)
	s.changed()
	if st != nil {
		st.push(&seqpb.SessionDown{Refusal: &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_SESSION_EXPIRED, Message: "lease ran out"}})
	}
}

// Refuse makes the store refuse every Hello as of another cluster; "" undoes it.
func (s *Store) Refuse(text string) { s.mu.Lock(); s.refused = text; s.mu.Unlock() }

// SetReady makes the store answer NOT_READY to everything, or undoes it.
func (s *Store) SetReady(ready bool) { s.mu.Lock(); s.unready = !ready; s.mu.Unlock() }

// Put replaces what the store has of a key, as no command could.
func (s *Store) Put(k ids.Key, r state.Record) { s.mu.Lock(); s.state.Keys.Put(k, r); s.mu.Unlock() }
