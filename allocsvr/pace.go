package allocsvr

import (
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
)

// pace decides which keys are old enough to be handed back. A lap is a look at
// every key held. Time is told in laps that age: a key's age is at how many of them
// in a row its number has stood still, and their ends say what that means in time.
//
// For want of room whole pages go, those first of which no key was used for
// longest: each lap counts what it leaves, and the next takes from the oldest of
// that. Pages in use go only if a caller waits for room. Pure.
type pace struct {
	idleAfter time.Duration // ≤ 0: a key is never idle
	// ends of the last laps, the newest first.
	ends [arena.AgeMax]time.Duration
	laps int
	// crowd is from which age on a page goes for want of room.
	crowd int
	// left are the pages that stayed in this lap, by the age of their youngest key.
	left [arena.AgeMax + 1]int
	// spent: there is nothing to choose before keys have aged.
	spent bool
}

func newPace(idleAfter time.Duration) pace { return pace{idleAfter: idleAfter, crowd: arena.AgeMax} }

// pressedLapEvery is the time between laps that age while room is wanted.
const pressedLapEvery = time.Second

// lapEvery is the time between laps that age: without need so that AgeMax of them are more than idleAfter.
func (p *pace) lapEvery(pressed bool) time.Duration {
	if pressed {
		return min(pressedLapEvery, p.lapEvery(false))
	}
	if p.idleAfter <= 0 {
		return DefaultIdleAfter / 2
	}
	return p.idleAfter / 2
}

// began tells of a lap: the last one's oldest pages, if they were not used since,
// are older by one if it ages.
func (p *pace) began(aging bool) {
	p.left = [arena.AgeMax + 1]int{}
	if aging {
		p.crowd = min(p.crowd+1, arena.AgeMax)
	}
}

// ended tells of the end of a lap: whether it aged, and whether somebody waits for room.
func (p *pace) ended(now time.Duration, aged, crowded bool) {
	if aged {
		copy(p.ends[1:], p.ends[:])
		p.ends[0] = now
		p.laps++
	}
	p.crowd = arena.AgeMax
	for p.crowd > 0 && p.left[p.crowd] == 0 {
		p.crowd--
	}
	p.spent = p.crowd == 0 && !crowded
}

// idle: a key of this age has certainly not been used for idleAfter.
func (p *pace) idle(age int, now time.Duration) bool {
	return p.idleAfter > 0 && age > 0 && age <= p.laps && now-p.ends[age-1] >= p.idleAfter
}

// old: a page whose youngest key is of this age goes for want of room.
func (p *pace) old(youngest int, crowded bool) bool {
	return youngest >= p.crowd && (youngest > 0 || crowded)
}

// stays tells of a page that does not go.
func (p *pace) stays(youngest int) { p.left[youngest]++ }

// waterMark says when room is wanted: from high on, until low.
type waterMark struct{ high, low int64 }

func waterMarkOf(limit int64, percent int) waterMark {
	if percent < 0 {
		return waterMark{high: limit, low: limit}
	}
	return waterMark{high: limit * int64(percent) / 100, low: limit * int64(max(percent-10, 0)) / 100}
}

// pressed: keys must go. Records of request ids alone are no reason: they are bounded elsewhere.
func (g waterMark) pressed(before bool, keys, used, limit int64) bool {
	return keys > limit/4 && (used > g.high || before && used > g.low)
}
