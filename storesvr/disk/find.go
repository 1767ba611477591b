package disk

import (
	"slices"

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
	// Mostly all or none are in the file.
	room := make([]int, 2*len(keys))
	records, gaps = room[:0:len(keys)], room[len(keys):len(keys)]
	near := neighbours{gens: append(slices.Clone(s.frozen), s.active)}
	for i, k := range keys {
		r, p := near.record(k)
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

// neighbours looks records up in generations, oldest first, and each block only once for
// all keys of it that are asked for in a row.
type neighbours struct {
	gens   []*generation
	opened bool
	id     blockID
	blocks []*changedBlock
}

func (n *neighbours) record(k ids.Key) (r state.Record, p presence) {
	id, slot := blockOf(k)
	if inBlock(k) && (!n.opened || id != n.id) {
		n.opened, n.id, n.blocks = true, id, n.blocks[:0]
		for _, g := range n.gens {
			n.blocks = append(n.blocks, g.blocks[id])
		}
	}
	for i, g := range slices.Backward(n.gens) {
		if !inBlock(k) {
			r, p = g.record(k)
		} else if b := n.blocks[i]; b != nil && b.slots.has(slot) {
			r, p = b.records[b.slots.rank(slot)], present
		} else {
			p = g.gone(k)
		}
		if p != unknown {
			return r, p
		}
	}
	return state.Record{}, unknown
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
