package sim

import (
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// Options of one run. The zero value of a field means its default.
type Options struct {
	Seed uint64
	// Duration is how long faults are injected, in simulated time.
	Duration time.Duration
	// GapMin and GapMax bound the time between two injected faults.
	GapMin, GapMax time.Duration
	Faults         Faults
	Weather        Weather
	Bugs           Bugs
	// Lossless keeps the faults to those that must not cost a number: no
	// process stays away for as long as its lease.
	Lossless bool
	// Planned says that no call may fail: the network is calm and every fault is
	// an operator's doing. Then no request id may be forgotten either.
	Planned bool
	// Limits is the longest time that a key may go unserved, by fault name.
	Limits map[string]time.Duration

	// Sets is one or two; Stores, Allocs and Spares are how many each has.
	Sets, Stores, Allocs, Spares, Clients int
	UIDs, Names                           int
	Sections                              uint32
	// Step is by how much bounds are raised: small, so that raises are many.
	Step uint64
	// Adaptive: raises by steps up to Step, by how fast a key's numbers go.
	Adaptive bool
	TTL      time.Duration
	// PartKeys is about how many keys of a move are frozen at a time, and
	// FreezeTimeout for how long at most, unless they are sealed.
	PartKeys      int
	FreezeTimeout time.Duration
	// IdleAfter is after how long an AllocSvr hands an unused key back; 0 is long after the run.
	IdleAfter time.Duration
	// Rate is the calls per second of each client, CallTimeout their patience.
	Rate        float64
	CallTimeout time.Duration
	// WithID is the share of allocations with a request id, which the SDK repeats
	// by itself; Repeat is the share of those that a client sends again later. Both
	// must be answered alike unless the later answer says that it may be another.
	WithID, Repeat float64
	// Patience is how long the cluster may take to serve every key again once
	// the faults are over.
	Patience time.Duration

	// atEnd, if set, is called before every key is asked for once more.
	atEnd func(*Cluster)
}

func (o Options) withDefaults() Options {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
		*v = max(*v, 0) // a negative number asks for none
	}
	setTime := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	set(&o.Sets, 1)
	set(&o.Stores, 3)
	set(&o.Allocs, 3)
	set(&o.Spares, 1)
	set(&o.Clients, 4)
	set(&o.UIDs, 12)
	set(&o.Names, 4)
	if o.Sections == 0 {
		o.Sections = 8
	}
	if o.Step == 0 {
		o.Step = 40
	}
	if o.Weather == (Weather{}) {
		o.Weather = rough()
	}
	set(&o.PartKeys, 4)
	setTime(&o.FreezeTimeout, 3*time.Second)
	setTime(&o.TTL, 2*time.Second)
	setTime(&o.Duration, time.Minute)
	setTime(&o.GapMin, 200*time.Millisecond)
	setTime(&o.GapMax, 2*time.Second)
	setTime(&o.CallTimeout, 2*time.Second)
	if o.Rate == 0 {
		o.Rate = 20
	}
	setTime(&o.Patience, 15*time.Second)
	return o
}

// steps is the policy of the AllocSvrs: none goes further than Step.
func (o Options) steps() raise.Steps {
	if !o.Adaptive {
		return raise.Fixed(ids.Seq(o.Step))
	}
	return raise.Steps{Adaptive: true, Min: max(1, ids.Seq(o.Step)/10), Max: ids.Seq(o.Step), Target: time.Second, Keys: 64}
}

// Report is what a run did and found.
type Report struct {
	Seed uint64
	// Failovers is how many take-overs there were: Resumed, Expired and Elected.
	Failovers int
	// Resumed sessions were continued by the next process of a crashed one;
	// Expired ones lost their sections to others; Elected counts Raft leaders.
	Resumed, Expired, Elected int
	// Faults counts what was injected, by name.
	Faults map[string]int
	// Operations of the clients, and how many of them were answered.
	Operations, Answered int
	// Evicted keys were handed back for being idle.
	Evicted uint64
	// Moves between Sets that came to their end, and the parts that were moved.
	Moves, Parts int
	// NumbersLost were declared lost.
	NumbersLost int64
	// Unserved is the longest that a key went without success, by fault.
	Unserved map[string]time.Duration
	// Recovery is how long the cluster took to serve every key after the last fault.
	Recovery   time.Duration
	Simulated  time.Duration
	Violations []string
	// Log is the file with the last events of a run that violated something.
	Log string
}

// OK reports that nothing was violated.
func (r *Report) OK() bool { return len(r.Violations) == 0 }

// Varied are the options of a random run: sizes, steps, patience and weather
// differ from seed to seed, so that no one shape of cluster is all that is tried.
func Varied(seed uint64) Options {
	r := newSource(seed, nameHash("options"), 0)
	pick := func(of ...int) int { return of[r.below(len(of))] }
	w := rough()
	w.DelayMax = r.between(200*time.Microsecond, 5*time.Millisecond)
	w.Loss = r.within(0, 0.004)
	w.Straggle, w.StraggleMax = r.within(0, 0.03), r.between(10*time.Millisecond, 200*time.Millisecond)
	w.Duplicate, w.DuplicateMax = r.within(0, 0.1), r.between(time.Second, 10*time.Second)
	o := Options{
		Seed: seed, Faults: AllFaults(), Weather: w,
		Stores: pick(3, 3, 3, 5), Allocs: pick(2, 3, 3, 4), Spares: pick(1, 1, 2), Clients: pick(3, 4, 5),
		UIDs: pick(6, 12, 20), Names: pick(1, 4), Sections: uint32(pick(2, 8, 8, 24)),
		Step: uint64(pick(8, 40, 40, 200)), TTL: time.Duration(pick(1000, 2000, 2000, 3000)) * time.Millisecond,
		Rate: float64(pick(10, 15, 20)), WithID: r.within(0, 0.6), CallTimeout: time.Duration(pick(1000, 2000, 3000)) * time.Millisecond,
		IdleAfter: time.Duration(pick(0, 50, 200, 200, 1000)) * time.Millisecond,
		GapMin:    100 * time.Millisecond, GapMax: time.Duration(pick(1000, 1500, 2500)) * time.Millisecond,
		Adaptive: pick(0, 0, 1) == 1, Repeat: r.within(0, 0.5),
	}
	if seed%setsEvery == 0 {
		o = o.inTwoSets()
	}
	return o
}

// setsEvery: of so many seeds one has a cluster of two Sets. They take twice the
// time of others, and the rules of one Set are tried in them too.
const setsEvery = 4

// inTwoSets are the options of a random run with a second Set, and moves between them.
func (o Options) inTwoSets() Options {
	r := newSource(o.Seed, nameHash("sets"), 0)
	pick := func(of ...int) int { return of[r.below(len(of))] }
	o.Sets, o.Stores, o.Allocs, o.Spares = 2, 3, pick(1, 2, 2), 1
	o.Faults = withMoves(o.Faults)
	o.PartKeys = pick(1, 2, 4, 20)
	o.FreezeTimeout = time.Duration(pick(300, 1000, 3000)) * time.Millisecond
	return o
}
