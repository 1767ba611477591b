package allocsvr

import (
	"cmp"
	"container/list"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// line is where requests stand that need room in a full arena. Room is given to one
// of them at a time: who has its turn takes as much as it can use, and gives the
// turn on if that was not all there was; else it stands at the end again. So a page
// that comes free has one request look at keys, however many wait, and a request
// for one key does not wait for all of a large one's. Who comes anew takes no page
// before those in line.
type line struct {
	// crowded requests have keys for which they wait for room, in line or just having their turn.
	crowded atomic.Int64
	mu      sync.Mutex
	waiting list.List // of *place
}

// place in the line; turn is closed when it is at the front and there may be room.
type place struct {
	at   *list.Element // nil once it had its turn
	turn chan struct{}
}

func (l *line) join() *place {
	p := &place{turn: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	p.at = l.waiting.PushBack(p)
	return p
}

// leave reports whether it is the place's turn.
func (l *line) leave(p *place) (turn bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.at == nil {
		return true
	}
	l.waiting.Remove(p.at)
	p.at = nil
	return false
}

// next gives the first in line its turn.
func (l *line) next() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if first := l.waiting.Front(); first != nil {
		p := l.waiting.Remove(first).(*place)
		p.at = nil
		close(p.turn)
	}
}

// parkedLookEvery is how often a request looks at all of its parked asks: meanwhile
// there may be room for some that is of no use to others.
const parkedLookEvery = 250 * time.Millisecond

// parked are the asks of one request that wait for room in the arena. They are not
// looked at again before it has its turn: a request may have thousands of them, and
// a page that came free is enough for a few.
//
// Of one key's asks none is parked before one that is not.
type parked struct {
	s *Server
	w *world
	// asks that are parked; those that one page serves lie together, each key's in their order.
	asks []int
	// fresh were parked in this round, and come to the others at its end; behind finds the keys of them.
	fresh  []int
	behind behind
	// mayTake pages; until there was none, or because the request has its turn.
	mayTake bool
	turn    bool
	// late is the failure of those for which there is no room in time.
	late   *Failure
	lookAt time.Time
	in     bool // counted in line.crowded
}

// begin a round. turn: the request has its turn.
func (p *parked) begin(turn bool) {
	p.turn, p.mayTake = turn, turn || p.s.line.crowded.Load() == 0
	p.fresh, p.behind = p.fresh[:0], behind{}
}

// park an ask, for want of a page.
func (p *parked) park(i int, late *Failure) {
	p.fresh = append(p.fresh, i)
	p.full(late)
}

func (p *parked) full(late *Failure) {
	p.mayTake, p.turn = false, false
	if late != nil {
		p.late = late
	}
}

// end a round: what is left of the turn is another's.
func (p *parked) end(asks []ask) {
	if p.turn {
		p.turn = false
		p.s.line.next()
	}
	if len(p.fresh) > 0 {
		p.asks = append(p.asks, p.fresh...)
		sections := uint32(len(p.w.sections))
		slices.SortFunc(p.asks, func(i, j int) int {
			a, b := asks[i].key, asks[j].key
			return cmp.Or(cmp.Compare(a.Space, b.Space), cmp.Compare(pageOf(a, sections), pageOf(b, sections)), cmp.Compare(i, j))
		})
	}
	switch crowded := len(p.asks) > 0; {
	case crowded && !p.in:
		p.s.line.crowded.Add(1)
		p.w.sweeper.hurry()
		p.lookAt = time.Now().Add(parkedLookEvery)
	case !crowded && p.in:
		p.s.line.crowded.Add(-1)
	}
	p.in = len(p.asks) > 0
}

// pageOf a key differs for keys that do not share pages; names share those of their section.
func pageOf(k ids.Key, sections uint32) uint64 {
	if k.Lo != 0 {
		return uint64(k.Section(sections))
	}
	return k.Hi >> ids.BlockShift
}

// unpark moves the asks to cold that have more to wait for than room, or, now and
// then, all.
func (p *parked) unpark(cold []int, asks []ask) []int {
	if len(p.asks) == 0 {
		return cold
	}
	all := !p.s.session.Alive()
	if now := time.Now(); !now.Before(p.lookAt) {
		all, p.lookAt = true, now.Add(parkedLookEvery)
	}
	ours := p.w.ranges.Load()
	rest := p.asks[:0]
	for _, i := range p.asks {
		if k := asks[i].key; all || !p.w.section(k).open.Load() || !ours.has(k) {
			cold = append(cold, i)
		} else {
			rest = append(rest, i)
		}
	}
	p.asks = rest
	return cold
}

// fail the asks: their caller's time ran out, or the process ends.
func (p *parked) fail(out []answer, stopping bool) {
	late := p.late
	switch {
	case stopping:
		late = errStopping
	case late == nil:
		late = errCrowded
	}
	for _, i := range p.asks {
		out[i].fail = late
	}
	p.asks = p.asks[:0]
}

// leave ends it; the asks that are still parked have failed.
func (p *parked) leave() {
	if p.in {
		p.in = false
		p.s.line.crowded.Add(-1)
	}
}
