package state

import (
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// inAt is outAt for the target.
func (s *State) inAt(move sets.MoveID, p sets.Part) (in *Incoming, refusal Refusal) {
	if move == 0 || p == 0 {
		return nil, RefusedInvalid
	}
	in = s.Meta.In[move]
	switch {
	case move <= s.Meta.MovesEnded:
		return nil, RefusedOldPart
	case in != nil && in.Part > p && !s.Bugs.ImportStalePart:
		return nil, RefusedOldPart
	case in != nil && in.Part < p:
		if in.Phase == InImporting {
			return nil, RefusedOldPart
		}
		return nil, OK
	}
	return in, OK
}

// importRecords joins records into a range that is not served here. Of two
// records of a key the one with the higher floor is the newer one, whichever
// part, attempt or copy of a message it came with: floors only grow, and equal
// floors have equal ledgers. What is left here of an earlier time is a record
// too, and older; its bound and epoch mean nothing any more.
func (s *State) importRecords(c Import) Refusal {
	in, refusal := s.inAt(c.Move, c.Part)
	switch {
	case refusal != OK:
		return refusal
	case !s.validImport(c.Range, c.From, c.Records):
		return RefusedInvalid
	case in != nil && in.Phase != InImporting && !s.Bugs.ImportStalePart:
		return RefusedOldPart
	case in != nil && (in.Range != c.Range || in.From != c.From) && !s.Bugs.ImportStalePart:
		return RefusedOldPart
	case (sets.OverlapAny(s.Meta.Ranges, c.Range) || in == nil && s.overlapsIn(c.Range)) && !s.Bugs.ImportStalePart:
		return RefusedRange
	}
	next := Incoming{Move: c.Move, Part: c.Part, Range: c.Range, From: c.From, Phase: InImporting}
	if in != nil {
		next = *in
	}
	next.Keys += s.joinAll(c.Records)
	s.Meta.In[c.Move] = &next
	return OK
}

// preload joins records of a range that is not this Set's. It needs no fence but
// that: whenever a copy arrives, its floor is no higher than the owner's, so it is
// one more leftover; and a join of it changes no record of a part that compared equal.
func (s *State) preload(c *Preload) Refusal {
	switch {
	case c.Move == 0 || !s.validImport(c.Range, c.From, c.Records):
		return RefusedInvalid
	case s.Meta.In[c.Move] == nil:
		return RefusedOldPart
	case sets.OverlapAny(s.Meta.Ranges, c.Range) && !s.Bugs.PreloadIntoOwn:
		return RefusedRange
	}
	s.joinAll(c.Records)
	return OK
}

// joinAll answers how many records changed something.
func (s *State) joinAll(records []KeyedRecord) (changed uint64) {
	finder, ok := s.Keys.(Finder)
	if ok && slices.IsSortedFunc(records, func(a, b KeyedRecord) int { return a.Key.Compare(b.Key) }) {
		keys := make([]ids.Key, len(records))
		for i := range records {
			keys[i] = records[i].Key
		}
		for i, old := range finder.Find(keys) {
			if i > 0 && keys[i] == keys[i-1] {
				old = s.find(keys[i]) // the one before has changed it
			}
			if s.join(&records[i], old) {
				changed++
			}
		}
		return changed
	}
	for i := range records {
		if s.join(&records[i], s.find(records[i].Key)) {
			changed++
		}
	}
	return changed
}

func (s *State) find(k ids.Key) (f Found) {
	f.Record, f.Known = s.Keys.Get(k)
	f.HasGaps = len(s.Keys.Gaps(k)) > 0
	return f
}

func (s *State) overlapsIn(r sets.Range) bool {
	for _, in := range s.Meta.In {
		if in.Phase == InImporting && in.Range.Overlaps(r) {
			return true
		}
	}
	return false
}

// validImport: the records are as Effective makes them, and all of the range.
func (s *State) validImport(r sets.Range, from string, records []KeyedRecord) bool {
	if !validText(from) || from == s.Meta.Genesis.Set || len(records) > ImportMax || !s.inSpaces(r) {
		return false
	}
	for i := range records {
		kr := &records[i]
		if !s.validKey(kr.Key) || !r.Contains(kr.Key.Space, kr.Key.Position()) || kr.check() != nil {
			return false
		}
	}
	return true
}

func (s *State) inSpaces(r sets.Range) bool {
	return r.Lo <= r.Last && sets.CoverAll(sets.WholeSpaces(s.Meta.Genesis.Spaces), r)
}

// join keeps the newer record of a key; it answers whether anything changed.
func (s *State) join(kr *KeyedRecord, here Found) bool {
	old, next := here.Record, kr.record()
	if here.Known && old.Floor >= next.Floor && !s.Bugs.OverwriteFloors {
		// What is left here has the same numbers behind it, or an older copy came late.
		if s.Bugs.KeepLeftovers {
			return false
		}
		next = Record{Floor: old.Floor, Bound: old.Floor, HoleAtFloor: old.HoleAtFloor, Moved: true}
		if next == old {
			return false
		}
		s.Keys.Put(kr.Key, next)
		return true
	}
	if len(kr.Gaps) > 0 {
		s.Keys.PutGaps(kr.Key, kr.Gaps)
	} else if here.HasGaps {
		s.Keys.Delete(kr.Key)
	}
	s.Keys.Put(kr.Key, next)
	return true
}

// activate makes the range this Set's own. It takes nobody's word but the map's:
// the newest one that is known must give the range to this Set, and no map after
// the one that took it away last time does so without a commit.
func (s *State) activate(index uint64, c Activate) Refusal {
	in, refusal := s.inAt(c.Move, c.Part)
	switch {
	case refusal != OK:
		return refusal
	case !s.validMap(c.Published):
		return RefusedInvalid
	case in == nil || in.Phase == InDiscarded:
		return RefusedOldPart
	case in.Phase == InActive:
		s.learn(index, c.Published)
		return OK
	case sets.OverlapAny(s.Meta.Ranges, in.Range):
		return RefusedRange
	case !sets.CoverAll(s.newest(c.Published).Map.Owned(s.Meta.Genesis.Set), in.Range) && !s.Bugs.ActivateBeforeCommit:
		return RefusedDirectory
	}
	s.Meta.Ranges = sets.With(s.Meta.Ranges, in.Range)
	active := *in
	active.Phase = InActive
	s.Meta.In[c.Move] = &active
	s.learn(index, c.Published)
	s.Meta.RouteVersion = index
	return OK
}

// discard gives up what came in for a part that was aborted, or that is over for all that
// is known of it. What the newest map gives to this Set was committed, and is never given up.
func (s *State) discard(c Discard) Refusal {
	in, refusal := s.inAt(c.Move, c.Part)
	switch {
	case refusal != OK:
		return refusal
	case in == nil:
		s.Meta.In[c.Move] = &Incoming{Move: c.Move, Part: c.Part, Phase: InDiscarded}
		return OK
	case in.Phase == InActive:
		return RefusedRange
	case in.Phase == InImporting && sets.OverlapAny(s.Meta.Published.Map.Owned(s.Meta.Genesis.Set), in.Range):
		return RefusedDirectory
	}
	over := *in
	over.Phase = InDiscarded
	s.Meta.In[c.Move] = &over
	return OK
}

// endMoves forgets moves that are over.
func (s *State) endMoves(c EndMove) Refusal {
	for id, o := range s.Meta.Out {
		if id <= c.Move && o.holds() {
			return RefusedHeld
		}
	}
	for id, in := range s.Meta.In {
		if id <= c.Move && in.Phase == InImporting {
			return RefusedHeld
		}
	}
	for id := range s.Meta.Out {
		if id <= c.Move {
			delete(s.Meta.Out, id)
		}
	}
	for id := range s.Meta.In {
		if id <= c.Move {
			delete(s.Meta.In, id)
		}
	}
	s.Meta.MovesEnded = max(s.Meta.MovesEnded, c.Move)
	return OK
}

// sweep forgets what is left of ranges that went away.
func (s *State) sweep(c Sweep) Refusal {
	if len(c.Keys) > SweepMax {
		return RefusedInvalid
	}
	for _, k := range c.Keys {
		if s.Owns(k) || s.importing(k) {
			return RefusedRange
		}
	}
	for _, k := range c.Keys {
		s.Keys.Delete(k)
	}
	return OK
}

func (s *State) importing(k ids.Key) bool {
	for _, in := range s.Meta.In {
		if in.Phase == InImporting && in.Range.Contains(k.Space, k.Position()) {
			return true
		}
	}
	return false
}
