package storesvr

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// ahead brings slices of a move to the target before their parts are opened. It is
// at most two slices ahead of the part at hand, and rests while that one is frozen:
// what is frozen goes first. What it could not bring comes with the part.
type ahead struct {
	// slices is closed when there are no more, or one could not be brought.
	slices chan *slice
	cancel context.CancelFunc
}

// begin starts it on what is left of a move; stop ends it.
func (v *mover) beginAhead(left []sets.Range) *ahead {
	ctx, cancel := context.WithCancel(v.l.ctx)
	a := &ahead{slices: make(chan *slice), cancel: cancel}
	go func() {
		defer close(a.slices)
		for _, r := range left {
			for {
				s, err := v.bring(ctx, r)
				if err != nil {
					return // the mover meets the same error, in its turn, and tells it
				}
				select {
				case a.slices <- s:
				case <-ctx.Done():
					return
				}
				if s.r.Last == r.Last {
					break
				}
				r.Lo = s.r.Last + 1
			}
		}
	}()
	return a
}

func (a *ahead) stop() {
	if a == nil {
		return
	}
	a.cancel()
	for range a.slices { //nolint:revive // it is over when it is closed
	}
}

// ready is the next slice, if it is there; nil else.
func (a *ahead) ready() *slice {
	if a == nil {
		return nil
	}
	select {
	case s := <-a.slices:
		return s
	default:
		return nil
	}
}

// bring copies a slice to the target, ahead of its part.
func (v *mover) bring(ctx context.Context, left sets.Range) (*slice, error) {
	s, err := v.copySlice(ctx, left)
	if err == nil && s.muchHeld(s.held) {
		s, err = v.callIn(ctx, s)
	}
	if err != nil {
		return nil, err
	}
	err = sendChunks(s.records, func(chunk []state.KeyedRecord) error {
		if err := v.rest.wait(ctx); err != nil {
			return err
		}
		return v.commandIn(ctx, v.to, state.Preload{Move: v.id, Range: s.r, From: v.from, Records: chunk})
	})
	s.there = err == nil
	return s, err
}

// endAhead forgets what was brought: the next part is copied anew.
func (v *mover) endAhead() {
	v.ahead.stop()
	v.ahead, v.next = nil, nil
}

// nextSlice is the copy of the next part, which begins where the range does.
func (v *mover) nextSlice(left sets.Range) (*slice, error) {
	s := v.next
	if v.next = nil; s == nil && v.ahead != nil {
		s = <-v.ahead.slices
	}
	if s != nil && s.begins(left) {
		// It was read when parts were larger.
		v.next = s.split(int(v.size.keys.Load()))
		return s, nil
	}
	v.endAhead()
	return v.copySlice(v.l.ctx, left)
}

// copyOf is the copy of the open part.
func (v *mover) copyOf(m *sets.Move) (*slice, error) {
	for _, s := range []*slice{v.cur, v.next} {
		if s == nil || s.r != m.PartRange || s.part != 0 && s.part != m.Part {
			continue
		}
		if s == v.next {
			v.next = nil
		}
		s.part = m.Part
		v.cur = s
		return s, nil
	}
	// Another leader opened it, or it was read before a failure.
	v.endAhead()
	s, err := v.copyRange(v.l.ctx, m.PartRange)
	if err != nil {
		return nil, err
	}
	s.part = m.Part
	v.cur = s
	return s, nil
}

// begins: it is a slice from the beginning of the range.
func (s *slice) begins(r sets.Range) bool { return s.r.Lo == r.Lo && r.Covers(s.r) }

// restOf is what is left of a move after the part at hand.
func restOf(m *sets.Move) []sets.Range {
	left := m.Left()
	if m.PartRange.Last == left[0].Last {
		return left[1:]
	}
	left[0].Lo = m.PartRange.Last + 1
	return left
}

// rest holds up waits while it is on.
type rest struct {
	mu   sync.Mutex
	over chan struct{}
}

func (r *rest) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over == nil {
		r.over = make(chan struct{})
	}
}

func (r *rest) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over != nil {
		close(r.over)
		r.over = nil
	}
}

func (r *rest) wait(ctx context.Context) error {
	r.mu.Lock()
	over := r.over
	r.mu.Unlock()
	if over == nil {
		return ctx.Err()
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// freezeSteps are how long the steps of a freeze took.
type freezeSteps struct {
	freeze, vacate, compare, commit time.Duration
	at                              time.Time
}

// passed is how long it is since the step before.
func (f *freezeSteps) passed() time.Duration {
	now := time.Now()
	d := now.Sub(f.at)
	f.at = now
	return d
}

// growing is what grows with the part: vacating and comparing, beyond what they take
// of any part, which is about a commit each.
func (f *freezeSteps) growing() time.Duration {
	return max(0, f.vacate+f.compare-2*f.freeze)
}

// A part is as large as it can be for what grows with it of the time that it is frozen.
const (
	partAim = 12 * time.Millisecond
	// partSlow is far too long for a part to be frozen, whatever it was that took so long.
	partSlow = 75 * time.Millisecond
	// partLeast: below it a part only has the cost that any part has.
	partLeast = 1024
	// partFirst is the size of a move's first part, of which nothing is known.
	partFirst = 2048
)

// partSize is how many keys the next parts of a move are to have.
type partSize struct {
	most int
	// ceiling holds the size down after a part that was slow, and rises slowly.
	ceiling int
	keys    atomic.Int64
}

func (p *partSize) begin(most int) {
	p.most, p.ceiling = most, most
	p.keys.Store(int64(min(partFirst, most)))
}

// note learns from a part of so many keys that was frozen for so long; growing is how
// much of that grew with the part.
func (p *partSize) note(keys uint64, growing, frozen time.Duration) {
	now := int(p.keys.Load())
	if slow := frozen > partSlow || growing > 2*partAim; slow {
		p.ceiling = min(max(now/2, partLeast), p.most)
	} else {
		p.ceiling = min(p.ceiling+p.ceiling/8, p.most)
	}
	p.keys.Store(int64(min(nextPartSize(now, p.most, int(keys), growing), p.ceiling)))
}

// nextPartSize goes for the aim, by no more than to the half or fourfold at once. A part of
// fewer keys than it might have had says nothing in favour of larger ones.
func nextPartSize(now, most, keys int, took time.Duration) int {
	next := now
	switch {
	case took > partAim:
		next = max(now/2, int(int64(now)*int64(partAim)/int64(took)))
	case keys >= now/2 && took > 0:
		next = min(4*now, int(int64(now)*int64(partAim)/int64(took)))
	case keys >= now/2:
		next = 4 * now
	}
	return min(max(next, partLeast), most)
}
