package storesvr

import (
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/disk"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// sweepAfter is how long ranges must have stayed as they are: a move goes first.
	sweepAfter = 5 * time.Second
	// sweepPage keys are forgotten at once, and sweepPause follows.
	sweepPage  = 1024
	sweepPause = 50 * time.Millisecond
)

// sweepLoop forgets, in the background, what is left of ranges that went away.
// It does not matter when, or whether: leftovers are never served.
func (l *leadership) sweepLoop() {
	var swept []sets.Range
	done := false
	for l.ctx.Err() == nil {
		changed := l.n.changed.wait()
		own, idle := l.sweepable()
		if !idle || done && slices.Equal(own, swept) {
			select {
			case <-l.ctx.Done():
			case <-changed:
			}
			continue
		}
		if !pause(l.ctx, sweepAfter) {
			return
		}
		if now, idle := l.sweepable(); !idle || !slices.Equal(own, now) {
			continue
		}
		n, err := l.sweep(own)
		switch {
		case err != nil && l.ctx.Err() == nil:
			l.log.Warn("sweeping failed", zap.Error(err))
			pause(l.ctx, settleRetry)
		case err == nil:
			swept, done = own, true
			if n > 0 {
				l.log.Info("leftovers of moved ranges swept", zap.Int("keys", n))
			}
		}
	}
}

// sweepable: nothing is coming in.
func (l *leadership) sweepable() (own []sets.Range, idle bool) {
	idle = true
	_ = l.n.fsm.read(func(st *state.State) {
		own = st.Meta.Ranges
		for _, in := range st.Meta.In {
			idle = idle && in.Phase != state.InImporting
		}
	})
	return own, idle
}

func (l *leadership) sweep(own []sets.Range) (swept int, err error) {
	n := l.n
	var spaces []ids.Space
	var sections uint32
	if err := n.fsm.read(func(st *state.State) { spaces, sections = st.Meta.Genesis.Spaces, st.Meta.Genesis.Sections }); err != nil {
		return 0, err
	}
	for _, gone := range notIn(sets.WholeSpaces(spaces), own) {
		for after, done := (ids.Key{}), false; !done; {
			var page []disk.KeyRecord
			if page, after, done, err = n.fsm.scan(disk.Filter{Within: &gone, Sections: sections}, after, sweepPage); err != nil {
				return swept, err
			}
			if len(page) == 0 {
				continue
			}
			c := state.Sweep{Keys: make([]ids.Key, 0, len(page))}
			for _, kr := range page {
				c.Keys = append(c.Keys, kr.Key)
			}
			rep, err := n.propose(l.ctx, c)
			if err != nil {
				return swept, err
			}
			if rep.Refusal != state.OK {
				return swept, nil // the ranges have changed: begin again
			}
			swept += len(page)
			if !pause(l.ctx, sweepPause) {
				return swept, l.ctx.Err()
			}
		}
	}
	return swept, nil
}

func notIn(all, own []sets.Range) []sets.Range {
	for _, r := range own {
		all = sets.Without(all, r)
	}
	return all
}
