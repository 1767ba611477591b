package dedupe

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// section is the window of one section. What it has follows the arena: when the
// section's life there has changed, all of this is dropped and read again.
type section struct {
	t  *Table
	no ids.Section

	mu   sync.Mutex
	life uint64
	// since: all answers given from then on (Unix ms) are on record. 0: not known yet.
	since     uint64
	importing bool
	begun     bool    // a request was carried out, or is, in this life
	pages     []*page // oldest first
	ords      []*page // by ordinal; nil: free
	// writing has the newest page of each space, which is written to.
	writing map[ids.SpaceID]*page
	// cut is since when a space's answers are on record, where that is later than since.
	cut     map[ids.SpaceID]uint64
	index   index
	spare   []reserved
	pending map[Digest]*Pending
}

type page struct {
	s            *section
	mem          *arena.Page
	space        ids.SpaceID // of its records; 0: of any
	ord          int
	base, serial uint64
	salt         uint64
	newest       uint64 // Unix ms
	next         int    // entry to use next
	reserved     int    // entries given out and not committed yet
	dropped      bool   // under Table.mu
}

// fits reports whether a record of this moment can be told from the page's base.
func (p *page) fits(now uint64) bool { return now <= p.base || now-p.base <= deltaMax }

// reserved is the place of a record to be.
type reserved struct {
	p     *page
	entry int
}

func (r reserved) write(d Digest, first ids.Seq, n uint32, at uint64) {
	delta := uint64(0)
	if at > r.p.base { // a clock that went back is held at the page's base
		delta = min(at-r.p.base, deltaMax)
	}
	writeEntry(entryAt(r.p.mem.Words, r.entry), d, first, uint32(delta), n, r.p.salt)
}

// sinceFor is since when all answers of a space are on record and not too old.
func (s *section) sinceFor(space ids.SpaceID, now uint64) uint64 {
	since, window := max(s.since, s.cut[space]), s.t.window(space)
	if now < window {
		return since
	}
	return max(since, now-window)
}

// sinceForAll is since when answers of every space are on record.
func (s *section) sinceForAll() uint64 {
	since := s.since
	for _, cut := range s.cut {
		since = max(since, cut)
	}
	return since
}

func (s *section) entry(at place) Entry {
	ord, i := at.split()
	p := s.ords[ord]
	e, _, _ := readEntry(entryAt(p.mem.Words, i), p.base, p.salt)
	e.Space = p.space
	return e
}

func (s *section) digestA(at place) uint64 {
	ord, i := at.split()
	return entryAt(s.ords[ord].mem.Words, i)[0].Load()
}

func (s *section) find(d Digest) (place, bool) {
	return s.index.find(d.A, func(at place) bool {
		ord, i := at.split()
		w := entryAt(s.ords[ord].mem.Words, i)
		return w[0].Load() == d.A && w[1].Load()&lowBits48 == d.B
	})
}

// forget drops one record.
func (s *section) forget(at place, d Digest) {
	s.index.remove(d.A, at, s.digestA)
	ord, i := at.split()
	entryAt(s.ords[ord].mem.Words, i)[1].Store(0)
}

// refresh makes the section what the arena has of it.
func (s *section) refresh(now uint64) {
	if s.t.arena.Life(s.no) != s.life {
		s.load()
	}
	if s.since == 0 && now != 0 {
		s.since = now
		s.t.arena.NoteRecordsSince(s.no, now)
	}
}

func (s *section) load() {
	for _, p := range s.pages {
		s.t.unlist(p)
	}
	s.pages, s.ords, s.index, s.spare = nil, nil, index{}, nil
	s.begun, s.importing = false, false
	s.writing, s.cut = make(map[ids.SpaceID]*page), make(map[ids.SpaceID]uint64)
	s.pending = make(map[Digest]*Pending) // those of before end by themselves
	var found []*arena.Page
	found, s.life = s.t.arena.Pages(s.no)
	s.since = s.t.arena.RecordsSince(s.no)
	if err := s.read(found); err != nil {
		s.t.log.Warn("request ids are forgotten", zap.Uint32("section", uint32(s.no)), zap.Error(err))
		for _, p := range s.pages {
			s.t.unlist(p)
		}
		s.pages, s.ords, s.index, s.since = nil, nil, index{}, 0
		clear(s.writing)
		s.t.arena.NoteRecordsSince(s.no, 0)
		for _, p := range found {
			s.t.arena.GivePage(p)
		}
	}
}

// read verifies every record and builds the index.
func (s *section) read(found []*arena.Page) error {
	var pages []*page
	for i, mem := range found {
		base, serial, salt, space, used, ok := readHead(mem.Words, s.no)
		if !ok {
			return &UntrustedError{Section: s.no, Page: i, Entry: -1, Detail: "the head does not match its check"}
		}
		if !used {
			s.t.arena.GivePage(mem)
			continue
		}
		pages = append(pages, &page{s: s, mem: mem, space: space, base: base, serial: serial, salt: salt, newest: base})
	}
	slices.SortFunc(pages, func(a, b *page) int { return cmp.Compare(a.serial, b.serial) })
	for n, p := range pages {
		s.add(p)
		for i := range pageEntries {
			e, used, ok := readEntry(entryAt(p.mem.Words, i), p.base, p.salt)
			if !ok {
				return &UntrustedError{Section: s.no, Page: n, Entry: i, Detail: "it does not match its check"}
			}
			if !used {
				continue
			}
			if _, twice := s.find(e.Digest); twice {
				return &UntrustedError{Section: s.no, Page: n, Entry: i, Detail: fmt.Sprintf("the request %x is there twice", e.Digest)}
			}
			p.next = i + 1
			p.newest = max(p.newest, e.At)
			s.index.put(e.A, placeOf(p.ord, i), s.digestA)
		}
	}
	return nil
}

// add lists a page as the newest.
func (s *section) add(p *page) {
	p.ord = slices.Index(s.ords, nil)
	if p.ord < 0 {
		p.ord = len(s.ords)
		s.ords = append(s.ords, nil)
	}
	s.ords[p.ord] = p
	s.pages = append(s.pages, p)
	s.writing[p.space] = p
	s.t.list(p)
}

// reserve finds a place for a record of this moment. Hold the arena's Guard.
func (s *section) reserve(life uint64, space ids.SpaceID, now uint64) (reserved, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != life || s.t.arena.Life(s.no) != life {
		return reserved{}, ErrMoved
	}
	return s.reserveLocked(space, now)
}

func (s *section) reserveLocked(space ids.SpaceID, now uint64) (reserved, error) {
	for i := len(s.spare) - 1; i >= 0 && !s.importing; i-- {
		r := s.spare[i]
		if r.p.space != space || !r.p.fits(now) {
			continue
		}
		s.spare = slices.Delete(s.spare, i, i+1)
		r.p.reserved++
		r.p.newest = max(r.p.newest, now)
		return r, nil
	}
	p := s.writing[space]
	if p == nil || p.next == pageEntries || !p.fits(now) || s.importing && now < p.base {
		var err error
		if p, err = s.newPage(space, now); err != nil {
			return reserved{}, err
		}
	}
	r := reserved{p, p.next}
	p.next++
	p.reserved++
	p.newest = max(p.newest, now)
	return r, nil
}

func (s *section) newPage(space ids.SpaceID, now uint64) (*page, error) {
	for len(s.pages) > 0 && s.pages[0].reserved == 0 && s.pages[0].newest+s.t.longest() < now {
		s.t.arena.GivePage(s.drop(s.pages[0]))
	}
	mem, err := s.t.page(s, space)
	if err != nil {
		return nil, err
	}
	p := &page{s: s, mem: mem, space: space, base: now, newest: now, serial: s.t.nextSerial()}
	p.salt = writeHead(mem.Words, s.no, p.base, p.serial, space)
	s.add(p)
	return p, nil
}

// drop forgets a page of records, after Since no longer promises them.
func (s *section) drop(p *page) *arena.Page {
	switch since := p.newest + 1; {
	case p.space == 0:
		s.since = max(s.since, since)
	case since > s.since:
		s.cut[p.space] = max(s.cut[p.space], since)
	}
	// What is noted is for all spaces. In an import, what is noted already is later
	// than what the import will allow.
	if since := s.sinceForAll(); !s.importing || s.t.arena.RecordsSince(s.no) < since {
		s.t.arena.NoteRecordsSince(s.no, since)
	}
	for i := range pageEntries {
		w := entryAt(p.mem.Words, i)
		if w[1].Load() != 0 {
			s.index.remove(w[0].Load(), placeOf(p.ord, i), s.digestA)
		}
	}
	s.spare = slices.DeleteFunc(s.spare, func(r reserved) bool { return r.p == p })
	s.pages = slices.DeleteFunc(s.pages, func(q *page) bool { return q == p })
	s.ords[p.ord] = nil
	if s.writing[p.space] == p {
		delete(s.writing, p.space)
	}
	s.t.unlist(p)
	return p.mem
}

// unreserve keeps a place for the next record.
func (s *section) unreserve(life uint64, r reserved) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life == life {
		r.p.reserved--
		s.spare = append(s.spare, r)
	}
}

// commit makes a written record findable, in the place of the pending request.
func (s *section) commit(life uint64, r reserved, d Digest, pending *Pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != life {
		return
	}
	r.p.reserved--
	s.index.put(d.A, placeOf(r.p.ord, r.entry), s.digestA)
	if s.pending[d] == pending {
		delete(s.pending, d)
	}
}

func (s *section) abandon(d Digest, pending *Pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending[d] == pending {
		delete(s.pending, d)
	}
}
