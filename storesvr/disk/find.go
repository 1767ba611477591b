package disk

import (
	"go.etcd.io/bbolt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

var _ state.Finder = (*Store)(nil)

// Find is Get and Gaps of many keys in ascending order: one walk over the file.
func (s *Store) Find(keys []ids.Key) []state.Found {
	out := make([]state.Found, len(keys))
	records, gaps := s.findInMemory(keys, out)
	if len(records)+len(gaps) == 0 {
		return out
	}
	s.must(s.lookup(func(file *reader) error {
		for _, i := range records {
			var err error
			if out[i].Record, out[i].Known, err = file.at.get(keys[i]); err != nil {
				return err
			}
		}
		w := walk{path: s.path, cursor: file.gaps.Cursor()}
		for _, i := range gaps {
			b, err := w.to(keys[i])
			if err != nil {
				return err
			}
			out[i].HasGaps = b != nil
		}
		return nil
	}))
	return out
}

// findInMemory answers which keys' records and ledgers are to be looked for in the file.
func (s *Store) findInMemory(keys []ids.Key, out []state.Found) (records, gaps []int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for i, k := range keys {
		r, p := inMemory(s, k, (*generation).record)
		out[i].Record, out[i].Known = r, p == present
		if p == unknown {
			records = append(records, i)
		}
		held, p := inMemory(s, k, (*generation).ledger)
		out[i].HasGaps = len(held) > 0
		if p == unknown {
			gaps = append(gaps, i)
		}
	}
	return records, gaps
}

// walk goes over a bucket in ascending order, by steps where they are few.
type walk struct {
	path   string
	cursor *bbolt.Cursor
	begun  bool
	raw    []byte
	key    ids.Key
	value  []byte
}

// to answers the value of a key, which is above the last one asked for; nil if there is none.
func (w *walk) to(k ids.Key) ([]byte, error) {
	for n := 0; !w.begun || w.raw != nil && w.key.Compare(k) < 0; n++ {
		if w.begun && n < hopAfter {
			w.raw, w.value = w.cursor.Next()
		} else {
			w.raw, w.value = w.cursor.Seek(appendKey(nil, k))
		}
		w.begun = true
		if w.raw == nil {
			break
		}
		var err error
		if w.key, err = decodeKey(w.raw); err != nil {
			return nil, &CorruptError{Path: w.path, What: "key", Err: err}
		}
	}
	if w.raw == nil || w.key != k {
		return nil, nil
	}
	return w.value, nil
}
