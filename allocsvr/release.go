package allocsvr

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/handover"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// Handing a section back goes
//
//	shut       callers are turned away           (memory)
//	guard      those inside have left
//	close      the section is closed for good    (arena)
//	           each key is closed, which yields its exact last number
//	window     what is remembered of request ids goes to the next owner
//	return     one op a key
//	release    one op, in the last of these batches or after it: the epoch is
//	           over, cleanly, and the next owner has the section
//	forget     all of it was acknowledged: the keys' memory is free
//
// A process that dies before "close" left a section that its successor goes on
// serving: nothing was sent. One that dies after it left a closed section, which
// its successor hands back anew: everything sent may be repeated.
//
// A return that the state machine refuses as impossible must keep the epoch from
// ending cleanly. In the same batch the state machine sees to that, in a later
// one release.doubt does.
//
// Sections close in groups of up to groupKeys keys, and the next group closes when
// the last one is handed back: a section is frozen for about one batch, however
// much there is to move. Closing a group ahead, so that its batch is ready when
// the last one is answered, would move more in a second and double that time.
const (
	groupKeys     = 1024
	groupSections = 256
)

// release is the hand-back of one section in one epoch.
type release struct {
	s     *Server
	w     *world
	sec   ids.Section
	epoch ids.Epoch
	ops   int
	// doubt: a return was refused as impossible.
	doubt atomic.Bool
	// abandoned is for Bugs.ReopenClosing.
	abandoned atomic.Bool
}

// startReleases closes the next group of the sections if none is being handed
// back, and sends its keys. The others keep serving until their turn.
func (k *keeper) startReleases(ctx context.Context, secs []ids.Section, next map[ids.Section]handover.Target) {
	if len(secs) > 0 && k.outstanding == 0 {
		n, keys := 0, 0
		for n < len(secs) && n < groupSections {
			keys += int(k.s.arena.SectionKeys(secs[n]))
			if n > 0 && keys > groupKeys {
				break
			}
			n++
		}
		k.closeGroup(ctx, secs[:n], next)
	}
}

func (k *keeper) closeGroup(ctx context.Context, secs []ids.Section, next map[ids.Section]handover.Target) {
	bugs := &k.s.cfg.Bugs
	if !bugs.HandBackBeforeClose {
		for _, no := range secs {
			k.w.sections[no].shut()
			k.log.Debug("section shut", zap.Uint32("section", uint32(no)))
		}
		if k.s.arena.Guard().Wait(ctx) != nil {
			return
		}
	}
	var along []handover.Item
	for _, no := range secs {
		_, e := k.w.sections[no].state()
		rel := &release{s: k.s, w: k.w, sec: no, epoch: e}
		k.releases[no] = rel
		items := k.closeKeys(rel)
		rel.ops = len(items)
		k.outstanding += rel.ops
		k.log.Debug("section closed", zap.Uint32("section", uint32(no)), zap.Uint64("epoch", uint64(e)), zap.Int("keys", rel.ops-1))
		if to := next[no]; k.goesAlong(rel, to) {
			along = append(along, handover.Item{Section: no, Target: to, Then: items})
		} else if k.s.queue.Submit(raise.HandBack, items...) != nil {
			return
		}
	}
	if len(along) > 0 {
		k.carrier.Carry(along)
	}
}

// closeKeys closes the section in the arena and all its keys, and lists their hand-backs and the release.
func (k *keeper) closeKeys(rel *release) []raise.Item {
	bugs := &k.s.cfg.Bugs
	sloppy := bugs.HandBackBeforeClose || bugs.ReopenClosing
	if !sloppy {
		k.s.arena.CloseSection(rel.sec)
	}
	items := make([]raise.Item, 0, k.s.arena.SectionKeys(rel.sec)+1)
	k.s.arena.Each(rel.sec, func(key ids.Key, c arena.Cell) bool {
		cur, bound, _ := c.Load()
		if bound == 0 {
			// Nothing was ever issued from it. If a raise of it was applied and
			// its answer lost, the clean mark of the release covers it.
			return true
		}
		if !sloppy {
			cur = c.Close()
		}
		items = append(items, &returnItem{rel: rel, key: key, cur: cur})
		return true
	})
	if bugs.ForgetBeforeAck {
		k.s.arena.FreeSection(rel.sec)
	}
	return append(items, (*releaseItem)(rel))
}

// reopen is what must never be done: see Bugs.ReopenClosing.
func (k *keeper) reopen(rel *release) {
	rel.abandoned.Store(true)
	delete(k.releases, rel.sec)
	k.outstanding -= rel.ops
	k.w.sections[rel.sec].start(k.w, rel.epoch)
}

// released: the store has answered the last op, or will not get it.
func (k *keeper) released(ctx context.Context, rel *release) {
	if k.releases[rel.sec] != rel {
		return
	}
	k.outstanding -= rel.ops
	log := k.log.With(zap.Uint32("section", uint32(rel.sec)), zap.Uint64("epoch", uint64(rel.epoch)))
	if rel.doubt.Load() {
		k.doubted(ctx, rel.sec, log)
		return
	}
	if k.s.cfg.Bugs.HandBackBeforeClose {
		k.w.sections[rel.sec].shut()
	}
	log.Debug("section released", zap.Int("keys", rel.ops-1))
	k.s.count.released.Add(1)
	k.forget(rel.sec, rel.epoch)
}

const (
	// doubtTries: a release that ended in doubt so many times in a row will not end well.
	doubtTries = 3
	doubtPause = time.Second
)

// doubted: the store group's records contradict the arena. Were the section
// released, its epoch would end cleanly on a number that is not true; were it kept
// closed, it would be served by nobody and a drain would never end. So the release
// is tried again, in case that whoever wrote the record did not see to the end of
// it; and when that does not help, the whole session is given up: a memory that is
// wrong about one key is not to be trusted with others. It costs each key what the
// loss of a machine does, declared.
func (k *keeper) doubted(ctx context.Context, no ids.Section, log *zap.Logger) {
	k.doubts[no]++
	if k.doubts[no] < doubtTries {
		log.Error("section stays closed, since the store group's records contradict the arena; its release is tried again", zap.Int("tries", k.doubts[no]))
		k.retry.Reset(doubtPause)
		return
	}
	log.Error("session is given up, since the store group's records contradict the arena: its sections go to others as after the loss of a machine")
	if !k.s.session.Abandon(fmt.Sprintf("section %d cannot be handed back: the store group's records contradict the arena", no)) {
		k.retry.Reset(doubtPause)
	}
}

// retryDoubtful has the directive carried out again for sections in doubt.
func (k *keeper) retryDoubtful() {
	for no := range k.doubts {
		if rel := k.releases[no]; rel != nil && rel.doubt.Load() {
			delete(k.releases, no)
		}
	}
}

// current: what is left of the release is still to be sent.
func (rel *release) current() bool { return !rel.w.lost.Load() && !rel.abandoned.Load() }

// returnItem hands one key back.
type returnItem struct {
	rel  *release
	key  ids.Key
	cur  ids.Seq
	sent bool
}

// Fill implements raise.Item.
func (it *returnItem) Fill(op *state.Op) bool {
	if !it.rel.current() || it.sent && it.rel.s.cfg.Bugs.ForgetBeforeAck {
		return false
	}
	it.sent = true
	*op = state.Op{Kind: state.OpReturn, Epoch: it.rel.epoch, Key: it.key, Cur: it.cur}
	return true
}

// Done implements raise.Item.
func (it *returnItem) Done(res state.OpResult, err error) {
	if err != nil {
		return
	}
	switch res.Refusal {
	case state.OK:
	case state.RefusedNotOwner, state.RefusedEpoch:
		// Released already, and the answer was lost; or never ours.
	default:
		it.rel.s.log.Error("hand-back refused", zap.Stringer("key", it.key), zap.Stringer("refusal", res.Refusal),
			zap.Uint64("cur", uint64(it.cur)), zap.Uint64("floor", uint64(res.Floor)), zap.Uint64("bound", uint64(res.Bound)))
		it.rel.doubt.Store(true)
	}
}

// releaseItem is the last op of a release.
type releaseItem release

// Fill implements raise.Item.
func (it *releaseItem) Fill(op *state.Op) bool {
	rel := (*release)(it)
	if !rel.current() || rel.doubt.Load() {
		return false
	}
	*op = state.Op{Kind: state.OpRelease, Epoch: rel.epoch, Section: rel.sec}
	return true
}

// Done implements raise.Item.
func (it *releaseItem) Done(res state.OpResult, err error) {
	rel := (*release)(it)
	if !rel.current() || errors.Is(err, raise.ErrClosed) {
		return
	}
	switch res.Refusal {
	case state.OK, state.RefusedNotOwner, state.RefusedEpoch:
		// The latter two: see returnItem.
	default:
		rel.s.log.Error("release refused", zap.Uint32("section", uint32(rel.sec)), zap.Stringer("refusal", res.Refusal))
		rel.doubt.Store(true)
	}
	rel.w.keeper.event(keeperEvent{sec: rel.sec, epoch: rel.epoch, rel: rel})
}
