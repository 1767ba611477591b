package disk

import (
	"maps"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// KeyRecord is a key with what is known of it.
type KeyRecord struct {
	Key    ids.Key
	Record state.Record
}

// Filter says which records a scan wants.
type Filter struct {
	// Within, if set, is the range that they are of; it is walked over alone.
	Within *sets.Range
	// Sections that the Set has, and those of interest; nil Of: all.
	Sections uint32
	Of       map[ids.Section]bool
	// Match, if set, must want the record too.
	Match func(ids.Section, state.Record) bool
}

// Wants tells whether the record is of interest.
func (f *Filter) Wants(k ids.Key, r state.Record) bool {
	return f.covers(k) && (f.Match == nil || f.Match(k.Section(f.Sections), r))
}

// covers tells whether records of the key may be of interest.
func (f *Filter) covers(k ids.Key) bool {
	return (f.Within == nil || f.Within.Contains(k.Space, k.Position())) && (f.Of == nil || f.Of[k.Section(f.Sections)])
}

// first is where a scan that goes on after a key looks first.
func (f *Filter) first(after ids.Key) ids.Key {
	if f.Within != nil {
		if lo := (ids.Key{Space: f.Within.Space, Hi: uint64(f.Within.Lo)}); after.Compare(lo) < 0 {
			return lo
		}
	}
	return after
}

// beyond: neither the key nor any after it is of interest.
func (f *Filter) beyond(k ids.Key) bool {
	return f.Within != nil && (k.Space > f.Within.Space || k.Space == f.Within.Space && k.Position() > f.Within.Last)
}

const (
	// scanStepsMax bounds how many keys of no interest one Scan walks over.
	scanStepsMax = 64 << 10
	// hopAfter is how many neighbours are stepped over before seeking: a step is far cheaper.
	hopAfter = 8
	// hopSections: with more sections of interest than this there is nothing to hop over.
	hopSections = 16
)

// Scan visits records in key order, after a key (the zero Key for the
// beginning), from the file and the changes that are not in it yet. It answers
// at most limit records and where to go on; done says that there are no more.
func (s *Store) Scan(f Filter, after ids.Key, limit int) (out []KeyRecord, next ids.Key, done bool) {
	changed := s.changes(&f, after)
	sc := scanner{store: s, filter: &f, after: after, limit: limit, next: after, done: true}
	s.must(s.view(sc.run))
	return mergeChanges(&f, &sc, changed)
}

// scanner is one page read from the file.
type scanner struct {
	store  *Store
	filter *Filter
	after  ids.Key
	limit  int

	cursor *bbolt.Cursor
	key    ids.Key
	value  []byte

	out   []KeyRecord
	steps int
	next  ids.Key
	done  bool
}

func (s *scanner) run(tx *bbolt.Tx) error {
	s.cursor = tx.Bucket(bucketRecords).Cursor()
	ok, err := s.seek(s.filter.first(s.after))
	if err == nil && ok && s.key == s.after && s.after != (ids.Key{}) {
		ok, err = s.step()
	}
	for err == nil && ok && !s.filter.beyond(s.key) {
		if s.filter.covers(s.key) {
			var full bool
			if full, err = s.take(); full || err != nil {
				return err
			}
			ok, err = s.step()
			continue
		}
		if s.steps++; s.steps > scanStepsMax {
			s.next, s.done = s.key, false
			return nil
		}
		ok, err = s.hop()
	}
	return err
}

// take adds the present record to the page; full says that it has no room.
func (s *scanner) take() (full bool, err error) {
	r, err := openRecord(appendKey(nil, s.key), s.value)
	if err != nil {
		return false, &CorruptError{Path: s.store.path, What: "record of key " + s.key.String(), Err: err}
	}
	if !s.filter.Wants(s.key, r) {
		s.steps++
		s.next = s.key
		return false, nil
	}
	if len(s.out) == s.limit || s.steps > scanStepsMax {
		s.done = false
		return true, nil
	}
	s.out, s.next = append(s.out, KeyRecord{Key: s.key, Record: r}), s.key
	return false, nil
}

// hop goes to the next key that may be of interest.
func (s *scanner) hop() (bool, error) {
	if s.filter.Of == nil || len(s.filter.Of) > hopSections {
		return s.step()
	}
	target, more := s.target()
	if !more {
		return false, nil
	}
	for range hopAfter {
		ok, err := s.step()
		if err != nil || !ok || s.key.Compare(target) >= 0 {
			return ok, err
		}
	}
	return s.seek(target)
}

// target is the first possible key of interest after the present one.
func (s *scanner) target() (target ids.Key, more bool) {
	for sec := range s.filter.Of {
		k, ok := nextOfSection(s.key, sec, s.filter.Sections)
		if ok && (!more || k.Compare(target) < 0) {
			target, more = k, true
		}
	}
	return target, more
}

func (s *scanner) seek(k ids.Key) (bool, error) {
	key, b := s.cursor.Seek(appendKey(nil, k))
	return s.at(key, b)
}

func (s *scanner) step() (bool, error) {
	key, b := s.cursor.Next()
	return s.at(key, b)
}

func (s *scanner) at(key, b []byte) (bool, error) {
	if key == nil {
		return false, nil
	}
	k, err := decodeKey(key)
	if err != nil {
		return false, &CorruptError{Path: s.store.path, What: "key", Err: err}
	}
	s.key, s.value = k, b
	return true, nil
}

// mergeChanges: the changes win over the file; those past where the file's page
// ended wait for the next call.
func mergeChanges(f *Filter, sc *scanner, changed map[ids.Key]change) ([]KeyRecord, ids.Key, bool) {
	if len(changed) == 0 {
		return sc.out, sc.next, sc.done
	}
	all := make(map[ids.Key]state.Record, len(sc.out))
	for _, kr := range sc.out {
		all[kr.Key] = kr.Record
	}
	for k, c := range changed {
		delete(all, k)
		if r := c.record; !c.deleted && f.Wants(k, r) && (sc.done || k.Compare(sc.next) <= 0) {
			all[k] = r
		}
	}
	out := make([]KeyRecord, 0, len(all))
	for _, k := range slices.SortedFunc(maps.Keys(all), ids.Key.Compare) {
		out = append(out, KeyRecord{Key: k, Record: all[k]})
	}
	if len(out) > sc.limit {
		return out[:sc.limit], out[sc.limit-1].Key, false
	}
	return out, sc.next, sc.done
}

// change is what happened to a record since the file was written.
type change struct {
	record  state.Record
	deleted bool
}

// changes are the records after a key, of interest by their key, that are not in
// the file yet. Those that do not match count too: they hide what the file has.
func (s *Store) changes(f *Filter, after ids.Key) map[ids.Key]change {
	changed := map[ids.Key]change{}
	note := func(k ids.Key, c change) {
		if _, newer := changed[k]; !newer && f.covers(k) && (after == (ids.Key{}) || k.Compare(after) > 0) {
			changed[k] = c
		}
	}
	add := func(g *generation) {
		for k, r := range g.records {
			note(k, change{record: r})
		}
		for k := range g.deleted {
			note(k, change{deleted: true})
		}
	}
	s.mu.RLock()
	add(s.active)
	frozen := slices.Clone(s.frozen)
	s.mu.RUnlock()
	// They never change, so applying does not have to wait for this.
	for _, g := range slices.Backward(frozen) {
		add(g)
	}
	return changed
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
