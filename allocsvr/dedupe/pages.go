package dedupe

import (
	"cmp"
	"errors"
	"slices"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// pageQueue has all pages, oldest first. Dropped ones are passed over when met,
// and forgotten before they outnumber the others.
type pageQueue struct {
	queue    []*page
	unsorted bool // pages were read back in another order
	live     int
}

// pageSlack is how many dropped pages are kept listed whatever the others are.
const pageSlack = 64

func (q *pageQueue) add(p *page) {
	if n := len(q.queue); n > 0 && q.queue[n-1].serial > p.serial {
		q.unsorted = true
	}
	if len(q.queue) >= 2*q.live+pageSlack {
		q.queue = slices.DeleteFunc(q.queue, func(p *page) bool { return p.dropped })
	}
	q.queue = append(q.queue, p)
	q.live++
}

func (q *pageQueue) drop(p *page) {
	if !p.dropped {
		p.dropped = true
		q.live--
	}
}

// oldest returns up to n pages, oldest first, and forgets the dropped ones before them.
func (q *pageQueue) oldest(n int) []*page {
	if q.unsorted {
		slices.SortFunc(q.queue, func(a, b *page) int { return cmp.Compare(a.serial, b.serial) })
		q.unsorted = false
	}
	for len(q.queue) > 0 && q.queue[0].dropped {
		q.queue = q.queue[1:]
	}
	pages := make([]*page, 0, n)
	for _, p := range q.queue {
		if !p.dropped {
			pages = append(pages, p)
		}
		if len(pages) == n {
			break
		}
	}
	return pages
}

func (t *Table) list(p *page) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.pages[p.space]
	if q == nil {
		q = &pageQueue{}
		t.pages[p.space] = q
	}
	q.add(p)
	t.live++
	t.serial = max(t.serial, p.serial)
}

func (t *Table) unlist(p *page) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !p.dropped {
		t.live--
	}
	t.pages[p.space].drop(p)
}

func (t *Table) nextSerial() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.serial++
	return t.serial
}

// oldest returns up to n pages, oldest first: of one space, or of all.
func (t *Table) oldest(n int, of ...ids.SpaceID) []*page {
	t.mu.Lock()
	defer t.mu.Unlock()
	var pages []*page
	for space, q := range t.pages {
		if len(of) == 0 || space == of[0] {
			pages = append(pages, q.oldest(n)...)
		}
	}
	slices.SortFunc(pages, func(a, b *page) int { return cmp.Compare(a.serial, b.serial) })
	return pages[:min(n, len(pages))]
}

// over is by how many pages a space, with one more, would exceed its own bound.
func (t *Table) over(space ids.SpaceID) int {
	most, ok := t.limits.Load().pagesMax[space]
	if !ok {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if q := t.pages[space]; q != nil {
		return q.live + 1 - most
	}
	return 0
}

const stealFew = 16

// page gets a page for a locked section: a new one, or the oldest of any section
// that can be had. A space with a bound of its own takes its own oldest when it has
// come to it. If all of those are in use this moment it takes another, and gives
// more back the next time.
func (t *Table) page(s *section, space ids.SpaceID) (*arena.Page, error) {
	var got *arena.Page
	for over := t.over(space); over > 0; over-- {
		mem := t.stealOldest(s, space)
		if mem == nil {
			break
		}
		if got != nil {
			t.arena.GivePage(mem)
			continue
		}
		got = mem
	}
	if got != nil {
		return got, nil
	}
	var full error
	t.mu.Lock()
	room := t.live < t.pagesMax
	t.mu.Unlock()
	if room {
		mem, err := t.arena.TakePage(s.no)
		var fe *arena.FullError
		if err == nil || !errors.As(err, &fe) {
			return mem, err
		}
		full = err
	}
	if mem := t.stealOldest(s); mem != nil {
		return mem, nil
	}
	if full == nil {
		full = &arena.FullError{
			Path: "request-id window", Need: int64(t.pagesMax+1) * arena.PageWords * 8, Limit: int64(t.pagesMax) * arena.PageWords * 8,
		}
	}
	return nil, full
}

// stealOldest drops the oldest page that can be had, of one space or of all, for the
// use of a locked section; nil if there is none.
func (t *Table) stealOldest(to *section, of ...ids.SpaceID) *arena.Page {
	for _, n := range []int{stealFew, t.pagesMax} { // all only if the first few are in use
		for _, p := range t.oldest(n, of...) {
			if mem := t.steal(p, to); mem != nil {
				return mem
			}
		}
	}
	return nil
}

// steal drops a page of a section for the use of another, locked, one. A section that is
// locked by somebody else is passed over: waiting for it could be waiting for each other.
func (t *Table) steal(p *page, to *section) *arena.Page {
	if p.s != to {
		if !p.s.mu.TryLock() {
			return nil
		}
		defer p.s.mu.Unlock()
		if t.arena.Life(p.s.no) != p.s.life {
			p.s.load() // its pages are gone already; no longer counted
			return nil
		}
	}
	if p.reserved != 0 || p.s.ords[p.ord] != p {
		return nil
	}
	live := p.s.index.live
	mem := p.s.drop(p)
	t.forgotten.Add(uint64(live - p.s.index.live))
	return t.arena.MovePage(mem, to.no)
}

// resumed reads all that a dead process left.
func (t *Table) resumed(sections uint32) {
	t.count = sections
	for no := range ids.Section(sections) {
		if pages, _ := t.arena.Pages(no); len(pages) == 0 {
			continue
		}
		s := t.section(no)
		s.mu.Lock()
		s.load()
		s.mu.Unlock()
	}
}

// keep puts the record of an interrupted request in its place.
func (t *Table) keep(in arena.Intent) error {
	s := t.section(in.Key.Section(t.count))
	s.mu.Lock()
	defer s.mu.Unlock()
	d := Digest{in.Data[0], in.Data[1] & lowBits48}
	at, afterHole := in.Data[2]&^(1<<63), in.Data[2]>>63 != 0
	if t.arena.Life(s.no) != s.life {
		s.load()
	}
	if _, ok := s.find(d); ok {
		return nil
	}
	r, err := s.reserveLocked(in.Key.Space, at)
	if err != nil {
		return err
	}
	r.write(d, in.First, countWord(uint32(in.N), afterHole), at)
	r.p.reserved--
	s.index.put(d.A, placeOf(r.p.ord, r.entry), s.digestA)
	return nil
}
