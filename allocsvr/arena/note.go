package arena

import (
	"sync/atomic"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Note ties a record kept elsewhere in the arena (a request id and the numbers it
// got) to the taking of the numbers, so that a process that dies in between leaves
// both or neither:
//
//  1. the intent is stored: key, numbers, and what the record needs;
//  2. the cell becomes pending: from here the numbers are nobody else's;
//  3. Commit stores the record;
//  4. cur moves past the numbers, and the cell is no longer pending;
//  5. the intent is dropped.
//
// A pending cell found by the next process is carried through from step 3; an
// intent without one is void, or done. Steps 1 to 5 run under the lock that all
// other changes of the cell take, so a cell has one intent at most, and an intent
// has a fixed place per lock. Takers without a note that meet a pending cell yield
// until it is done.
type Note struct {
	Key ids.Key
	// Data is what Commit needs if the next process has to call it.
	Data [3]uint64
	// Commit stores the record. It must not fail: reserve its place before.
	Commit func(first ids.Seq)
}

// Intent is a Note whose process died before its end, with the numbers that are its own.
type Intent struct {
	Key   ids.Key
	First ids.Seq
	N     uint64
	Data  [3]uint64
}

// An intent in memory:
//
//	word 0: [check:32][space:16][1:16]   0 = none
//	word 1, 2: the key    word 3: n    word 4: first    word 5–7: data
const (
	intentWords = 8
	intentBytes = cellStripes * intentWords * 8
)

type intent = [intentWords]atomic.Uint64

func (n *Note) intend(c Cell, first ids.Seq, count uint64) {
	w := c.own.intent(c.stripe())
	w[0].Store(0)
	w[1].Store(n.Key.Hi)
	w[2].Store(n.Key.Lo)
	w[3].Store(count)
	w[4].Store(uint64(first))
	for i, d := range n.Data {
		w[5+i].Store(d)
	}
	low := uint64(n.Key.Space)<<16 | 1
	w[0].Store(checkIntent(w, low)<<32 | low)
	c.own.note()
}

func (n *Note) done(c Cell) {
	c.own.intent(c.stripe())[0].Store(0)
	c.own.note()
}

// intent is the place of a stripe. The arena cannot be reset meanwhile: the caller holds the guard.
func (o *cellOwner) intent(stripe int) *intent {
	return (*intent)((*o.intents.Load())[stripe*intentWords:])
}

func checkIntent(w *intent, low uint64) uint64 {
	sum := uint64(0)
	for i := 1; i < intentWords; i++ {
		sum = sum*mulLo + w[i].Load()
	}
	return check32(sum, low, intentSalt)
}

const intentSalt = 0x1e7e

// readIntent reports ok false for what no process can have left, and a zero N for none.
func readIntent(w *intent) (in Intent, ok bool) {
	head := w[0].Load()
	if head == 0 {
		return Intent{}, true
	}
	low := head & 0xFFFFFFFF
	in = Intent{
		Key:   ids.Key{Space: ids.SpaceID(low >> 16), Hi: w[1].Load(), Lo: w[2].Load()},
		N:     w[3].Load(),
		First: ids.Seq(w[4].Load()),
		Data:  [3]uint64{w[5].Load(), w[6].Load(), w[7].Load()},
	}
	return in, low&0xFFFF == 1 && in.N != 0 && checkIntent(w, low)<<32|low == head
}

// TakeNoted is Take with a note. Hold the Guard over this call.
func (c Cell) TakeNoted(n uint64, note *Note) (first, left ids.Seq, r TakeResult) {
	defer c.lock().Unlock()
	return c.takeNoted(n, note)
}

func (c Cell) takeNoted(n uint64, note *Note) (first, left ids.Seq, r TakeResult) {
	for {
		w, m := c.w[0].Load(), c.w[1].Load()
		cur, max, closed := c.decode(w, m)
		switch {
		case w == 0 || closed:
			return 0, 0, TakeClosed
		case n-1 >= uint64(max-cur):
			return 0, max - cur, TakeEmpty
		}
		first = cur + 1
		note.intend(c, first, n)
		if !c.w[0].CompareAndSwap(w, sealPending(uint64(cur), c.salt)) {
			continue // a taker without a note was faster
		}
		c.own.note()
		note.Commit(first)
		c.setCur(seal(uint64(cur)+n, false, c.salt))
		note.done(c)
		return first, max - cur - ids.Seq(n), TakeOK
	}
}

// ExtendTakeNoted is ExtendTake with a note (nil: without).
func (c Cell) ExtendTakeNoted(floor, bound ids.Seq, n uint64, note *Note) (first ids.Seq) {
	defer c.lock().Unlock()
	first, ok := c.extend(floor, bound, n, note)
	if ok && first == 0 {
		first = c.takeLocked(n, note)
	}
	return first
}

// ReopenTakeNoted is ReopenTake with a note (nil: without).
func (c Cell) ReopenTakeNoted(floor, bound ids.Seq, n uint64, note *Note) (first ids.Seq) {
	defer c.lock().Unlock()
	if first = c.reopen(floor, bound, n, note); first == 0 {
		first = c.takeLocked(n, note)
	}
	return first
}

// takeLocked takes as anyone does, from a key that was served already.
func (c Cell) takeLocked(n uint64, note *Note) (first ids.Seq) {
	if note == nil {
		first, _, _ = c.Take(n)
	} else {
		first, _, _ = c.takeNoted(n, note)
	}
	return first
}

// settle carries a dead process's intent through, if its cell is pending and commit
// (nil: nobody keeps records) succeeds; else the numbers were never anyone's.
func (c Cell) settle(in Intent, commit func(Intent) error) error {
	defer c.lock().Unlock()
	w := c.w[0].Load()
	if !isPending(w, c.salt) {
		return nil
	}
	cur, max, _ := c.decode(w, c.w[1].Load())
	next := w & valueMask
	var err error
	if commit != nil && max != 0 && in.First == cur+1 && in.N <= uint64(max-cur) {
		if err = commit(in); err == nil {
			next += in.N
		}
	}
	c.setCur(seal(next, false, c.salt))
	return err
}
