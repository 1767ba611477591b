package disk

import (
	"errors"
	"maps"
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
	err := boltError(s.path, "flush", Guard(s.path, "flush", func() error {
		return s.db.Update(func(tx *bbolt.Tx) error {
			if pages := int64(g.dirty()) * flushPagesPerKey; tx.Size()+pages*int64(s.db.Info().PageSize) > s.mapped {
				s.reader.yield()
			}
			return writeGeneration(tx, g)
		})
	}))
	if err != nil {
		s.fail(err)
		return
	}
	s.flushes.Add(1)
	s.flushNanos.Add(int64(time.Since(began)))
	s.reader.renew()
	s.mu.Lock()
	if g.view != nil {
		// Before the next generation is written, so that the view is of exactly this moment.
		tx, err := s.db.Begin(false)
		g.answer(viewResult{tx: tx, err: boltError(s.path, "read", err)})
	}
	s.frozen = slices.Delete(s.frozen, 0, 1)
	s.signal()
	s.mu.Unlock()
}

// writeGeneration puts keys in order, so that neighbours share a page.
func writeGeneration(tx *bbolt.Tx, g *generation) error {
	records, gaps := tx.Bucket(bucketRecords), tx.Bucket(bucketGaps)
	for _, k := range slices.SortedFunc(maps.Keys(g.deleted), ids.Key.Compare) {
		key := appendKey(make([]byte, 0, keyBytes), k)
		if err := errors.Join(records.Delete(key), gaps.Delete(key)); err != nil {
			return err
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(g.records), ids.Key.Compare) {
		if err := putRecord(records, k, g.records[k]); err != nil {
			return err
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(g.gaps), ids.Key.Compare) {
		if err := putGaps(gaps, k, g.gaps[k]); err != nil {
			return err
		}
	}
	return tx.Bucket(bucketMeta).Put(keyState, seal(keyState, g.head))
}

// recordRoom is enough for most records with their checksum, so that each takes
// one allocation of a flush.
const recordRoom = 24

func putRecord(b *bbolt.Bucket, k ids.Key, r state.Record) error {
	key := appendKey(make([]byte, 0, keyBytes), k)
	return b.Put(key, seal(key, state.EncodeRecord(make([]byte, 0, recordRoom), r)))
}

func putGaps(b *bbolt.Bucket, k ids.Key, g []state.Gap) error {
	key := appendKey(make([]byte, 0, keyBytes), k)
	return b.Put(key, seal(key, state.EncodeGaps(nil, g)))
}
