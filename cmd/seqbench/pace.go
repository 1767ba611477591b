package main

import "time"

// pace has the calls of one caller due at fixed times, whatever became of the
// calls before. A caller that is late catches up at once, and the latency of
// what was late counts from when it was due (coordinated omission: G. Tene, How
// not to measure latency).
type pace struct {
	due   time.Time
	every time.Duration
}

// newPace answers nil for as fast as it goes. The callers take turns.
func newPace(c *config, caller int, start time.Time) *pace {
	if c.rate == 0 {
		return nil
	}
	between := float64(time.Second) * float64(c.batch) / c.rate // of calls of all callers
	return &pace{
		due:   start.Add(time.Duration(between * float64(caller))),
		every: max(time.Duration(between*float64(c.callers)), 1),
	}
}

// next waits until the next call is due, and answers when that was; zero if the run stopped.
func (p *pace) next(stop <-chan struct{}) time.Time {
	due := p.due
	p.due = due.Add(p.every)
	if d := time.Until(due); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-stop:
			return time.Time{}
		}
	}
	return due
}
