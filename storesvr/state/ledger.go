package state

import "github.com/seqsvr/seqsvr/internal/ids"

// declareLost puts what a lost owner may have issued, (Floor, Bound], into the
// ledger and answers the record with nothing at risk. The caller stores it.
func (s *State) declareLost(sec ids.Section, k ids.Key, rec Record) Record {
	s.declare(k, s.lossOf(sec, rec))
	rec.Floor = rec.Bound
	rec.HoleAtFloor = true
	return rec
}

// lossOf is the hole that a lost epoch leaves.
func (s *State) lossOf(sec ids.Section, rec Record) Gap {
	return Gap{From: rec.Floor + 1, To: rec.Bound, Cause: CauseMachineLoss, Epoch: s.Meta.Sections[sec].Epoch}
}

func (s *State) declare(k ids.Key, g Gap) { s.Keys.PutGaps(k, withGap(s.Keys.Gaps(k), g)) }

// withGap is a ledger and one more hole, above all others.
func withGap(old []Gap, g Gap) []Gap {
	gaps := append(make([]Gap, 0, len(old)+1), old...)
	if n := len(gaps); n > 0 && gaps[n-1].To+1 == g.From && gaps[n-1].Cause == g.Cause {
		gaps[n-1].To, gaps[n-1].Epoch = g.To, g.Epoch
	} else {
		gaps = append(gaps, g)
	}
	if len(gaps) > GapsMax {
		gaps[1] = joined(gaps[0], gaps[1])
		gaps = gaps[1:]
	}
	return gaps
}

// joined covers two holes; of two causes it keeps the one that promises less.
func joined(a, b Gap) Gap {
	return Gap{From: a.From, To: b.To, Cause: graver(a.Cause, b.Cause), Epoch: b.Epoch, Merged: true}
}

func graver(a, b Cause) Cause {
	if a == CauseMachineLoss || b == CauseMachineLoss {
		return CauseMachineLoss
	}
	return b
}

// holeAt finds the hole that ends at floor: the newest one, with those before
// it that it touches. Between holes that touch nothing is known to have been
// issued, so a client may have been told of none of them.
func holeAt(gaps []Gap, floor ids.Seq) (from, to ids.Seq, cause Cause) {
	for i := len(gaps) - 1; i >= 0; i-- {
		g := gaps[i]
		switch {
		case to == 0 && g.To == floor:
			from, to, cause = g.From, g.To, g.Cause
		case to != 0 && g.To+1 == from && !g.Merged:
			from, cause = g.From, graver(g.Cause, cause)
		default:
			return from, to, cause
		}
	}
	return from, to, cause
}
