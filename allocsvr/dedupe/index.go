package dedupe

// index finds a record by its digest: an open-addressed table of places, at most
// 7/8 full. Records come and go all the time, so a removal closes the gap instead
// of leaving a mark.
type index struct {
	slots []uint32 // place + 1; 0: empty
	live  int
}

// place is where a record is: page ordinal and entry.
type place uint32

const placeShift = 7

func placeOf(ord, entry int) place { return place(ord<<placeShift | entry) }

func (p place) split() (ord, entry int) { return int(p >> placeShift), int(p & (1<<placeShift - 1)) }

func (x *index) home(a uint64) int { return int(a >> 32 * uint64(len(x.slots)) >> 32) }

// find returns the place for which is says yes, of those that may have the digest.
func (x *index) find(a uint64, is func(place) bool) (place, bool) {
	if x.live == 0 {
		return 0, false
	}
	for i := x.home(a); ; {
		s := x.slots[i]
		if s == 0 {
			return 0, false
		}
		if p := place(s - 1); is(p) {
			return p, true
		}
		if i++; i == len(x.slots) {
			i = 0
		}
	}
}

// put adds a place; digest tells the first half of any place's digest.
func (x *index) put(a uint64, p place, digest func(place) uint64) {
	if (x.live+1)*8 > len(x.slots)*7 {
		old := x.slots
		x.slots = make([]uint32, max(8, (x.live+1)*10/7))
		for _, s := range old {
			if s != 0 {
				x.set(digest(place(s-1)), s)
			}
		}
	}
	x.set(a, uint32(p)+1)
	x.live++
}

func (x *index) set(a uint64, s uint32) {
	i := x.home(a)
	for x.slots[i] != 0 {
		if i++; i == len(x.slots) {
			i = 0
		}
	}
	x.slots[i] = s
}

// remove takes a place out, if it is there.
func (x *index) remove(a uint64, p place, digest func(place) uint64) {
	if x.live == 0 {
		return
	}
	n := len(x.slots)
	i := x.home(a)
	for x.slots[i] != uint32(p)+1 {
		if x.slots[i] == 0 {
			return
		}
		if i++; i == n {
			i = 0
		}
	}
	x.live--
	for j := i; ; {
		x.slots[i] = 0
		for {
			if j++; j == n {
				j = 0
			}
			if x.slots[j] == 0 {
				return
			}
			// It may move to the gap unless its home lies behind the gap.
			h := x.home(digest(place(x.slots[j] - 1)))
			if (j-h+n)%n >= (j-i+n)%n {
				break
			}
		}
		x.slots[i] = x.slots[j]
		i = j
	}
}
