package raise

import "github.com/seqsvr/seqsvr/internal/ids"

// StepPolicy decides how far one raise goes: the numbers that a machine loss
// may cost against the raises that traffic costs.
type StepPolicy interface {
	// Step is how many numbers beyond the last issued one a raise of the key
	// asks for; at least 1.
	Step(k ids.Key) ids.Seq
}

// Fixed is the same step for every key.
type Fixed ids.Seq

// Step implements StepPolicy.
func (f Fixed) Step(ids.Key) ids.Seq { return ids.Seq(f) }
