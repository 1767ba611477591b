package disk

import (
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
	// Gaps is its ledger, if the filter asked for it. It must not be changed.
	Gaps []state.Gap
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
	// Ledgers are wanted too.
	Ledgers bool
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
	// scanStepsMax bounds how many keys of no interest one page walks over.
	scanStepsMax = 64 << 10
	// hopAfter is how many neighbours are stepped over before seeking: a step is far cheaper.
	hopAfter = 8
	// hopSections: with more sections of interest than this there is nothing to hop over.
	hopSections = 16
	// pageGrows is with how many records a page gets the room for all that it may have.
	pageGrows = 256
)

// scanner walks over the file and the changes of a Cut side by side, in key order.
// Where both have a key, the change is the newer one.
type scanner struct {
	cut  *Cut
	file *recordCursor
	// key is the file's present one.
	key ids.Key
	// ledgers are the file's.
	ledgers walk

	// counting: only n is wanted, how many of interest there are.
	counting bool
	n        int
	out      []KeyRecord
	steps    int
	// next is where to go on after, and done says that nothing is left there.
	next ids.Key
	done bool
}

func (s *scanner) run(tx *bbolt.Tx) error {
	f, after, changes := &s.cut.filter, s.cut.after, s.cut.changes
	s.file = newRecordCursor(s.cut.store.path, tx)
	s.ledgers.cursor = tx.Bucket(bucketGaps).Cursor()
	inFile, err := s.seek(f.first(after))
	if err == nil && inFile && s.key == after && after != (ids.Key{}) {
		inFile, err = s.step()
	}
	for err == nil {
		inFile = inFile && !f.beyond(s.key) && !s.cut.beyond(s.key)
		switch {
		case len(changes) > 0 && (!inFile || changes[0].key.Compare(s.key) <= 0):
			c := changes[0]
			changes = changes[1:]
			if !c.deleted {
				if full, err := s.take(c.key, c.record); full || err != nil {
					return err
				}
			}
			if inFile && c.key == s.key {
				inFile, err = s.step()
			}
		case !inFile:
			if s.cut.cutOff {
				s.next, s.done = s.cut.last, false
			}
			return nil
		case f.covers(s.key):
			var r state.Record
			if !s.counting || f.Match != nil {
				if r, err = s.file.record(); err != nil {
					return err
				}
			}
			if full, err := s.take(s.key, r); full || err != nil {
				return err
			}
			inFile, err = s.step()
		default:
			if s.steps++; s.steps > scanStepsMax {
				s.next, s.done = s.key, false
				return nil
			}
			inFile, err = s.hop()
		}
	}
	return err
}

// take adds a record to the page, if it is of interest; full: the page ends here.
func (s *scanner) take(k ids.Key, r state.Record) (full bool, err error) {
	f := &s.cut.filter
	if !f.Wants(k, r) {
		s.next = k
		s.steps++
		s.done = s.steps <= scanStepsMax
		return !s.done, nil
	}
	if s.n == s.cut.limit {
		s.done = false
		return true, nil
	}
	s.n, s.next = s.n+1, k
	if s.counting {
		return false, nil
	}
	kr := KeyRecord{Key: k, Record: r}
	if f.Ledgers {
		if kr.Gaps, err = s.ledger(k); err != nil {
			return false, err
		}
	}
	if n := len(s.out); n == pageGrows {
		s.out = slices.Grow(s.out, s.cut.limit-n) // a full page is the rule
	}
	s.out = append(s.out, kr)
	return false, nil
}

// ledger of a key: as memory has it, or else the file.
func (s *scanner) ledger(k ids.Key) ([]state.Gap, error) {
	if gaps, known := s.cut.ledger(k); known {
		return gaps, nil
	}
	b, err := s.ledgers.to(k)
	if b == nil || err != nil {
		return nil, err
	}
	gaps, err := openGaps(s.ledgers.raw, b)
	if err != nil {
		err = &CorruptError{Path: s.cut.store.path, What: "gap ledger of key " + k.String(), Err: err}
	}
	return gaps, err
}

// hop goes to the next key that may be of interest.
func (s *scanner) hop() (bool, error) {
	f := &s.cut.filter
	if f.Of == nil || len(f.Of) > hopSections {
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
	f := &s.cut.filter
	for sec := range f.Of {
		k, ok := nextOfSection(s.key, sec, f.Sections)
		if ok && (!more || k.Compare(target) < 0) {
			target, more = k, true
		}
	}
	return target, more
}

func (s *scanner) seek(k ids.Key) (more bool, err error) { return s.at(s.file.seek(k)) }

func (s *scanner) step() (more bool, err error) { return s.at(s.file.next()) }

func (s *scanner) at(err error) (more bool, _ error) {
	s.key, more = s.file.key()
	return more && err == nil, err
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
