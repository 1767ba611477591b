package dedupe

import (
	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// Token is the right and the duty to carry a request out: call the Take methods
// until one succeeds, or Abort. It is used by one goroutine at a time.
type Token struct {
	s       *section
	life    uint64
	key     ids.Key
	digest  Digest
	n       uint32
	pending *Pending
	ended   bool
}

// Take is arena.Cell.Take, with the numbers on record in the same step. After
// TakeOK the token has ended; after another result it can be tried again. Hold the
// arena's Guard. The errors are ErrMoved, and *arena.FullError when there is no room
// for a record even after dropping old ones.
func (k *Token) Take(c arena.Cell, now uint64) (first, left ids.Seq, r arena.TakeResult, err error) {
	err = k.noted(now, false, func(n *arena.Note) ids.Seq {
		first, left, r = c.TakeNoted(uint64(k.n), n)
		return first
	})
	return first, left, r, err
}

// ExtendTake is arena.Cell.ExtendTake, on record as the first numbers after a
// declared hole; see Take. first 0: nothing was taken.
func (k *Token) ExtendTake(c arena.Cell, floor, bound ids.Seq, now uint64) (first ids.Seq, err error) {
	err = k.noted(now, true, func(n *arena.Note) ids.Seq {
		first = c.ExtendTakeNoted(floor, bound, uint64(k.n), n)
		return first
	})
	return first, err
}

// ReopenTake is arena.Cell.ReopenTake, on record; see Take. first 0: nothing was taken.
func (k *Token) ReopenTake(c arena.Cell, floor, bound ids.Seq, now uint64) (first ids.Seq, err error) {
	err = k.noted(now, false, func(n *arena.Note) ids.Seq {
		first = c.ReopenTakeNoted(floor, bound, uint64(k.n), n)
		return first
	})
	return first, err
}

func (k *Token) noted(now uint64, afterHole bool, take func(*arena.Note) ids.Seq) error {
	if k.ended {
		return ErrMoved
	}
	r, err := k.s.reserve(k.life, k.key.Space, now)
	if err != nil {
		return err
	}
	// The record is stored under the cell's lock, so it may take none of ours.
	first := take(&arena.Note{
		Key:    k.key,
		Data:   [3]uint64{k.digest.A, k.digest.B, intentTime(now, afterHole)},
		Commit: func(first ids.Seq) { r.write(k.digest, first, countWord(k.n, afterHole), now) },
	})
	if first == 0 {
		k.s.unreserve(k.life, r)
		return nil
	}
	k.s.commit(k.life, r, k.digest, k.pending)
	k.end(first)
	return nil
}

// intentTime is the time of a request as an intent keeps it, with Entry.AfterHole in the top bit.
func intentTime(now uint64, afterHole bool) uint64 {
	if afterHole {
		now |= 1 << 63
	}
	return now
}

// Abort gives the request up: who waits for it begins again. After the end it does nothing.
func (k *Token) Abort() {
	if k.ended {
		return
	}
	k.s.abandon(k.digest, k.pending)
	k.end(0)
}

func (k *Token) end(first ids.Seq) {
	k.ended = true
	k.pending.first = first
	close(k.pending.done)
}
