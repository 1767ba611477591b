package allocsvr

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
)

// early hands back, of ranges that are to be frozen soon (Directive.leaving), what nobody
// uses, so that the freeze finds little to do. A key goes as any idle one does (evict.go),
// and is acquired again if it is called for. Nothing rests on what comes of it: the freeze
// looks for all that is held (docs/decisions/032).
type early struct {
	s    *Server
	w    *world
	stop context.CancelFunc
	done chan struct{}
	wake chan struct{} // holds one token

	mu sync.Mutex
	// listed are the ranges of the last directive, and next those of them to be seen to.
	listed, next []sets.Range
	// frozen: something is frozen, which goes first.
	frozen bool
}

const (
	// earlyLook is how long a key must stand still to be in nobody's use.
	earlyLook = 20 * time.Millisecond
	// earlyKeys are handed back at once: a freeze waits for no more.
	earlyKeys = 1024
	// earlyMax bounds the keys of a range that are looked at.
	earlyMax = 64 << 10
)

func newEarly(s *Server, w *world) *early {
	ctx, stop := context.WithCancel(context.Background())
	e := &early{s: s, w: w, stop: stop, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	go e.run(ctx)
	return e
}

// close ends the goroutine. What it closed stays so.
func (e *early) close() {
	e.stop()
	<-e.done
}

// directed takes over what the leader wants now. What it has listed before was seen to.
func (e *early) directed(d *seqpb.Directive) {
	listed := make([]sets.Range, 0, len(d.Leaving))
	for _, r := range d.Leaving {
		if r != nil && r.Lo <= r.Last {
			listed = append(listed, rangeOf(r))
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.frozen = len(d.Frozen) > 0
	if !slices.Equal(listed, e.listed) {
		e.listed, e.next = listed, listed
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// take is the next range to be seen to, while nothing is frozen.
func (e *early) take() (r sets.Range, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.frozen || len(e.next) == 0 {
		return r, false
	}
	r, e.next = e.next[0], e.next[1:]
	return r, true
}

func (e *early) run(ctx context.Context) {
	defer close(e.done)
	for {
		if r, ok := e.take(); ok {
			e.handBack(ctx, r)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		}
	}
}

// calm waits while something is frozen; false: it is over.
func (e *early) calm(ctx context.Context) bool {
	for {
		e.mu.Lock()
		frozen := e.frozen
		e.mu.Unlock()
		if ctx.Err() != nil || e.w.lost.Load() {
			return false
		}
		if !frozen {
			return true
		}
		select {
		case <-ctx.Done():
		case <-e.wake:
		}
	}
}

// still is a key with its number at a first look.
type still struct {
	key ids.Key
	cur ids.Seq
}

func (e *early) handBack(ctx context.Context, r sets.Range) {
	keys := e.look(r)
	t := time.NewTimer(earlyLook)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return
	case <-t.C:
	}
	for chunk := range slices.Chunk(keys, earlyKeys) {
		if !e.calm(ctx) {
			return
		}
		items := e.closeStill(chunk)
		if len(items) == 0 {
			continue
		}
		// Cut short only when the world has ended: then none of them is sent.
		_ = e.s.arena.Guard().Wait(ctx)
		if e.s.queue.Submit(raise.HandBack, items...) != nil {
			return
		}
		for _, it := range items {
			select {
			case <-it.(*eviction).done:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (e *early) look(r sets.Range) (out []still) {
	eachSection(r, len(e.w.sections), func(no ids.Section) {
		if !e.w.sections[no].open.Load() || e.s.arena.SectionKeys(no) == 0 {
			return
		}
		e.s.arena.Each(no, func(k ids.Key, c arena.Cell) bool {
			if r.Contains(k.Space, k.Position()) {
				cur, _, _ := c.Load()
				out = append(out, still{k, cur})
			}
			return len(out) < earlyMax
		})
	})
	return out
}

// closeStill closes those that stood still, and lists their returns.
func (e *early) closeStill(keys []still) (items []raise.Item) {
	defer e.s.arena.Guard().Enter().Exit()
	var held []arena.Held
	for len(keys) > 0 {
		sec := e.w.section(keys[0].key)
		held = held[:0]
		for len(keys) > 0 && e.w.section(keys[0].key) == sec {
			if c, ok := e.s.arena.Find(keys[0].key); ok {
				if cur, _, _ := c.Load(); cur == keys[0].cur {
					held = append(held, arena.Held{Key: keys[0].key, Cell: c})
				}
			}
			keys = keys[1:]
		}
		items = append(items, e.s.closeCold(e.w, sec, held)...)
	}
	return items
}
