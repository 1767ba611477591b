package allocsvr

import (
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// Handing one key back, while its section goes on serving, goes
//
//	close    the key is closed (arena), which yields its exact last number
//	guard    those who may still hold its cell have left
//	return   one op
//	forget   it was acknowledged: the key's memory is free, and the next call for
//	         the key acquires it anew, at the number after the last
//
// From "close" to "forget" the key is in section.returning. No raise of it is
// asked for meanwhile, so the return is the last op on the key until it is
// acknowledged; callers wait for that. A sweep closes no key under a raise; what a
// freeze does about those, see freeze.go.
//
// A process that dies in between leaves a closed key in an open section. Its
// successor finds it so, at a call for it or in its first lap, and returns it anew,
// which does no harm if the first return was applied.
//
// A section that is closed takes its closed keys along: its release lists them
// again, and what is left here of their returns is moot.
type eviction struct {
	s     *Server
	w     *world
	sec   *section
	key   ids.Key
	epoch ids.Epoch
	cur   ids.Seq
	sent  bool // for Bugs.ForgetBeforeAck
	// back: the return is in the batch at hand, or was accepted; guarded by sec.mu.
	back bool
	// done is closed when the key may be asked for again.
	done chan struct{}
	// then is called at the end; guarded by sec.mu until it is.
	then []func()
}

// closeCold closes those of the keys that may be handed back now, and lists their
// returns, to be submitted after the guard's grace. It needs the guard.
func (s *Server) closeCold(w *world, sec *section, held []arena.Held) (items []raise.Item) {
	sec.mu.Lock()
	defer sec.mu.Unlock()
	if !sec.servingAt(w, sec.epoch) {
		return nil
	}
	for _, h := range held {
		if sec.extending[h.Key] != nil || sec.returning[h.Key] != nil || sec.doubted[h.Key] {
			continue
		}
		// Found anew: since the look the key may have been forgotten and acquired again.
		cell, ok := s.arena.Find(h.Key)
		if !ok {
			continue
		}
		if _, bound, _ := cell.Load(); bound == 0 {
			// Nothing was issued from it in this epoch, or StoreSvr knows of all that
			// was; a hole that nobody was told of yet is answered again.
			delete(sec.holes, h.Key)
			s.forgetKey(h.Key)
			continue
		}
		items = append(items, s.closeKey(w, sec, h.Key, cell))
	}
	return items
}

// closeKey begins the hand-back of one key. It needs sec.mu, with the section
// serving, and the guard. The guard's grace is for the caller to see to, before it
// submits.
func (s *Server) closeKey(w *world, sec *section, k ids.Key, c arena.Cell) *eviction {
	ev := &eviction{s: s, w: w, sec: sec, key: k, epoch: sec.epoch, done: make(chan struct{})}
	bugs := &s.cfg.Bugs
	if bugs.HandBackBeforeClose {
		ev.cur, _, _ = c.Load()
	} else {
		ev.cur = c.Close()
	}
	if h, ok := sec.holes[k]; ok {
		// Nothing was issued above its floor.
		ev.cur = h.floor
		delete(sec.holes, k)
	}
	s.count.returning.Add(1)
	if bugs.ForgetBeforeAck {
		s.forgetKey(k)
		close(ev.done)
		return ev
	}
	sec.returning[k] = ev
	return ev
}

// forgetKey frees the memory of a key, open or not. Those who watch the key and do
// not find it are told before, so that they know when to read it again. It needs
// sec.mu of the key's section.
func (s *Server) forgetKey(k ids.Key) {
	s.forgotten.of(k).Add(1)
	s.arena.Free(k)
}

// Fill implements raise.Item. A key of which nothing is known has nothing to hand
// back: what the store has of it stands at its floor.
func (ev *eviction) Fill(op *state.Op) bool {
	ev.sec.mu.Lock()
	defer ev.sec.mu.Unlock()
	ev.back = ev.sec.servingAt(ev.w, ev.epoch) && !(ev.sent && ev.s.cfg.Bugs.ForgetBeforeAck)
	if !ev.back {
		return false
	}
	ev.sent = true
	*op = state.Op{Kind: state.OpReturn, Epoch: ev.epoch, Key: ev.key, Cur: ev.cur}
	return true
}

// goesBack: the store has the key back once it has carried out the batch at hand.
func (ev *eviction) goesBack() bool {
	ev.sec.mu.Lock()
	defer ev.sec.mu.Unlock()
	return ev.back
}

// Done implements raise.Item.
func (ev *eviction) Done(res state.OpResult, err error) {
	sec, s := ev.sec, ev.s
	sec.mu.Lock()
	defer sec.mu.Unlock()
	defer func() {
		for _, f := range ev.then {
			f()
		}
	}()
	s.count.returning.Add(-1)
	if s.cfg.Bugs.ForgetBeforeAck {
		return
	}
	defer close(ev.done)
	if sec.returning[ev.key] == ev {
		delete(sec.returning, ev.key)
	}
	serving := sec.servingAt(ev.w, ev.epoch)
	ev.back = err == nil && serving && (res.Refusal == state.OK || res.Refusal == state.RefusedRange)
	if err != nil || !serving {
		// The queue has closed, or the section has: then its release has the key.
		return
	}
	switch res.Refusal {
	case state.OK, state.RefusedRange:
		// The latter: a process before us handed it back and vacated its range, which
		// is another Set's by now.
		s.forgetKey(ev.key)
		s.count.evicted.Add(1)
	case state.RefusedNotOwner, state.RefusedEpoch:
		sec.notOurs(ev.w, ev.epoch, s.log)
	default:
		s.log.Error("hand-back refused; the key stays closed", zap.Stringer("key", ev.key), zap.Stringer("refusal", res.Refusal),
			zap.Uint64("cur", uint64(ev.cur)), zap.Uint64("floor", uint64(res.Floor)), zap.Uint64("bound", uint64(res.Bound)))
		sec.doubt(ev.key)
	}
}

// doubt keeps a key closed that the store group contradicts. It needs sec.mu.
func (sec *section) doubt(k ids.Key) {
	if sec.doubted == nil {
		sec.doubted = map[ids.Key]bool{}
	}
	sec.doubted[k] = true
}

// notOurs: the leader knows better. Its directive will say so too; until then,
// the section serves nothing. It needs sec.mu.
func (sec *section) notOurs(w *world, e ids.Epoch, log *zap.Logger) {
	log.Warn("section is not ours any more", zap.Uint32("section", uint32(sec.no)), zap.Uint64("epoch", uint64(e)))
	sec.open.Store(false)
	sec.phase = closing
	w.keeper.drop(sec.no, e)
}
