package disk

import (
	"fmt"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// View is the state as it was after one entry. It must be released.
type View struct {
	path    string
	applied uint64
	meta    *state.Meta

	mu    sync.Mutex
	wait  <-chan viewResult
	tx    *bbolt.Tx
	ended bool
}

// Snapshot marks this moment and returns at once; the view is ready when all
// changes up to it are in the file.
func (s *Store) Snapshot(index uint64, meta *state.Meta) (*View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	c := make(chan viewResult, 1)
	m := meta.Clone()
	s.freeze(index, meta, c)
	return &View{path: s.path, applied: index, meta: &m, wait: c}, nil
}

func (v *View) open() (*bbolt.Tx, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.wait != nil {
		r := <-v.wait
		v.wait = nil
		if r.err != nil {
			return nil, r.err
		}
		v.tx = r.tx
	}
	if v.tx == nil || v.ended {
		return nil, fmt.Errorf("%s: the view was released", v.path)
	}
	return v.tx, nil
}

// Release ends the view.
func (v *View) Release() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended {
		return
	}
	v.ended = true
	if v.wait != nil {
		v.tx = (<-v.wait).tx
		v.wait = nil
	}
	if v.tx != nil {
		// A read transaction: its rollback cannot fail.
		_ = v.tx.Rollback()
	}
}

// Head is the entry after which the view is, and the meta state then.
func (v *View) Head() (uint64, *state.Meta) { return v.applied, v.meta }

// EachRecord visits all records in key order.
func (v *View) EachRecord(f func(ids.Key, state.Record) error) error {
	tx, err := v.open()
	if err != nil {
		return err
	}
	var ferr error
	err = Guard(v.path, "read", func() error {
		ferr, err = eachRecord(v.path, tx, f)
		return err
	})
	if ferr != nil {
		return ferr
	}
	return err
}

// EachGaps visits all gap ledgers in key order.
func (v *View) EachGaps(f func(ids.Key, []state.Gap) error) error {
	return v.each(bucketGaps, func(k ids.Key, key, b []byte) error {
		g, err := openGaps(key, b)
		if err != nil {
			return &CorruptError{Path: v.path, What: "gap ledger of key " + k.String(), Err: err}
		}
		return f(k, g)
	})
}

func (v *View) each(bucket []byte, f func(k ids.Key, key, b []byte) error) error {
	tx, err := v.open()
	if err != nil {
		return err
	}
	var ferr error
	err = Guard(v.path, "read", func() error {
		c := tx.Bucket(bucket).Cursor()
		for key, b := c.First(); key != nil; key, b = c.Next() {
			k, err := decodeKey(key)
			if err != nil {
				return &CorruptError{Path: v.path, What: "key", Err: err}
			}
			if ferr = f(k, key, b); ferr != nil {
				return nil //nolint:nilerr // f's own error is handed on beside the transaction's
			}
		}
		return nil
	})
	if ferr != nil {
		return ferr
	}
	return err
}
