package disk

import (
	"errors"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

var errClosed = errors.New("the store is closed")

// flusher writes frozen generations to the file, oldest first.
func (s *Store) flusher() {
	for {
		select {
		case <-s.stop:
			return
		case <-s.wake:
		}
		for {
			s.mu.RLock()
			var g *generation
			if len(s.frozen) > 0 && s.err == nil {
				g = s.frozen[0]
			}
			s.mu.RUnlock()
			if g == nil {
				break
			}
			s.flush(g)
			select {
			case <-s.stop:
				return
			default:
			}
		}
	}
}

func (s *Store) flush(g *generation) {
	s.dbMu.RLock()
	defer s.dbMu.RUnlock()
	s.mu.RLock()
	// A restore drops all generations while it holds dbMu: they must not reach the new file.
	dropped := len(s.frozen) == 0 || s.frozen[0] != g
	s.mu.RUnlock()
	if dropped {
		return
	}
	began := time.Now()
	s.heldUp = 0
	s.hold()
	err := boltError(s.path, "flush", Guard(s.path, "flush", func() error {
		return s.db.Update(func(tx *bbolt.Tx) error {
			if pages := int64(g.entries()) * flushPagesPerEntry; tx.Size()+pages*int64(s.db.Info().PageSize) > s.mapped {
				s.reader.yield()
			}
			return s.writeGeneration(tx, g)
		})
	}))
	if err != nil {
		s.fail(err)
		return
	}
	took := time.Since(began) - s.heldUp
	s.flushes.Add(1)
	s.flushNanos.Add(int64(took))
	s.reader.renew()
	s.mu.Lock()
	if took >= flushLong {
		s.restUntil = began.Add(2 * took)
	}
	if g.view != nil {
		// Before the next generation is written, so that the view is of exactly this moment.
		tx, err := s.db.Begin(false)
		g.answer(viewResult{tx: tx, err: boltError(s.path, "read", err)})
	}
	s.frozen = slices.Delete(s.frozen, 0, 1)
	s.signal()
	s.mu.Unlock()
}

// A flush works for a slice of flushSlice keys and then rests as long as that took,
// so that a reply never waits for a core longer than for one slice. It does not
// rest when it must catch up, when somebody waits for it, or when the store closes.
// The pages are changed in memory meanwhile, and only the commit at the end writes
// them: resting splits no transaction, and the file is never between two entries.
const (
	flushSlice   = 256
	flushRestMax = 5 * time.Millisecond
)

// A flush of scattered keys writes a page of the file for each, and the fewer
// pages, the more keys it has of each: so after one that took flushLong, the next
// begins only after as long a rest, with what has come in meanwhile, or with
// 1/growPart of HardKeys. With 1/hurryPart of them dirty, flushes do not rest.
const (
	flushLong = 100 * time.Millisecond
	growPart  = 4
	hurryPart = 2
)

// A range that is frozen for a move waits for commits of several groups, one after the
// other, so that flushes are held up while one is, for calmMax at most and while few keys
// are dirty. In between they go on.
const (
	calmMax  = 250 * time.Millisecond
	holdStep = 2 * time.Millisecond
)

// attend notes whether a part of a move is at hand. s.mu is held.
func (s *Store) attend(meta *state.Meta) {
	if calm := meta.PartAtHand(); calm != s.calm {
		s.calm, s.calmUntil = calm, time.Time{}
		if calm {
			s.calmUntil = time.Now().Add(calmMax)
		}
	}
}

// hold waits until the flush may go on.
func (s *Store) hold() {
	began := time.Now()
	for s.held() && s.sleep(holdStep) {
	}
	s.heldUp += time.Since(began)
}

func (s *Store) held() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return time.Now().Before(s.calmUntil) && s.dirtyLocked() < s.opts.HardKeys/growPart &&
		!slices.ContainsFunc(s.frozen, func(g *generation) bool { return g.awaited })
}

// sleep tells whether the store is still open afterwards.
func (s *Store) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.stop:
		return false
	}
}

// pacer rests between the slices of a flush.
type pacer struct {
	s     *Store
	g     *generation
	puts  int
	began time.Time
}

func (p *pacer) put(keys int) {
	if p.puts += keys; p.puts < flushSlice {
		return
	}
	p.puts = 0
	took := min(time.Since(p.began), flushRestMax)
	if p.calm() {
		p.s.sleep(took)
	}
	p.s.hold()
	p.began = time.Now()
}

func (p *pacer) calm() bool {
	p.s.mu.RLock()
	defer p.s.mu.RUnlock()
	return !p.g.awaited && p.s.dirtyLocked() < p.s.opts.HardKeys/hurryPart
}

// writeGeneration puts keys in order, so that neighbours share a page.
func (s *Store) writeGeneration(tx *bbolt.Tx, g *generation) error {
	p := &pacer{s: s, g: g, began: time.Now()}
	blocks, names, gaps := tx.Bucket(bucketBlocks), tx.Bucket(bucketNames), tx.Bucket(bucketGaps)
	for _, c := range sorted(g.deleted) {
		if err := gaps.Delete(appendKey(make([]byte, 0, keyBytes), c.key)); err != nil {
			return err
		}
		p.put(1)
	}
	for order := g.inOrder(); len(order) > 0; {
		var err error
		n := 1
		if inBlock(order[0].key) {
			n = sameBlock(order)
			err = writeBlock(s.path, blocks, order[:n])
		} else {
			err = writeName(names, &order[0])
		}
		if err != nil {
			return err
		}
		order = order[n:]
		p.put(n)
	}
	for _, c := range sorted(g.gaps) {
		if err := putGaps(gaps, c.key, c.value); err != nil {
			return err
		}
		p.put(1)
	}
	s.hold()
	return tx.Bucket(bucketMeta).Put(keyState, seal(keyState, g.head))
}

// sameBlock is how many changes at the beginning are of one block.
func sameBlock(order []change) int {
	id, _ := blockOf(order[0].key)
	n := 1
	for n < len(order) && inBlock(order[n].key) && id.has(order[n].key) {
		n++
	}
	return n
}

// writeBlock carries the changes of one block over to what the file has of it.
func writeBlock(path string, b *bbolt.Bucket, changes []change) error {
	id, _ := blockOf(changes[0].key)
	key := id.append(make([]byte, 0, blockKeyBytes))
	var old, now block
	v := b.Get(key)
	var err error
	if v != nil {
		old, err = openBlock(key, v)
	}
	if err == nil {
		now, err = old.with(changes)
	}
	if err != nil {
		return &CorruptError{Path: path, What: "block of key " + id.key(0).String(), Err: err}
	}
	switch {
	case now.slots != (slotSet{}):
		return b.Put(key, now.sealed(key))
	case v != nil:
		return b.Delete(key)
	}
	return nil
}

func writeName(b *bbolt.Bucket, c *change) error {
	if c.deleted {
		return b.Delete(appendKey(make([]byte, 0, keyBytes), c.key))
	}
	return putName(b, c.key, c.record)
}

// dirtyKey is one change of a generation.
type dirtyKey[V any] struct {
	key   ids.Key
	value V
}

func sorted[V any](m map[ids.Key]V) []dirtyKey[V] {
	out := make([]dirtyKey[V], 0, len(m))
	for k, v := range m {
		out = append(out, dirtyKey[V]{k, v})
	}
	slices.SortFunc(out, func(a, b dirtyKey[V]) int { return a.key.Compare(b.key) })
	return out
}

// recordRoom is enough for most records with their checksum, so that each takes
// one allocation of a flush.
const recordRoom = 24

func putName(b *bbolt.Bucket, k ids.Key, r state.Record) error {
	key := appendKey(make([]byte, 0, keyBytes), k)
	return b.Put(key, seal(key, state.EncodeRecord(make([]byte, 0, recordRoom), r)))
}

func putGaps(b *bbolt.Bucket, k ids.Key, g []state.Gap) error {
	key := appendKey(make([]byte, 0, keyBytes), k)
	return b.Put(key, seal(key, state.EncodeGaps(nil, g)))
}
