package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestBoottimeGoesForward(t *testing.T) {
	c := Boottime()
	last := c.Now()
	if last <= 0 {
		t.Fatalf("boot time %v, want more than 0", last)
	}
	for range 1000 {
		now := c.Now()
		if now < last {
			t.Fatalf("went back from %v to %v", last, now)
		}
		last = now
	}
}

func TestGoClockFollowsTheBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Go()
		time.Sleep(3 * time.Second)
		if got := c.Now(); got != 3*time.Second {
			t.Fatalf("after 3 s of simulated time the clock says %v", got)
		}
	})
}

func BenchmarkBoottime(b *testing.B) {
	c := Boottime()
	for b.Loop() {
		c.Now()
	}
}
