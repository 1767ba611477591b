// Package clock is the time that leases are measured on: monotonic, and
// counting the time a machine was suspended, so that a lease cannot seem alive
// after its holder slept through it.
//
// It measures intervals only: a reading means nothing on another machine or
// after a reboot. Timers do not come from here; they use package time.
package clock

import "time"

// Clock reads the time since some fixed moment of this machine's boot. It never goes back.
type Clock interface {
	Now() time.Duration
}

type goClock struct{ start time.Time }

// Go is package time's monotonic clock, for tests: inside a synctest bubble it is the bubble's time.
func Go() Clock { return goClock{start: time.Now()} }

func (c goClock) Now() time.Duration { return time.Since(c.start) }
