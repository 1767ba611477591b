package sim

import (
	"testing"
	"time"
)

// Ranges go to another Set and back while processes of both crash and leaders
// change: no number is lost.
func TestMovesBetweenSetsLoseNoNumber(t *testing.T) {
	w := rough()
	w.Loss, w.Duplicate = 0.01, 0.05
	several(t, Options{
		Sets: 2, Faults: withMoves(LosslessFaults()), Lossless: true, Weather: w, IdleAfter: 200 * time.Millisecond,
		Duration: 40 * time.Second, Allocs: 2, FreezeTimeout: time.Second,
	}, 2, func(t *testing.T, rep Report) {
		if rep.NumbersLost != 0 || rep.Failovers < 4 || rep.Moves < 3 {
			t.Errorf("%d numbers were lost in %d failovers and %d moves", rep.NumbersLost, rep.Failovers, rep.Moves)
		}
	})
}

// Moves are planned operations, and so are those beside them: no call fails.
func TestMovesBetweenSetsFailNoCall(t *testing.T) {
	several(t, Options{
		Sets: 2, Faults: Faults{"migrate": 8, "drain": 1, "restart-alloc": 1}, Lossless: true, Planned: true, Weather: calm(),
		GapMin: 500 * time.Millisecond, GapMax: 2 * time.Second, Duration: 30 * time.Second, Allocs: 2,
	}, 2, func(t *testing.T, rep Report) {
		if rep.NumbersLost != 0 || rep.Moves < 8 {
			t.Errorf("%d numbers were lost in %d moves", rep.NumbersLost, rep.Moves)
		}
	})
}
