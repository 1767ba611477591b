package allocsvr

import (
	"sync/atomic"

	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// What the loss of a machine costs a key is bounded here and in cold.go: a raise
// asks for the key's step, or for what one call wants and, if others were faster
// before, for up to one step of the largest more. So whenever nobody waits for the
// key's numbers, at most one step lies between the last issued one and the bound;
// beyond that step only what a call asked for that has no answer yet, or gave up.

// spaceSteps is how far raises of one space's keys go, and what came of them.
type spaceSteps struct {
	name   string
	steps  raise.Steps
	policy raise.Policy
	// half of the largest step: a key that has so many left is not low on numbers.
	half ids.Seq
	sum  atomic.Uint64
	// granted counts raises by their step; see stepBuckets.
	granted [len(stepBuckets) + 1]atomic.Uint64
}

// stepBuckets are the upper ends of the step histogram's buckets; one more has the rest.
var stepBuckets = [...]ids.Seq{1, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 1_000_000}

func newSpaceSteps(name string, s raise.Steps) *spaceSteps {
	return &spaceSteps{name: name, steps: s, policy: raise.NewPolicy(s), half: s.Largest() / 2}
}

// count takes a raise into the histogram.
func (st *spaceSteps) count(step ids.Seq) {
	i := 0
	for i < len(stepBuckets) && step > stepBuckets[i] {
		i++
	}
	st.granted[i].Add(1)
	st.sum.Add(uint64(step))
}

// SpaceSteps is what there is to know of the raises of one space in this session.
type SpaceSteps struct {
	Space string
	Steps raise.Steps
	// Raises that came about, and the Numbers that they asked for.
	Raises, Numbers uint64
	// UpTo counts, per upper end of a step, the raises of a step up to it.
	UpTo map[float64]uint64
}

func (st *spaceSteps) look() SpaceSteps {
	l := SpaceSteps{Space: st.name, Steps: st.steps, Numbers: st.sum.Load(), UpTo: make(map[float64]uint64, len(stepBuckets))}
	for i, b := range stepBuckets {
		l.Raises += st.granted[i].Load()
		l.UpTo[float64(b)] = l.Raises
	}
	l.Raises += st.granted[len(stepBuckets)].Load()
	return l
}

// stepsOf makes the policies of the spaces, by their ids.
func (c *Config) stepsOf(spaces []ids.Space) []*spaceSteps {
	var all []*spaceSteps
	for _, sp := range spaces {
		for len(all) <= int(sp.ID) {
			all = append(all, nil)
		}
		s := c.Steps
		if own := c.Spaces[sp.Name].Steps; own != (raise.Steps{}) {
			s = own
		}
		all[sp.ID] = newSpaceSteps(sp.Name, s)
	}
	return all
}

// stepsOf the key's space, which the world knows.
func (w *world) stepsOf(k ids.Key) *spaceSteps { return w.steps[k.Space] }

// lookSteps is what there is to know of all spaces, in the order of their ids.
func (w *world) lookSteps() []SpaceSteps {
	var all []SpaceSteps
	for _, st := range w.steps {
		if st != nil {
			all = append(all, st.look())
		}
	}
	return all
}

// stepsPB is what a heartbeat says of them.
func stepsPB(all []SpaceSteps) []*seqpb.SpaceSteps {
	var pbs []*seqpb.SpaceSteps
	for _, l := range all {
		pbs = append(pbs, &seqpb.SpaceSteps{
			Space: l.Space, Adaptive: l.Steps.Adaptive, Min: uint64(l.Steps.Least()), Max: uint64(l.Steps.Largest()),
			TargetMs: uint64(l.Steps.Target.Milliseconds()), Raises: l.Raises, Numbers: l.Numbers,
		})
	}
	return pbs
}
