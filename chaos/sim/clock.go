package sim

import (
	"sync"
	"time"
)

// skewed is a machine's clock. It runs at a rate of its own, and may jump
// forward, never back: what CLOCK_BOOTTIME may do across a suspend.
type skewed struct {
	start time.Time
	mu    sync.Mutex
	// base is what the clock showed at since; from there it runs at rate.
	base  time.Duration
	since time.Duration
	rate  float64
}

// driftMax keeps any two clocks' rates within what the lease margin (a tenth
// of the TTL) allows: (1 − driftMax)/(1 + driftMax) > 0.9.
const driftMax = 0.045

func newSkewed(start time.Time, base time.Duration, rate float64) *skewed {
	return &skewed{start: start, base: base, rate: rate, since: time.Since(start)}
}

func (c *skewed) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nowLocked()
}

func (c *skewed) nowLocked() time.Duration {
	return c.base + time.Duration(float64(time.Since(c.start)-c.since)*c.rate)
}

// set changes the rate and jumps forward.
func (c *skewed) set(rate float64, jump time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base, c.since = c.nowLocked()+max(jump, 0), time.Since(c.start)
	c.rate = rate
}
