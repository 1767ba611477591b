package sim

import (
	"time"
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

	Stores, Allocs, Spares, Clients int
	UIDs, Names                     int
	Sections                        uint32
	// Step is by how much bounds are raised: small, so that raises are many.
	Step uint64
	TTL  time.Duration
	// Rate is the calls per second of each client, CallTimeout their patience.
	Rate        float64
	CallTimeout time.Duration
	// WithID is the share of allocations with a request id.
	WithID float64
	// Patience is how long the cluster may take to serve every key again once
	// the faults are over.
	Patience time.Duration
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

// Report is what a run did and found.
type Report struct {
	Seed uint64
	// Failovers that the injected faults forced, and the faults by name.
	Failovers int
	Faults    map[string]int
	// Operations of the clients, and how many of them were answered.
	Operations, Answered int
	// NumbersLost were declared lost.
	NumbersLost int64
	// Recovery is how long the cluster took to serve every key after the last fault.
	Recovery   time.Duration
	Simulated  time.Duration
	Violations []string
	// Log is the file with the last events of a run that violated something.
	Log string
}

// OK reports that nothing was violated.
func (r *Report) OK() bool { return len(r.Violations) == 0 }
