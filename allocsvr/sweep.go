package allocsvr

import (
	"context"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
)

// sweeper looks at the keys of one world, lap after lap, and hands those back that
// are idle, or that must go for want of room. One goroutine does all of it, so much
// at a time: it holds no lock for longer than a page, and callers never wait for it
// but for room, or for a key that it closed.
type sweeper struct {
	s    *Server
	w    *world
	stop context.CancelFunc
	done chan struct{}
	wake chan struct{} // holds one token: room is wanted

	// The goroutine's own:
	pace    pace
	begun   time.Time
	lapped  time.Time // when the last lap that ages began
	lapping bool
	aging   bool // this lap ages
	pressed bool
	crowded bool
	// closed is how many keys were; leaving has, for each page that was closed whole and
	// is on its way out, how many it was then.
	closed  int64
	leaving []int64
	// sec comes next, and so many after it, in this lap: the last one ended there. A
	// lap that is for room only stops where there is enough, so each page is tried in its turn.
	sec, left int
	shelves   []arena.Shelf
	held      []arena.Held
	picked    []arena.Held
}

const (
	// sweepShelves and sweepKeys bound what one step looks at and closes.
	sweepShelves = 256
	sweepKeys    = 4096
	// returningMax bounds the keys on their way out: what one batch holds, twice.
	returningMax = 2 * raise.DefaultBatchOps
	// sweepTick is the time between steps, sweepHurry that when room is wanted.
	sweepTick  = time.Second
	sweepHurry = 5 * time.Millisecond
)

func newSweeper(s *Server, w *world) *sweeper {
	ctx, stop := context.WithCancel(context.Background())
	v := &sweeper{
		s: s, w: w, stop: stop, done: make(chan struct{}), wake: make(chan struct{}, 1),
		pace: newPace(s.cfg.IdleAfter), begun: time.Now(),
	}
	go v.run(ctx)
	return v
}

// close ends the goroutine. What it closed stays so.
func (v *sweeper) close() {
	v.stop()
	<-v.done
}

// hurry: somebody waits for room.
func (v *sweeper) hurry() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

func (v *sweeper) run(ctx context.Context) {
	defer close(v.done)
	tick := sweepTick
	if idle := v.s.cfg.IdleAfter; idle > 0 {
		tick = max(min(tick, idle/16), time.Millisecond)
	}
	t := time.NewTimer(tick)
	defer t.Stop()
	var stepped time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-v.wake:
			// Room is no sooner there for asking more often.
			if rest := sweepHurry - time.Since(stepped); rest > 0 {
				t.Reset(rest)
				continue
			}
		}
		stepped = time.Now()
		if !v.w.lost.Load() {
			v.step(ctx)
		}
		if v.pressed || v.s.line.crowded.Load() > 0 {
			t.Reset(min(tick, sweepHurry))
		} else {
			t.Reset(tick)
		}
	}
}

// step looks at some shelves, if it is time to, and hands back what should go.
func (v *sweeper) step(ctx context.Context) {
	v.crowded = v.s.line.crowded.Load() > 0
	// Each step looks anew: pages may have passed their grace since they were freed.
	if v.s.arena.Room() > 0 && v.crowded {
		v.s.line.next()
	}
	keys, used, limit := v.s.arena.Usage()
	g := waterMarkOf(limit, v.s.cfg.ArenaHighWater)
	// Keys are handed back in the order in which they were closed.
	for back := v.closed - v.s.count.returning.Load(); len(v.leaving) > 0 && v.leaving[0] <= back; {
		v.leaving = v.leaving[1:]
	}
	v.pressed = v.s.cfg.ArenaHighWater >= 0 && (g.pressed(v.pressed, keys, used, limit) || v.crowded && used > g.low)
	now := time.Now()
	due := v.lapped.IsZero() || now.Sub(v.lapped) >= v.pace.lapEvery(v.pressed)
	if due && !v.aging || !v.lapping && v.pressed && (v.crowded || !v.pace.spent) {
		v.lapping, v.aging, v.left, v.shelves = true, due, len(v.w.sections), nil
		v.pace.began(due)
		if due {
			v.lapped = now
		}
	}
	var items []raise.Item
	for n := 0; v.lapping && n < sweepShelves && len(items) < sweepKeys && v.s.count.returning.Load() < returningMax; n++ {
		room := v.pressed && used-int64(len(v.leaving)) > g.low
		if !room && !v.aging {
			break
		}
		sh, ok := v.next()
		if !ok {
			v.pace.ended(now.Sub(v.begun), v.aging, v.crowded)
			v.lapping, v.aging = false, false
			break
		}
		items = append(items, v.look(sh, now.Sub(v.begun), room)...)
	}
	if len(items) == 0 {
		return
	}
	// Cut short only when the world has ended: then none of them is sent.
	_ = v.s.arena.Guard().Wait(ctx)
	// On failure the queue has closed, and so does all else.
	_ = v.s.queue.Submit(raise.HandBack, items...)
}

// next is the shelf to look at; false at the end of a lap.
func (v *sweeper) next() (arena.Shelf, bool) {
	for len(v.shelves) == 0 {
		if v.left == 0 {
			return arena.Shelf{}, false
		}
		sec := &v.w.sections[v.sec]
		v.sec, v.left = (v.sec+1)%len(v.w.sections), v.left-1
		if sec.open.Load() {
			v.shelves = v.s.arena.Shelves(sec.no)
		}
	}
	sh := v.shelves[0]
	v.shelves = v.shelves[1:]
	return sh, true
}

// look ages the keys of a shelf and closes those that should go; room: the page should, if it is old.
func (v *sweeper) look(sh arena.Shelf, now time.Duration, room bool) []raise.Item {
	defer v.s.arena.Guard().Enter().Exit()
	v.held, v.picked = v.held[:0], v.picked[:0]
	open, youngest := false, arena.AgeMax
	sh.Look(v.aging, func(h arena.Held) {
		v.held = append(v.held, h)
		if !h.Closed {
			open, youngest = true, min(youngest, h.Age)
		}
	})
	whole := room && open && v.pace.old(youngest, v.crowded)
	if whole {
		sh.Leave()
	} else if open {
		v.pace.stays(youngest)
	}
	for _, h := range v.held {
		if whole || h.Closed || v.pace.idle(h.Age, now) {
			v.picked = append(v.picked, h)
		}
	}
	if len(v.picked) == 0 {
		return nil
	}
	items := v.s.closeCold(v.w, &v.w.sections[sh.Section()], v.picked)
	v.closed += int64(len(items))
	if whole {
		v.leaving = append(v.leaving, v.closed)
	}
	return items
}
