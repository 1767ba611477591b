package state

import (
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Clean: the epoch is over and nothing that it handed out is at risk, so a
// record of it stands at its floor. An epoch that is still owned is neither
// clean nor unclean.
func (s *State) Clean(sec ids.Section, e ids.Epoch) bool {
	if int(sec) >= len(s.Meta.Sections) {
		return false
	}
	st := &s.Meta.Sections[sec]
	over := e < st.Epoch || e == st.Epoch && st.Owner == 0
	return over && !slices.Contains(st.Unclean, e)
}

// held: the epoch is the section's present one and has an owner.
func (s *State) held(sec ids.Section, e ids.Epoch) bool {
	st := &s.Meta.Sections[sec]
	return st.Owner != 0 && st.Epoch == e
}

// AtWork: an owner at work has the key, by its record.
func (s *State) AtWork(k ids.Key, rec Record) bool {
	return rec.Epoch != 0 && s.held(k.Section(s.Meta.Genesis.Sections), rec.Epoch)
}

func (s *State) assign(index uint64, as []Assignment) []Assignment {
	var applied []Assignment
	for _, a := range as {
		if int(a.Section) >= len(s.Meta.Sections) || s.Meta.Sections[a.Section].Owner != 0 || !s.Eligible(a.To) {
			continue
		}
		s.give(index, a.Section, a.To)
		applied = append(applied, a)
	}
	return applied
}

// give starts a new epoch of an unowned section.
func (s *State) give(index uint64, sec ids.Section, to ids.SessionID) {
	st := &s.Meta.Sections[sec]
	st.Owner = to
	if !s.Bugs.ReuseEpoch || st.Epoch == 0 {
		st.Epoch++
	}
	s.sectionChanged(index, st)
}

// release ends the present epoch cleanly: what its owner did not hand back was
// issued up to its floor and no further.
func (s *State) release(index uint64, sec ids.Section, next ids.SessionID) {
	st := &s.Meta.Sections[sec]
	st.Owner = 0
	s.sectionChanged(index, st)
	if s.Eligible(next) {
		s.give(index, sec, next)
	}
}

// lose ends the present epoch without a hand-back.
func (s *State) lose(index uint64, sec ids.Section) {
	st := &s.Meta.Sections[sec]
	st.Owner = 0
	if !slices.Contains(st.Unclean, st.Epoch) {
		// Built anew: a snapshot may share the old one.
		st.Unclean = append(slices.Clone(st.Unclean), st.Epoch)
	}
	s.sectionChanged(index, st)
}

func (s *State) sectionChanged(index uint64, st *SectionState) {
	st.Changed = index
	s.Meta.RouteVersion = index
}

func (s *State) settle(c Settle) Refusal {
	if int(c.Section) >= len(s.Meta.Sections) {
		return RefusedInvalid
	}
	st := &s.Meta.Sections[c.Section]
	if s.held(c.Section, c.Epoch) {
		return RefusedHeld
	}
	at := slices.Index(st.Unclean, c.Epoch)
	if at < 0 {
		return RefusedEpoch
	}
	for _, k := range c.Keys {
		// What is left of a range that went away says nothing any more, and must not
		// seem newer than what its owner knows.
		if k.Section(s.Meta.Genesis.Sections) != c.Section || !s.Owns(k) && !s.Bugs.SettleLeftovers {
			continue
		}
		if rec, ok := s.Keys.Get(k); ok && rec.Epoch == c.Epoch && rec.Floor < rec.Bound && !s.vacated(c.Section, c.Epoch, k) {
			s.Keys.Put(k, s.declareLost(c.Section, k, rec))
		}
	}
	if c.Done {
		st.Unclean = slices.Concat(st.Unclean[:at], st.Unclean[at+1:])
	}
	return OK
}
