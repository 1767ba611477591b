package state

import (
	"cmp"
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// outAt finds the part in Out that a command is about. Refused when the move is
// over, a later part has been here, or an earlier one has not ended; o is nil
// when the part is new.
func (s *State) outAt(move sets.MoveID, p sets.Part) (o *Outgoing, refusal Refusal) {
	if move == 0 || p == 0 {
		return nil, RefusedInvalid
	}
	o = s.Meta.Out[move]
	switch {
	case move <= s.Meta.MovesEnded || o != nil && o.Part > p:
		return nil, RefusedOldPart
	case o != nil && o.Part < p:
		if o.holds() {
			return nil, RefusedOldPart
		}
		return nil, OK
	}
	return o, OK
}

func (s *State) freeze(index uint64, c Freeze) Refusal {
	o, refusal := s.outAt(c.Move, c.Part)
	switch {
	case refusal != OK:
		return refusal
	case !validText(c.To) || c.To == s.Meta.Genesis.Set || c.Range.Lo > c.Range.Last:
		return RefusedInvalid
	case o != nil && o.Phase == OutThawed:
		return RefusedThawed
	case o != nil && (o.Range != c.Range || o.To != c.To):
		return RefusedOldPart
	case o != nil:
		return OK
	case !sets.CoverAll(s.Meta.Ranges, c.Range) || s.overlapsOut(c.Range):
		return RefusedRange
	}
	s.Meta.Out[c.Move] = &Outgoing{
		Move: c.Move, Part: c.Part, Range: c.Range, To: c.To, Phase: OutFrozen, Waiting: s.owners(), Frozen: index,
	}
	return OK
}

func (s *State) overlapsOut(r sets.Range) bool {
	for _, o := range s.Meta.Out {
		if o.holds() && o.Range.Overlaps(r) {
			return true
		}
	}
	return false
}

// owners are the sessions that own a section.
func (s *State) owners() []ids.SessionID {
	var all []ids.SessionID
	for i := range s.Meta.Sections {
		if o := s.Meta.Sections[i].Owner; o != 0 {
			all = append(all, o)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (s *State) thaw(c Thaw) Refusal {
	o, refusal := s.outAt(c.Move, c.Part)
	switch {
	case refusal != OK:
		return refusal
	case o == nil && !c.Forced:
		return RefusedOldPart
	case o == nil:
		s.Meta.Out[c.Move] = &Outgoing{Move: c.Move, Part: c.Part, Phase: OutThawed}
		return OK
	case o.Phase == OutThawed:
		return OK
	case o.Phase == OutGone:
		return RefusedRange
	case o.Phase == OutSealed && !c.Forced && !s.Bugs.ThawAfterSeal:
		return RefusedSealed
	}
	s.Meta.Out[c.Move] = &Outgoing{Move: o.Move, Part: o.Part, Range: o.Range, To: o.To, Phase: OutThawed, Frozen: o.Frozen}
	return OK
}

func (s *State) seal(c Seal) Refusal {
	o, refusal := s.outAt(c.Move, c.Part)
	switch {
	case refusal != OK:
		return refusal
	case o == nil:
		return RefusedOldPart
	case o.Phase == OutThawed:
		return RefusedThawed
	case o.Phase != OutFrozen:
		return OK
	case len(o.Waiting) > 0 && !s.Bugs.SealWhileWaiting:
		return RefusedWaiting
	}
	sealed := *o
	sealed.Phase, sealed.Waiting = OutSealed, nil
	s.Meta.Out[c.Move] = &sealed
	return OK
}

// drop gives the range up. It takes nobody's word but the map's: a range that
// the newest map gives to this Set is not given up.
func (s *State) drop(index uint64, c Drop) Refusal {
	o, refusal := s.outAt(c.Move, c.Part)
	switch {
	case refusal != OK:
		return refusal
	case !s.validMap(c.Published):
		return RefusedInvalid
	case o == nil:
		return RefusedOldPart
	case o.Phase == OutThawed:
		return RefusedThawed
	case o.Phase == OutGone:
		s.learn(index, c.Published)
		return OK
	case o.Phase == OutFrozen:
		// Only what is sealed is ever committed.
		return RefusedWaiting
	case !sets.CoverAll(s.newest(c.Published).Map.Owned(o.To), o.Range):
		return RefusedDirectory
	}
	s.Meta.Ranges = sets.Without(s.Meta.Ranges, o.Range)
	s.Meta.Out[c.Move] = &Outgoing{Move: o.Move, Part: o.Part, Range: o.Range, To: o.To, Phase: OutGone, Frozen: o.Frozen}
	s.learn(index, c.Published)
	s.Meta.RouteVersion = index
	return OK
}

// vacateUnless refuses a vacation that comes with a return which cannot be trusted.
func (s *State) vacateUnless(doubted []ids.Key, session ids.SessionID, op *Op) Refusal {
	if o := s.Meta.Out[op.Move]; o != nil {
		for _, k := range doubted {
			if o.Range.Contains(k.Space, k.Position()) {
				return RefusedCur
			}
		}
	}
	return s.vacate(session, op)
}

// vacate takes a session's word that it holds nothing of the part any more.
func (s *State) vacate(session ids.SessionID, op *Op) Refusal {
	o := s.Meta.Out[op.Move]
	if o == nil || o.Part != op.Part || !o.holds() {
		return RefusedOldPart
	}
	s.stopWaiting(o, session)
	return OK
}

// saidAll: the key is in a part at hand which the session has vacated, or of which
// it never had anything: it issued nothing that the record does not show.
func (s *State) saidAll(session ids.SessionID, k ids.Key) bool {
	o := s.out(k)
	if o == nil {
		return false
	}
	_, waits := slices.BinarySearch(o.Waiting, session)
	return !waits
}

func (s *State) stopWaiting(o *Outgoing, session ids.SessionID) {
	if at, ok := slices.BinarySearch(o.Waiting, session); ok {
		left := *o
		left.Waiting = slices.Concat(o.Waiting[:at], o.Waiting[at+1:])
		s.Meta.Out[o.Move] = &left
	}
}

// endWaiting is for a session that ends. What it had of a part that it has not
// vacated is lost, as everything else of its epochs; what it had of one that it
// has vacated was handed back, whatever becomes of the rest.
func (s *State) endWaiting(session ids.SessionID) {
	for _, o := range s.Meta.Out {
		if !o.holds() {
			continue
		}
		if _, waits := slices.BinarySearch(o.Waiting, session); waits {
			s.stopWaiting(o, session)
			continue
		}
		owned := s.Owned(session)
		if len(owned) == 0 || s.Bugs.ForgetVacated {
			continue
		}
		left := *o
		left.Vacated = slices.Concat(o.Vacated, owned)
		slices.SortFunc(left.Vacated, compareSections)
		s.Meta.Out[o.Move] = &left
	}
}

func compareSections(a, b OwnedSection) int {
	return cmp.Or(cmp.Compare(a.Section, b.Section), cmp.Compare(a.Epoch, b.Epoch))
}

// vacated: the key is in a part at hand that the owner of this epoch had vacated
// before it ended.
func (s *State) vacated(sec ids.Section, e ids.Epoch, k ids.Key) bool {
	o := s.out(k)
	if o == nil {
		return false
	}
	_, ok := slices.BinarySearchFunc(o.Vacated, OwnedSection{Section: sec, Epoch: e}, compareSections)
	return ok
}
