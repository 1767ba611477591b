package disk

import (
	"sync"

	"go.etcd.io/bbolt"
)

// reader keeps a read transaction of the file open from one lookup to the next:
// opening one costs as much as a lookup. The flusher ends it after each flush,
// before the flushed generation is dropped from memory, so that what is no longer
// in memory is always in the transaction that comes next.
type reader struct {
	mu   sync.Mutex
	tx   *bbolt.Tx
	gaps *bbolt.Bucket
	// at finds records; it keeps the memory of its path from one lookup to the next.
	at *finder
	// yields: a flush may have to map the file anew, which waits for every open
	// transaction, so none is kept.
	yields bool
}

// flushPagesPerEntry bounds the pages that a flush adds for each entry of the file
// that changes: a leaf of the largest blocks (up to four of 6.5 kB), what it is split
// into, and the branches above.
const flushPagesPerEntry = 10

// lookup runs f on the file as the last flush left it, with tx and what hangs on it set.
func (s *Store) lookup(f func(r *reader) error) error {
	s.dbMu.RLock()
	defer s.dbMu.RUnlock()
	r := &s.reader
	r.mu.Lock()
	defer r.mu.Unlock()
	err := Guard(s.path, "read", func() error {
		if r.tx == nil {
			tx, err := s.db.Begin(false)
			if err != nil {
				return err
			}
			r.tx, r.gaps, r.at = tx, tx.Bucket(bucketGaps), newFinder(s.path, tx)
		}
		return f(r)
	})
	if err != nil || r.yields {
		r.end()
	}
	return boltError(s.path, "read", err)
}

// end ends the transaction, if there is one. r.mu is held.
func (r *reader) end() {
	if r.tx != nil {
		// A read transaction: its rollback cannot fail.
		_ = r.tx.Rollback()
		r.tx, r.gaps, r.at = nil, nil, nil
	}
}

// renew has the next lookup see what was flushed.
func (r *reader) renew() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.yields = false
	r.end()
}

// yield keeps no transaction until renew.
func (r *reader) yield() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.yields = true
	r.end()
}
