package allocsvr

import (
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
)

// lap has pages of these ages looked at by a pace that may choose one; it says the
// age of the page that it chose, −1 for none.
func lap(p *pace, aging, crowded bool, ages ...int) (chosen int) {
	p.began(aging)
	chosen = -1
	for _, age := range ages {
		if chosen < 0 && p.old(age, crowded) {
			chosen = age
			continue
		}
		p.stays(age)
	}
	p.ended(time.Second, aging, crowded)
	return chosen
}

// The next lap takes from the oldest pages that the last one left; none goes by in vain.
func TestALapTakesTheOldestThatTheLastOneLeft(t *testing.T) {
	p := newPace(0)
	for i, l := range []struct {
		aging, crowded bool
		ages           []int
		want           int
	}{
		{ages: []int{0, 1, 2}, want: -1}, // the first lap knows nothing
		{ages: []int{0, 1, 2}, want: 2},
		{ages: []int{0, 1}, want: 1},
		{ages: []int{0, 0}, want: -1},
		{ages: []int{0, 0}, want: -1}, // in use, and nobody waits
		{crowded: true, ages: []int{0, 0}, want: 0},
		{crowded: true, ages: []int{0}, want: 0},
		// Those that were not used since are older now, and the others stay.
		{aging: true, crowded: true, ages: []int{0, 1}, want: 1},
		{crowded: true, ages: []int{0, 3, 1}, want: 0},
		{crowded: true, ages: []int{1, 3}, want: 3},
		{aging: true, ages: []int{1, 2, 3}, want: 2},
		{ages: []int{arena.AgeMax}, want: arena.AgeMax},
	} {
		if got := lap(&p, l.aging, l.crowded, l.ages...); got != l.want {
			t.Fatalf("lap %d chose a page of age %d, want %d", i, got, l.want)
		}
	}
}

// Laps that could choose nothing are not made.
func TestLapsAreSpentWhenAllIsInUse(t *testing.T) {
	p := newPace(0)
	for i, l := range []struct {
		crowded bool
		age     int
		want    bool
	}{{false, 1, false}, {false, 0, true}, {true, 0, false}, {false, 2, false}} {
		if lap(&p, false, l.crowded, l.age, l.age); p.spent != l.want {
			t.Errorf("lap %d: spent %v", i, p.spent)
		}
	}
}
