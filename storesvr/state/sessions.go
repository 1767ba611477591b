package state

import (
	"math"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// register makes a new session. It takes nothing over from older sessions of
// the same node: a process without its arena knows nothing of what they issued.
func (s *State) register(index uint64, c Register) Reply {
	if !validText(c.Node) || !validText(c.Addr) {
		return Reply{Refusal: RefusedInvalid}
	}
	s.Meta.NextSession++
	ses := &SessionState{
		ID:          s.Meta.NextSession,
		Incarnation: 1,
		Node:        c.Node,
		Addr:        c.Addr,
		RedisAddr:   c.RedisAddr,
		HTTPAddr:    c.HTTPAddr,
		Version:     c.Version,
		Changed:     index,
	}
	s.Meta.Sessions[ses.ID] = ses
	s.Meta.RouteVersion = index
	return Reply{Session: *ses}
}

// resume starts the next incarnation, and so kills every batch of those before
// that is still on its way. A From that was outgrown only by resumptions which
// did nothing is one whose reply got lost: refusing it would cost the process
// all its sections because a leader died at the wrong moment.
func (s *State) resume(index uint64, c Resume) Reply {
	if !validText(c.Addr) {
		return Reply{Refusal: RefusedInvalid}
	}
	ses, ok := s.Meta.Sessions[c.Session]
	if !ok {
		return Reply{Refusal: RefusedSession}
	}
	if c.From == 0 || c.From < ses.Acted || c.From > ses.Incarnation || ses.Incarnation == math.MaxUint32 {
		return Reply{Refusal: RefusedIncarnation, Session: *ses}
	}
	ses.Incarnation++
	ses.Addr, ses.RedisAddr, ses.HTTPAddr, ses.Version = c.Addr, c.RedisAddr, c.HTTPAddr, c.Version
	ses.Leaving = false
	ses.Changed = index
	s.Meta.RouteVersion = index
	return Reply{Session: *ses, Owned: s.Owned(ses.ID)}
}

func (s *State) expire(index uint64, c Expire) Refusal {
	if _, refusal := s.session(c.Session, c.Incarnation); refusal != OK {
		return refusal
	}
	s.endWaiting(c.Session)
	for i := range s.Meta.Sections {
		if s.Meta.Sections[i].Owner == c.Session {
			s.lose(index, ids.Section(i))
		}
	}
	delete(s.Meta.Sessions, c.Session)
	s.Meta.RouteVersion = index
	return OK
}

func (s *State) leave(index uint64, c Leave) Refusal {
	ses, refusal := s.session(c.Session, c.Incarnation)
	if refusal != OK {
		return refusal
	}
	if !c.Done {
		ses.Leaving = true
		return OK
	}
	for i := range s.Meta.Sections {
		if s.Meta.Sections[i].Owner == c.Session {
			return RefusedHeld
		}
	}
	s.endWaiting(c.Session)
	delete(s.Meta.Sessions, c.Session)
	s.Meta.RouteVersion = index
	return OK
}

// Owned lists what a session owns, in order of the sections.
func (s *State) Owned(id ids.SessionID) []OwnedSection {
	var owned []OwnedSection
	for i := range s.Meta.Sections {
		if st := &s.Meta.Sections[i]; id != 0 && st.Owner == id {
			owned = append(owned, OwnedSection{Section: ids.Section(i), Epoch: st.Epoch})
		}
	}
	return owned
}

// Eligible: the session is alive and may get sections.
func (s *State) Eligible(id ids.SessionID) bool {
	ses, ok := s.Meta.Sessions[id]
	return ok && !ses.Leaving && !s.Meta.Draining[ses.Node]
}
