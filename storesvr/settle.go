package storesvr

import (
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/disk"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// settlePage is how many keys at risk are looked up at once.
	settlePage = 4096
	// settlePause follows each page, so that settling never crowds out serving.
	settlePause = 10 * time.Millisecond
	settleRetry = time.Second
)

// uncleanEpoch is an epoch of a section that ended without a hand-back.
type uncleanEpoch struct {
	section ids.Section
	epoch   ids.Epoch
}

// settleLoop declares, in the background, the holes of epochs that ended
// uncleanly, so that the lists of such epochs stay short.
func (l *leadership) settleLoop() {
	for l.ctx.Err() == nil {
		changed := l.n.changed.wait()
		todo := l.unclean()
		if len(todo) == 0 {
			select {
			case <-l.ctx.Done():
			case <-changed:
			}
			continue
		}
		if err := l.settle(todo); err != nil && l.ctx.Err() == nil {
			l.log.Warn("settling failed", zap.Error(err))
			pause(l.ctx, settleRetry)
		}
	}
}

func (l *leadership) unclean() map[uncleanEpoch]bool {
	todo := map[uncleanEpoch]bool{}
	// A failed state machine is reported by itself.
	_ = l.n.fsm.read(func(st *state.State) {
		for i := range st.Meta.Sections {
			for _, e := range st.Meta.Sections[i].Unclean {
				todo[uncleanEpoch{ids.Section(i), e}] = true
			}
		}
	})
	return todo
}

// settle goes once over the keys. All epochs of todo are over, and no record
// ever joins a past epoch, so one pass finds all there are.
func (l *leadership) settle(todo map[uncleanEpoch]bool) error {
	f := disk.Filter{Of: map[ids.Section]bool{}, Match: func(sec ids.Section, r state.Record) bool {
		return r.Floor < r.Bound && todo[uncleanEpoch{sec, r.Epoch}]
	}}
	for u := range todo {
		f.Of[u.section] = true
	}
	if err := l.n.fsm.read(func(st *state.State) { f.Sections = st.Meta.Genesis.Sections }); err != nil {
		return err
	}
	began, keys := time.Now(), 0
	for after, done := (ids.Key{}), false; !done; {
		var page []disk.KeyRecord
		var err error
		if page, after, done, err = l.n.fsm.scan(f, after, settlePage); err != nil {
			return err
		}
		found := map[uncleanEpoch][]ids.Key{}
		for _, kr := range page {
			u := uncleanEpoch{kr.Key.Section(f.Sections), kr.Record.Epoch}
			found[u] = append(found[u], kr.Key)
		}
		keys += len(page)
		for _, u := range sortedUnclean(found) {
			if _, err := l.n.propose(l.ctx, state.Settle{Section: u.section, Epoch: u.epoch, Keys: found[u]}); err != nil {
				return err
			}
		}
		if !done && !pause(l.ctx, settlePause) {
			return l.ctx.Err()
		}
	}
	for _, u := range sortedUnclean(todo) {
		if _, err := l.n.propose(l.ctx, state.Settle{Section: u.section, Epoch: u.epoch, Done: true}); err != nil {
			return err
		}
	}
	l.log.Info("unclean epochs settled", zap.Int("epochs", len(todo)), zap.Int("keys", keys), zap.Duration("took", time.Since(began)))
	return nil
}
