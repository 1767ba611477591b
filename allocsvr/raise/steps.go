package raise

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Steps says how far raises go: the numbers that the loss of a machine may cost
// a key, against the raises that traffic costs. The zero value says nothing.
type Steps struct {
	Adaptive bool
	// Step of each raise, if not Adaptive.
	Step ids.Seq
	// Min and Max bound an adaptive step; Target is how long one is to last.
	Min, Max ids.Seq
	Target   time.Duration
	// Keys of which an adaptive policy knows at once, at 16 bytes each; 0 is DefaultAdaptiveKeys.
	Keys int
}

// Fixed is the same step for every raise.
func Fixed(step ids.Seq) Steps { return Steps{Step: step} }

// The defaults of adaptive steps, and their limits.
const (
	DefaultMin          ids.Seq = 10
	DefaultMax          ids.Seq = 10_000
	DefaultTarget               = 10 * time.Minute
	DefaultAdaptiveKeys         = 1 << 18 // 4 MB
	AdaptiveMaxMax      ids.Seq = 1<<31 - 1
	TargetMin                   = 100 * time.Millisecond
	TargetMax                   = 24 * time.Hour
)

// Largest is the largest step of any key: what the loss of a machine may cost one.
func (s Steps) Largest() ids.Seq {
	if s.Adaptive {
		return s.Max
	}
	return s.Step
}

// Least is the smallest.
func (s Steps) Least() ids.Seq {
	if s.Adaptive {
		return s.Min
	}
	return s.Step
}

// Check says what is wrong with it.
func (s Steps) Check() error {
	switch {
	case !s.Adaptive && (s.Step < 1 || s.Step > ids.MaxSeq):
		return fmt.Errorf("a step of %d is outside [1, %d]", s.Step, ids.MaxSeq)
	case !s.Adaptive:
		return nil
	case s.Min < 1:
		return errors.New("the least step must be at least 1")
	case s.Max < s.Min:
		return fmt.Errorf("the largest step, %d, is below the least, %d", s.Max, s.Min)
	case s.Max > AdaptiveMaxMax:
		return fmt.Errorf("the largest step, %d, is above %d", s.Max, AdaptiveMaxMax)
	case s.Target < TargetMin || s.Target > TargetMax:
		return fmt.Errorf("a target of %v is outside [%v, %v]", s.Target, TargetMin, TargetMax)
	}
	return nil
}

// Policy chooses the steps of the keys of one space. Its methods may be called
// from any goroutine.
type Policy interface {
	// Step is how many numbers beyond cur, the last issued one, a raise of the key
	// asks for now: from Steps.Least to Steps.Largest. cur 0: the key is not held. It changes nothing.
	Step(k ids.Key, cur ids.Seq, now time.Time) ids.Seq
	// Granted tells of a raise that came about: what Step answered, from cur on.
	Granted(k ids.Key, cur, step ids.Seq, now time.Time)
	// Last is the step that the key's numbers are of, as far as known.
	Last(k ids.Key) ids.Seq
}

// NewPolicy makes the policy of one space. s must be right.
func NewPolicy(s Steps) Policy {
	if s.Adaptive {
		return newAdaptive(s)
	}
	return fixed(s.Step)
}

type fixed ids.Seq

func (f fixed) Step(ids.Key, ids.Seq, time.Time) ids.Seq     { return ids.Seq(f) }
func (f fixed) Granted(ids.Key, ids.Seq, ids.Seq, time.Time) {}
func (f fixed) Last(ids.Key) ids.Seq                         { return ids.Seq(f) }

// RunsLow: taking n, which left so many, went below half of the key's step, or
// past a further halving in case that the raise asked for at the first did not
// come about. half is that of the largest step. The policy is asked only where the
// number of bits of what is left changes: some twenty times a step, however large;
// so the raise of an adaptive step begins between a quarter and a half of it.
func RunsLow(p Policy, k ids.Key, left, n, half ids.Seq) bool {
	if left >= half {
		return false
	}
	if left+n < half && bits.Len64(uint64(left)) == bits.Len64(uint64(left+n)) {
		return false
	}
	return left < p.Last(k)/2
}
