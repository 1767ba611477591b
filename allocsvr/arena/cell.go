package arena

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// TakeResult says what came of a Take.
type TakeResult uint8

const (
	// TakeOK: the numbers are the caller's.
	TakeOK TakeResult = iota + 1
	// TakeEmpty: fewer than n numbers remain under the bound; extend first.
	TakeEmpty
	// TakeClosed: the key is being handed back, or was; it needs StoreSvr again.
	TakeClosed
)

func (r TakeResult) String() string {
	switch r {
	case TakeOK:
		return "ok"
	case TakeEmpty:
		return "empty"
	case TakeClosed:
		return "closed"
	}
	return fmt.Sprintf("take(%d)", uint8(r))
}

// Cell is the counter of one key. It is a small value; use it under the Guard that found it.
//
//	word 0: [closed:1][check:15][cur, low 48 bits]   0 = unused
//	word 1: [parity:1][max:63]
//
// The high bits of cur follow from max, since max − cur < 2^48. Numbers are taken
// by a compare-and-swap of word 0 alone; a closed bit set there stops every taker.
// Word 0 is read before word 1: max only grows while the cell is open, so a taker
// whose swap succeeds had cur ≤ max.
type Cell struct {
	w    *[2]atomic.Uint64
	salt uint64
	own  *cellOwner
}

// cellOwner is what all cells of an arena share.
type cellOwner struct {
	// writers serialises all changes of a cell but Take.
	writers [cellStripes]struct {
		sync.Mutex
		_ [56]byte
	}
	bugs    Bugs
	intents atomic.Pointer[[]atomic.Uint64] // one place per stripe
	// stored is called after each store but those of Take: tests look at what a
	// process that dies there would leave.
	stored func()
}

func (o *cellOwner) note() {
	if o.stored != nil {
		o.stored()
	}
}

const cellStripes = 64

func (c Cell) stripe() int { return int((c.salt * mulValue) >> 58) }

func (c Cell) lock() *sync.Mutex {
	mu := &c.own.writers[c.stripe()].Mutex
	mu.Lock()
	return mu
}

// Take issues n consecutive numbers first … first+n−1; left is what then remains
// under the bound (with TakeEmpty: what remains now). The number before is first−1.
// n = 0 is answered TakeEmpty.
func (c Cell) Take(n uint64) (first, left ids.Seq, r TakeResult) {
	for {
		w := c.w[0].Load()
		if w == 0 || w&flagBit != 0 {
			return 0, 0, TakeClosed
		}
		cur := w & valueMask
		if w>>valueBits != check15(cur, c.salt) {
			c.awaitNote(w)
			continue
		}
		bound := c.w[1].Load() & maxMask
		rest := (bound - cur) & valueMask
		if rest > bound { // max is 0: nothing is known of the key
			return 0, 0, TakeEmpty
		}
		if n-1 >= rest {
			return 0, ids.Seq(rest), TakeEmpty
		}
		next := (cur + n) & valueMask
		if c.w[0].CompareAndSwap(w, check15(next, c.salt)<<valueBits|next) {
			return ids.Seq(bound - rest + 1), ids.Seq(rest - n), TakeOK
		}
	}
}

// awaitNote lets the maker of a note finish: a few stores, under no other lock.
func (c Cell) awaitNote(w uint64) {
	if !isPending(w, c.salt) {
		c.corrupt(w)
	}
	runtime.Gosched()
}

// corrupt stops the caller: memory that changed by itself must not yield a number.
func (c Cell) corrupt(w uint64) {
	panic(&CorruptCellError{Word: w, Salt: c.salt})
}

// Load reads the cell. max 0 means that nothing is known of the key (then cur is 0 too).
func (c Cell) Load() (cur, max ids.Seq, closed bool) {
	for {
		w := c.w[0].Load()
		m := c.w[1].Load()
		if c.w[0].Load() != w {
			continue
		}
		return c.decode(w, m)
	}
}

func (c Cell) decode(w, m uint64) (cur, max ids.Seq, closed bool) {
	if w == 0 {
		return 0, 0, false
	}
	value, closed, ok := unseal(w, c.salt)
	if !ok && !isPending(w, c.salt) {
		c.corrupt(w)
	}
	bound := m & maxMask
	if bound == 0 {
		return 0, 0, closed
	}
	rest := (bound - value) & valueMask
	if rest > bound {
		c.corrupt(w)
	}
	return ids.Seq(bound - rest), ids.Seq(bound), closed
}

// Extend applies what StoreSvr answered: cur becomes at least floor, then max at
// least bound. A closed cell stays as it is, and false is returned.
func (c Cell) Extend(floor, bound ids.Seq) bool {
	defer c.lock().Unlock()
	_, ok := c.extend(floor, bound, 0, nil)
	return ok
}

// ExtendTake is Extend and Take in one step for a key that is not served yet: no
// other caller gets the numbers right above floor. It returns 0 when the cell is
// closed, or when fewer than n numbers lie under the bound (and takes nothing).
func (c Cell) ExtendTake(floor, bound ids.Seq, n uint64) (first ids.Seq) {
	return c.ExtendTakeNoted(floor, bound, n, nil)
}

// extend takes n right above floor only if nobody can take at the same time; else first is 0.
func (c Cell) extend(floor, bound ids.Seq, n uint64, note *Note) (first ids.Seq, ok bool) {
	w, m := c.w[0].Load(), c.w[1].Load()
	cur, max, closed := c.decode(w, m)
	if w == 0 || closed {
		return 0, false
	}
	if max != 0 && floor <= cur {
		if bound = clampBound(cur, bound); bound > max {
			c.setMax(sealMax(uint64(bound)))
		}
		return 0, true
	}
	// From here StoreSvr's floor is at or above all that was issued, so cur may
	// be forgotten for a moment: with max 0 nobody can take, and a process killed
	// now leaves a key of which nothing is known.
	if max != 0 {
		c.setMax(maxUnknown)
		for !c.w[0].CompareAndSwap(w, seal(uint64(floor), false, c.salt)) {
			// A taker that had read the old max was faster. Its number is below floor
			// or moves cur past it; floor is compared with the new cur.
			w = c.w[0].Load()
			if cur, _, _ = c.decode(w, m); cur >= floor {
				floor = cur
			}
		}
		c.setMax(sealMax(uint64(clampBound(floor, bound))))
		return 0, true
	}
	bound = clampBound(floor, bound)
	if n != 0 {
		if bound < floor || n > uint64(bound-floor) {
			n = 0
		} else {
			first = floor + 1
		}
	}
	bound = max63(bound, floor)
	if note != nil && n != 0 {
		note.intend(c, first, n)
		c.setCur(sealPending(uint64(floor), c.salt))
		c.setMax(sealMax(uint64(bound)))
		note.Commit(first)
		c.setCur(seal(uint64(floor)+n, false, c.salt))
		note.done(c)
		return first, true
	}
	c.setCur(seal(uint64(floor)+n, false, c.salt))
	c.setMax(sealMax(uint64(bound)))
	return first, true
}

// Close stops all takers for good and returns the exact last number issued.
// It must come before a hand-back leaves. Repeating it is harmless.
func (c Cell) Close() (cur ids.Seq) {
	defer c.lock().Unlock()
	for {
		w, m := c.w[0].Load(), c.w[1].Load()
		cur, _, closed := c.decode(w, m)
		if w == 0 || closed {
			return cur
		}
		if c.own.bugs.CloseWithoutBit {
			c.setMax(sealMax(uint64(cur)))
			return cur
		}
		if c.w[0].CompareAndSwap(w, seal(w&valueMask, true, c.salt)) {
			return cur
		}
	}
}

// Reopen serves a closed key again, after its hand-back was acknowledged, every
// guard entered before the closing was left, and StoreSvr extended it anew.
func (c Cell) Reopen(floor, bound ids.Seq) {
	defer c.lock().Unlock()
	c.reopen(floor, bound, 0, nil)
}

// ReopenTake is Reopen and Take in one step; see ExtendTake.
func (c Cell) ReopenTake(floor, bound ids.Seq, n uint64) (first ids.Seq) {
	return c.ReopenTakeNoted(floor, bound, n, nil)
}

func (c Cell) reopen(floor, bound ids.Seq, n uint64, note *Note) (first ids.Seq) {
	w := c.w[0].Load()
	if w == 0 {
		return 0
	}
	cur, max, closed := c.decode(w, c.w[1].Load())
	switch {
	case !closed:
		first, _ = c.extend(floor, bound, n, note)
		return first
	case max == 0 || floor > cur:
		c.setMax(maxUnknown)
		c.setCur(seal(uint64(max63(floor, cur)), false, c.salt))
		first, _ = c.extend(floor, bound, n, note)
		return first
	}
	// While the cell is closed max can go first, and cur is never unknown.
	bound = max63(clampBound(cur, bound), cur)
	c.setMax(sealMax(uint64(bound)))
	if n == 0 || n > uint64(bound-cur) {
		c.setCur(seal(uint64(cur), false, c.salt))
		return 0
	}
	if note != nil {
		note.intend(c, cur+1, n)
		c.setCur(sealPending(uint64(cur), c.salt))
		note.Commit(cur + 1)
	}
	c.setCur(seal(uint64(cur)+n, false, c.salt))
	if note != nil {
		note.done(c)
	}
	return cur + 1
}

func (c Cell) setCur(w uint64) {
	c.w[0].Store(w)
	c.own.note()
}

func (c Cell) setMax(m uint64) {
	c.w[1].Store(m)
	c.own.note()
}

// clear makes the cell unused. Each step leaves a valid cell.
func (c Cell) clear() {
	defer c.lock().Unlock()
	c.setMax(maxUnknown)
	c.setCur(0)
	c.setMax(0)
}

// use makes an unused cell a used one of which nothing is known.
func (c Cell) use() {
	defer c.lock().Unlock()
	c.setMax(maxUnknown)
	c.setCur(seal(0, false, c.salt))
}

// clampBound keeps max − cur < 2^48. Serving less than the bound allows is always safe.
func clampBound(cur, bound ids.Seq) ids.Seq {
	if bound > ids.MaxSeq {
		bound = ids.MaxSeq
	}
	if bound > cur && bound-cur > valueMask {
		return cur + valueMask
	}
	return bound
}

func max63(a, b ids.Seq) ids.Seq {
	if a > b {
		return a
	}
	return b
}
