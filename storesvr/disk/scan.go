package disk

import (
	"maps"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// KeyRecord is a key with what is known of it.
type KeyRecord struct {
	Key    ids.Key
	Record state.Record
}

// scanStepsMax bounds how many keys of other sections one Scan walks over.
const scanStepsMax = 64 << 10

// hopAfter is how many neighbours are stepped over before seeking: a step is far cheaper.
const hopAfter = 8

// Scan visits records of one section in key order, after a key (the zero Key
// for the beginning), from the file and the changes that are not in it yet. It
// answers at most limit records and where to go on; done says that there are no more.
func (s *Store) Scan(sec ids.Section, sections uint32, after ids.Key, limit int) (out []KeyRecord, next ids.Key, done bool) {
	changed := s.changedKeys(sec, sections, after)
	next, done = after, true
	s.must(s.view(func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketRecords).Cursor()
		steps := 0
		seek := func(k ids.Key) (ids.Key, []byte, bool, error) {
			key, b := c.Seek(appendKey(nil, k))
			return decodeCursor(s.path, key, b)
		}
		k, b, ok, err := seek(after)
		for ; err == nil && ok; k, b, ok, err = step(s.path, c) {
			if k.Compare(after) <= 0 && after != (ids.Key{}) {
				continue
			}
			for k.Section(sections) != sec {
				if steps++; steps > scanStepsMax {
					next, done = k, false
					return nil
				}
				target, more := nextOfSection(k, sec, sections)
				if !more {
					return nil
				}
				for range hopAfter {
					k, b, ok, err = step(s.path, c)
					if err != nil || !ok || k.Compare(target) >= 0 {
						break
					}
				}
				if err == nil && ok && k.Compare(target) < 0 {
					k, b, ok, err = seek(target)
				}
				if err != nil || !ok {
					return err
				}
			}
			if len(out) == limit {
				done = false
				return nil
			}
			r, err := openRecord(appendKey(nil, k), b)
			if err != nil {
				return &CorruptError{Path: s.path, What: "record of key " + k.String(), Err: err}
			}
			out = append(out, KeyRecord{Key: k, Record: r})
			next = k
		}
		return err
	}))
	// The changes win over the file; those past where the file's page ended wait for the next call.
	return mergeChanges(out, changed, next, done, limit)
}

func mergeChanges(file []KeyRecord, changed map[ids.Key]state.Record, upTo ids.Key, done bool, limit int) ([]KeyRecord, ids.Key, bool) {
	if len(changed) == 0 {
		return file, upTo, done
	}
	all := make(map[ids.Key]state.Record, len(file)+len(changed))
	for _, kr := range file {
		all[kr.Key] = kr.Record
	}
	for k, r := range changed {
		if done || k.Compare(upTo) <= 0 {
			all[k] = r
		}
	}
	out := make([]KeyRecord, 0, len(all))
	for _, k := range slices.SortedFunc(maps.Keys(all), ids.Key.Compare) {
		out = append(out, KeyRecord{Key: k, Record: all[k]})
	}
	if len(out) > limit {
		out, done = out[:limit], false
		upTo = out[limit-1].Key
	} else if done && len(out) > 0 {
		upTo = out[len(out)-1].Key
	}
	return out, upTo, done
}

// changedKeys are the records of a section that are not in the file yet.
func (s *Store) changedKeys(sec ids.Section, sections uint32, after ids.Key) map[ids.Key]state.Record {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var changed map[ids.Key]state.Record
	collect := func(g *generation) {
		for k, r := range g.records {
			if k.Section(sections) == sec && (after == (ids.Key{}) || k.Compare(after) > 0) {
				if changed == nil {
					changed = map[ids.Key]state.Record{}
				}
				changed[k] = r
			}
		}
	}
	for _, g := range s.frozen {
		collect(g)
	}
	collect(s.active)
	return changed
}

func step(path string, c *bbolt.Cursor) (ids.Key, []byte, bool, error) {
	key, b := c.Next()
	return decodeCursor(path, key, b)
}

func decodeCursor(path string, key, b []byte) (ids.Key, []byte, bool, error) {
	if key == nil {
		return ids.Key{}, nil, false, nil
	}
	k, err := decodeKey(key)
	if err != nil {
		return k, nil, false, &CorruptError{Path: path, What: "key", Err: err}
	}
	return k, b, true, nil
}

// nextOfSection is the first possible key of a section after k, which is of another one.
func nextOfSection(k ids.Key, sec ids.Section, sections uint32) (ids.Key, bool) {
	n := uint64(sections)
	block := k.Hi >> ids.BlockShift
	ahead := (uint64(sec) + n - block%n) % n
	if block+ahead <= ^uint64(0)>>ids.BlockShift {
		return ids.Key{Space: k.Space, Hi: (block + ahead) << ids.BlockShift}, true
	}
	if k.Space == ^ids.SpaceID(0) {
		return ids.Key{}, false
	}
	return ids.Key{Space: k.Space + 1, Hi: uint64(sec) << ids.BlockShift}, true
}
