package config

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/seqsvr/seqsvr/allocsvr/dedupe"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// ProblemOf makes the problem of a key, as a file has it.
type ProblemOf func(key, format string, a ...any) error

// Steps are the keys that say how far raises go.
type Steps struct {
	Policy         string
	Step, Min, Max uint64
	Target         time.Duration
}

const (
	policyFixed    = "fixed"
	policyAdaptive = "adaptive"
	stepMax        = 1 << 40
)

// Declare declares the keys as flags, and sets the defaults.
func (s *Steps) Declare(fs *pflag.FlagSet) {
	fs.StringVar(&s.Policy, "step-policy", policyFixed, "how many numbers a key takes from the StoreSvrs at a time: fixed (step), or adaptive (step_min to step_max, by how fast they go)")
	fs.Uint64Var(&s.Step, "step", 10_000, "fixed: how many numbers a key takes at a time, and may lose with its machine")
	fs.Uint64Var(&s.Min, "step-min", uint64(raise.DefaultMin), "adaptive: the least step, which a key begins with")
	fs.Uint64Var(&s.Max, "step-max", uint64(raise.DefaultMax), "adaptive: the largest step; what a key may lose with its machine at most")
	fs.DurationVar(&s.Target, "step-target", raise.DefaultTarget, "adaptive: how long a step is to last")
}

// Check says what is wrong, with each problem made by the caller.
func (s *Steps) Check(problem ProblemOf) (problems []error) {
	add := func(bad bool, key, format string, a ...any) {
		if bad {
			problems = append(problems, problem(key, format, a...))
		}
	}
	add(s.Policy != policyFixed && s.Policy != policyAdaptive, "step_policy", "%q: want fixed or adaptive", s.Policy)
	add(s.Step < 1 || s.Step > stepMax, "step", "%d is outside [1, 2^40]", s.Step)
	add(s.Max < 1 || s.Max > uint64(raise.AdaptiveMaxMax), "step_max", "%d is outside [1, %d]", s.Max, raise.AdaptiveMaxMax)
	add(s.Min < 1 || s.Min > s.Max, "step_min", "%d is outside [1, step_max = %d]", s.Min, s.Max)
	add(s.Target < raise.TargetMin || s.Target > raise.TargetMax, "step_target", "%v is outside [%v, %v]", s.Target, raise.TargetMin, raise.TargetMax)
	return problems
}

// Rule is the policy in force.
func (s *Steps) Rule() raise.Steps {
	if s.Policy == policyAdaptive {
		return raise.Steps{Adaptive: true, Min: ids.Seq(s.Min), Max: ids.Seq(s.Max), Target: s.Target}
	}
	return raise.Fixed(ids.Seq(s.Step))
}

// Requests are the keys that say which request ids are remembered.
type Requests struct {
	Window     time.Duration
	EntriesMax int
}

const (
	requestWindowMin  = time.Second
	requestWindowMax  = 7 * 24 * time.Hour
	requestEntriesMin = 1000
	requestEntriesMax = 1 << 26
)

func (r *Requests) declare(fs *pflag.FlagSet) {
	fs.DurationVar(&r.Window, "request-window", dedupe.DefaultWindow, "how long a request id is remembered")
	fs.IntVar(&r.EntriesMax, "request-entries-max", dedupe.DefaultEntriesMax, "most request ids that are remembered, at up to 48 bytes each in the arena and beside it; past them the oldest are forgotten")
}

func (r *Requests) check(problem ProblemOf) (problems []error) {
	if r.Window < requestWindowMin || r.Window > requestWindowMax {
		problems = append(problems, problem("request_window", "%v is outside [%v, %v]", r.Window, requestWindowMin, requestWindowMax))
	}
	if r.EntriesMax < requestEntriesMin || r.EntriesMax > requestEntriesMax {
		problems = append(problems, problem("request_entries_max", "%d is outside [%d, %d]", r.EntriesMax, requestEntriesMin, requestEntriesMax))
	}
	return problems
}
