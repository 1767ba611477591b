package allocsvr

import (
	"context"
	"errors"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/session"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// readKeysMax is the most keys in one read of the StoreSvr group.
const readKeysMax = 4096

// reading is one key whose last number is asked for.
type reading struct {
	key   ids.Key
	epoch ids.Epoch // of the section when the store was asked
	value ids.Seq
	fail  *Failure
}

// current answers the last number issued for each key, linearizably, and
// acquires nothing. Held keys are answered from the arena. For the others the
// store is asked; its answer counts only if afterwards the lease still holds, the
// section is still ours in the same epoch, and the key still is not held: then
// nobody can have issued a number in between. What was read is not kept.
//
// If turns is not nil, it has a token while the store is asked.
func (s *Server) current(ctx context.Context, w *world, keys []reading, wait time.Duration, turns chan struct{}) {
	if cold := s.readHeld(w, keys, nil, false); len(cold) > 0 {
		s.currentCold(ctx, w, keys, cold, wait, turns)
	}
}

// currentCold answers the keys listed in cold, which are not held here.
func (s *Server) currentCold(ctx context.Context, w *world, keys []reading, cold []int, wait time.Duration, turns chan struct{}) {
	if n := s.waiting.Add(1); n > int64(s.cfg.MaxInFlight) {
		s.waiting.Add(-1)
		s.count.busy.Add(1)
		for _, i := range cold {
			keys[i].fail = errBusyWaiting
		}
		return
	}
	defer s.waiting.Add(-1)
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	handOver := time.Now().Add(min(handOverWait, wait/2))
	back, moves := readRetryMin, false
	for {
		news := s.news.wait()
		cold = s.stillOurs(w, keys, cold, handOver)
		if len(cold) == 0 {
			return
		}
		moving, err := s.readStore(ctx, keys, cold, turns)
		if err == nil {
			if cold = s.readHeld(w, keys, cold, true); len(cold) == 0 {
				return
			}
			if !moving {
				continue
			}
			moves, err = true, errRangeMoves
		}
		if ctx.Err() != nil || s.closed() {
			if moves {
				err = errRangeMoves
			}
			for _, i := range cold {
				keys[i].fail = s.readTooLate(err)
			}
			return
		}
		pause := back
		if wait := time.Until(handOver); errors.Is(err, errChangesHands) && wait > 0 {
			pause = wait
		} else {
			back = min(2*back, readRetryMax)
		}
		s.pauseRead(ctx, news, pause)
	}
}

// The pauses between reads that failed, for instance because there is no leader.
const (
	readRetryMin = 5 * time.Millisecond
	readRetryMax = 100 * time.Millisecond
)

func (s *Server) pauseRead(ctx context.Context, news <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-news:
	case <-ctx.Done():
	case <-s.dying:
	}
}

// readHeld answers what is held here, and with checked what the store said of
// the rest where that still counts; it lists what remains. nil todo is all.
func (s *Server) readHeld(w *world, keys []reading, todo []int, checked bool) (rest []int) {
	defer s.arena.Guard().Enter().Exit()
	alive, ours := s.session.Alive(), w.ranges.Load()
	n := len(todo)
	if todo == nil {
		n = len(keys)
	} else {
		rest = todo[:0]
	}
	for j := range n {
		i := j
		if todo != nil {
			i = todo[j]
		}
		r := &keys[i]
		sec := w.section(r.key)
		if !sec.open.Load() || !ours.has(r.key) {
			rest = append(rest, i) // stillOurs says what of it
			continue
		}
		if !alive {
			r.fail = errLeaseExpired
			continue
		}
		if cell, ok := s.arena.Find(r.key); ok {
			// Also of a closed one: it stands at exactly its last number.
			if cur, bound, _ := cell.Load(); bound != 0 {
				r.value = cur
				continue
			}
		}
		if !checked {
			rest = append(rest, i)
			continue
		}
		if ph, e := sec.state(); ph != serving || e != r.epoch {
			rest = append(rest, i)
		}
	}
	return rest
}

// stillOurs notes the epochs of the sections, fails the keys of sections that
// are served elsewhere, and returns the others; those of a section that is
// changing hands have epoch 0.
func (s *Server) stillOurs(w *world, keys []reading, todo []int, handOver time.Time) (rest []int) {
	rest = todo[:0]
	ours := w.ranges.Load()
	for _, i := range todo {
		r := &keys[i]
		sec := w.section(r.key)
		sec.mu.Lock()
		r.epoch = 0
		if sec.servingAt(w, sec.epoch) && ours.has(r.key) {
			r.epoch = sec.epoch
			rest = append(rest, i)
		} else if ours.isFrozen(r.key) {
			rest = append(rest, i)
		} else if fail, stay := s.elsewhere(w, sec, r.key); !stay || !time.Now().Before(handOver) {
			r.fail = fail
		} else {
			rest = append(rest, i)
		}
		sec.mu.Unlock()
	}
	return rest
}

var (
	errChangesHands = errors.New("the section changes hands")
	errRangeMoves   = errors.New("the key's range is moving from one set to another")
)

// readStore asks for the keys whose sections are ours. With moving, some are not
// now; without an error the others are answered.
func (s *Server) readStore(ctx context.Context, keys []reading, todo []int, turns chan struct{}) (moving bool, err error) {
	ask := make([]ids.Key, 0, min(len(todo), readKeysMax))
	for len(todo) > 0 {
		n := min(len(todo), readKeysMax)
		ask = ask[:0]
		for _, i := range todo[:n] {
			if keys[i].epoch == 0 {
				return true, errChangesHands
			}
			ask = append(ask, keys[i].key)
		}
		vals, away, err := s.readInTurn(ctx, ask, turns)
		if err != nil {
			return false, err
		}
		for j, i := range todo[:n] {
			keys[i].value = vals[j]
		}
		for _, j := range away {
			keys[todo[j]].epoch = 0
			moving = true
		}
		todo = todo[n:]
	}
	return moving, nil
}

func (s *Server) readInTurn(ctx context.Context, keys []ids.Key, turns chan struct{}) (vals []ids.Seq, away []int, err error) {
	if turns != nil {
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	return s.session.Read(ctx, keys)
}

func (s *Server) readTooLate(err error) *Failure {
	switch {
	case s.closed():
		return errStopping
	case errors.Is(err, errRangeMoves):
		return errMoving
	case errors.Is(err, session.ErrNoLeader):
		return failf(seqpb.Code_CODE_NOT_READY, "%v", err)
	}
	return failf(seqpb.Code_CODE_BUSY, "the store group did not answer in time: %v", err)
}
