package allocsvr

import (
	"context"
	"errors"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// A range leaves for another Set (Directive.frozen) as follows, all its sections
// going on to serve their other keys:
//
//	shut     callers of keys of the range wait for news               (memory)
//	guard    those inside have left
//	close    each key of the range is closed, which yields its exact last number (arena)
//	return   one op a key
//	vacate   one op behind the returns, in the last of their batches or after it: the
//	         session holds nothing of the range
//	free     it was acknowledged: the key's memory is free
//
// The vacation goes with the returns only if the look has found every key of the range
// open to be closed by it. If some were on their way already, or in sections under
// release, they are waited for, and keys of the range are looked for again. And it is
// sent only if each return that it rests on is in front of it in its batch, or was
// accepted before (vacateItem.Fill); one that the state machine refuses has it refuse
// the vacation of the same batch.
//
// What may come in between, and why it does no harm:
//   - A raise under way. From "shut" on nothing is asked for, and what an answer
//     brings is not put where callers find it (extend.go). The store's record then
//     stands at a floor up to which this process issued, and no further: nothing is
//     lost, if the range leaves or if it stays.
//   - A key with an undeclared hole has issued nothing above its floor, and is
//     handed back there. The hole stays undeclared, for the next owner to declare.
//   - A key that is being handed back already (evict.go), since it was idle or in the
//     way, is left to that, and waited for: one hand-back of it is under way at a time.
//   - A section under release takes its keys of the range along. It is waited for.
//   - The process dies. Closed keys are closed in the arena, and none is forgotten
//     before its hand-back was acknowledged. The directive still lists the range when
//     the session resumes, before which nothing is served, and all begins anew. If
//     the range was vacated and is gone by then, its closed keys are returned by the
//     first lap, or a call once the range is back, and the answer frees them: the
//     store has the key's record no more, or knows that it was away since.
//   - The machine dies. The session ends, its epochs uncleanly; the store declares
//     what it may have issued.
//   - The leader stops listing the range: it has thawed, or it is gone. It stays shut
//     until the hand-backs and the vacate are answered. Then the Set map says whether
//     keys are acquired anew, or callers sent away. If the map here is behind, the
//     store refuses: it keeps the ranges, and no key is held.
//   - A hand-back is refused as impossible: nothing is vacated, loudly. The freeze
//     times out.
//
// A request id of a key that left stays in the window of its section, where nobody
// asks for it. The window does not travel to the other Set; so whatever comes into
// a Set begins a new window for its sections (world.gain), and callers are told
// that by window_since.

// freezeRanges brings the freezes forward as far as can be done now.
func (k *keeper) freezeRanges(ctx context.Context) {
	for _, f := range k.freezes.list {
		if f.step() != freezeClose {
			continue
		}
		if k.s.arena.Guard().Wait(ctx) != nil {
			return
		}
		l, items := k.closeRange(f)
		log := k.log.With(zap.Uint64("move", uint64(f.move)), zap.Uint32("part", uint32(f.part)))
		if f.looked(l) == freezeVacate {
			log.Debug("frozen range is vacated", zap.Stringer("range", f.rng), zap.Int("keys", l.closed))
			items = append(items, &vacateItem{k: k, f: f, rests: l.begun})
		} else if f.phase == freezeStuck {
			log.Error("frozen range is not vacated, since the store group's records contradict the arena", zap.Int("keys", l.doubted))
		}
		if k.s.queue.Submit(raise.HandBack, items...) != nil {
			return
		}
	}
}

// closeRange closes the keys of the range, and lists their hand-backs. Nobody is
// inside any more who saw the range open.
func (k *keeper) closeRange(f *freeze) (l look, items []raise.Item) {
	if k.s.cfg.Bugs.ServeFrozen {
		return l, nil
	}
	done := k.returnedTo(f)
	eachSection(f.rng, len(k.w.sections), func(no ids.Section) {
		sec := &k.w.sections[no]
		if k.s.arena.SectionKeys(no) == 0 {
			return
		}
		sec.mu.Lock()
		defer sec.mu.Unlock()
		serving := sec.servingAt(k.w, sec.epoch)
		k.s.arena.Each(no, func(key ids.Key, c arena.Cell) bool {
			switch {
			case !f.rng.Contains(key.Space, key.Position()):
			case !serving:
				l.elsewhere++
			case sec.doubted[key]:
				l.doubted++
			default:
				ev := sec.returning[key]
				if _, hole := sec.holes[key]; ev == nil && !hole {
					if _, bound, _ := c.Load(); bound == 0 {
						// Nothing came of it here. If a raise of it was applied and its
						// answer lost, the store's record stands at its floor.
						c.Close()
						k.s.forgetKey(key)
						return true
					}
				}
				l.closed++
				if ev == nil {
					ev = k.s.closeKey(k.w, sec, key, c)
					items = append(items, ev)
					l.begun = append(l.begun, ev)
				}
				ev.then = append(ev.then, done)
			}
			return true
		})
	})
	return l, items
}

// returnedTo counts hand-backs for a freeze. The keeper hears of them together.
func (k *keeper) returnedTo(f *freeze) func() {
	var n atomic.Int64
	return func() {
		if n.Add(1) == 1 {
			k.event(keeperEvent{then: func() { f.returned(int(n.Swap(0))) }})
		}
	}
}

// vacateItem tells the store that nothing of a frozen range is held.
type vacateItem struct {
	k *keeper
	f *freeze
	// rests are the hand-backs that it follows at once.
	rests []*eviction
}

// Fill implements raise.Item.
func (it *vacateItem) Fill(op *state.Op) bool {
	if it.k.w.lost.Load() {
		return false
	}
	for _, ev := range it.rests {
		if !ev.goesBack() {
			return false
		}
	}
	*op = state.Op{Kind: state.OpVacate, Move: it.f.move, Part: it.f.part}
	return true
}

// Done implements raise.Item. A part that the store refuses is over there, or rests
// on a return that it has refused; then, as when a return could not be sent, the range
// is looked at again.
func (it *vacateItem) Done(res state.OpResult, err error) {
	then := it.f.vacated
	switch {
	case errors.Is(err, raise.ErrClosed):
		return
	case err != nil, res.Refusal == state.RefusedCur:
		then = it.f.again
	case res.Refusal != state.OK && res.Refusal != state.RefusedOldPart:
		it.k.log.Error("vacation refused", zap.Uint64("move", uint64(it.f.move)), zap.Uint32("part", uint32(it.f.part)), zap.Stringer("refusal", res.Refusal))
	}
	it.k.event(keeperEvent{then: then})
}
