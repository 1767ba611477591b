package state

import "github.com/seqsvr/seqsvr/internal/ids"

// extend acquires a key or raises its bound. The bound in the reply is what the
// owner may issue up to, and only once this is durable on a quorum.
func (s *State) extend(sec ids.Section, op *Op) OpResult {
	if op.Step == 0 || op.Step > ids.MaxSeq {
		return OpResult{Refusal: RefusedInvalid}
	}
	if refusal := s.admitKey(op.Key); refusal != OK {
		return OpResult{Refusal: refusal}
	}
	old, _ := s.Keys.Get(op.Key)
	var rec Record
	var refusal Refusal
	if old.Epoch == op.Epoch {
		rec, refusal = raised(old, op)
	} else {
		rec, refusal = s.acquired(sec, old, op)
	}
	if refusal != OK {
		return OpResult{Refusal: refusal, Floor: old.Floor, Bound: old.Bound}
	}
	if rec != old {
		s.Keys.Put(op.Key, rec)
	}
	res := OpResult{Floor: rec.Floor, Bound: rec.Bound}
	if rec.HoleAtFloor {
		res.HoleFrom, res.HoleTo, res.HoleCause = holeAt(s.Keys.Gaps(op.Key), rec.Floor)
	}
	return res
}

// acquired is the record after the first touch of the key in this epoch.
func (s *State) acquired(sec ids.Section, rec Record, op *Op) (Record, Refusal) {
	clean := s.endedClean(sec, rec.Epoch)
	base := rec.Bound
	if clean {
		base = rec.Floor
	}
	switch {
	case op.Cur > base:
		return rec, RefusedCur
	case base >= ids.MaxSeq:
		return rec, RefusedExhausted
	}
	if base > rec.Floor {
		rec = s.declareLost(sec, op.Key, rec)
	}
	return Record{
		Floor:       base,
		Bound:       min(base+op.Step, ids.MaxSeq),
		Epoch:       op.Epoch,
		HoleAtFloor: rec.HoleAtFloor,
	}, OK
}

// raised is the record after a later extend in the same epoch. Cur 0 is an
// owner that lost the reply to its first touch.
func raised(rec Record, op *Op) (Record, Refusal) {
	if op.Cur > rec.Bound {
		return rec, RefusedCur
	}
	if op.Cur > rec.Floor {
		rec.Floor = op.Cur
		rec.HoleAtFloor = false
	}
	if rec.Floor >= ids.MaxSeq {
		return rec, RefusedExhausted
	}
	rec.Bound = max(rec.Bound, min(rec.Floor+op.Step, ids.MaxSeq))
	return rec, OK
}

// handBack ends the epoch's hold of one key at exactly the last number issued.
// It is the only op that lowers a bound.
func (s *State) handBack(session ids.SessionID, op *Op) OpResult {
	if !s.Owns(op.Key) && !s.Bugs.ExtendOutsideRanges {
		return OpResult{Refusal: RefusedRange}
	}
	rec, _ := s.Keys.Get(op.Key)
	last := op.Cur
	if s.beforeHole(op.Key, rec, op.Cur) {
		last = rec.Floor
	}
	switch {
	case rec.Epoch == 0 && last == rec.Floor:
		// A retry: it was handed back already.
		return OpResult{Floor: rec.Floor, Bound: rec.Bound}
	case rec.Moved && last < rec.Floor:
		// A retry too: the range has been away since.
		return OpResult{Floor: rec.Floor, Bound: rec.Bound}
	case rec.Epoch != op.Epoch || last < rec.Floor || last > rec.Bound || last != rec.Floor && s.saidAll(session, op.Key):
		return OpResult{Refusal: RefusedCur, Floor: rec.Floor, Bound: rec.Bound}
	}
	s.Keys.Put(op.Key, Record{
		Floor:       last,
		Bound:       last,
		HoleAtFloor: rec.HoleAtFloor && last == rec.Floor,
	})
	return OpResult{Floor: last, Bound: last}
}

// beforeHole: between cur and the floor there is only the hole that ends at the
// floor, so an owner at cur has issued all that there is. It has not heard of
// the hole yet: its return was applied and the key advanced, say, and it lost
// the replies. Any other cur below the floor is an owner that forgot what it issued.
func (s *State) beforeHole(k ids.Key, rec Record, cur ids.Seq) bool {
	if !rec.HoleAtFloor || cur >= rec.Floor {
		return false
	}
	from, _, _ := holeAt(s.Keys.Gaps(k), rec.Floor)
	return from <= cur+1
}

func (s *State) advance(c Advance) OpResult {
	if !s.validKey(c.Key) || c.To > ids.MaxSeq {
		return OpResult{Refusal: RefusedInvalid}
	}
	sec := c.Key.Section(s.Meta.Genesis.Sections)
	res := OpResult{SectionEpoch: s.Meta.Sections[sec].Epoch}
	if res.Refusal = s.admitKey(c.Key); res.Refusal != OK {
		return res
	}
	rec, _ := s.Keys.Get(c.Key)
	if s.held(sec, rec.Epoch) {
		res.Refusal, res.Floor, res.Bound = RefusedHeld, rec.Floor, rec.Bound
		return res
	}
	if now := s.Value(c.Key); c.To <= now {
		res.Refusal, res.Floor, res.Bound = RefusedLower, now, now
		return res
	}
	if !s.endedClean(sec, rec.Epoch) && rec.Floor < rec.Bound {
		rec = s.declareLost(sec, c.Key, rec)
	}
	s.declare(c.Key, Gap{From: rec.Floor + 1, To: c.To, Cause: CauseAdvance, Epoch: res.SectionEpoch})
	s.Keys.Put(c.Key, Record{Floor: c.To, Bound: c.To, HoleAtFloor: true, Moved: rec.Moved})
	res.Floor, res.Bound = c.To, c.To
	return res
}

// Value is the highest number that may have been issued for a key, as far as
// the durable tier knows: the last number issued, unless an owner holds the
// key now (it knows better) or died holding it.
func (s *State) Value(k ids.Key) ids.Seq {
	rec, ok := s.Keys.Get(k)
	if !ok {
		return 0
	}
	sec := k.Section(s.Meta.Genesis.Sections)
	if s.lost(sec, k, rec) {
		return rec.Bound
	}
	return rec.Floor
}

// lost: the record's epoch ended without a hand-back of the key, so what it may
// have issued, up to Bound, is lost.
func (s *State) lost(sec ids.Section, k ids.Key, rec Record) bool {
	return !s.held(sec, rec.Epoch) && !s.endedClean(sec, rec.Epoch) && !s.vacated(sec, rec.Epoch, k)
}

// endedClean says whether a record of epoch e, which is not the epoch of an
// owner at work, stands at its floor.
func (s *State) endedClean(sec ids.Section, e ids.Epoch) bool {
	if s.Bugs.IgnoreCleanMark {
		return e == 0
	}
	return e == 0 || s.Clean(sec, e)
}
