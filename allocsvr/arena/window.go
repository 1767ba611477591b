package arena

import (
	"slices"
	"sync/atomic"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Page is 4096 bytes for records of one section that live and die with its keys
// (the request-id window). What is in it, and how a torn record is told, is its user's affair.
type Page struct {
	Words   *[PageWords]atomic.Uint64
	section ids.Section
	slot    uint32
	life    uint64
}

// PageWords is how many words a Page has.
const PageWords = pageWords

// Life identifies what the section holds now: it changes with OpenSection,
// FreeSection, Reset and Adopt. Pages of an earlier life may be used only under a
// Guard entered while it lasted. 0: the arena is not ready.
func (a *Arena) Life(s ids.Section) uint64 {
	m := a.mem.Load()
	if m == nil || int(s) >= len(m.sections) {
		return 0
	}
	return m.sections[s].life.Load()
}

// TakePage gives the section a zeroed page; *FullError if there is none. Hold the Guard.
func (a *Arena) TakePage(s ids.Section) (*Page, error) {
	sec, m, err := a.section(s)
	if err != nil {
		return nil, err
	}
	sec.mu.Lock()
	defer sec.mu.Unlock()
	if epoch, _ := sec.state(); epoch == 0 {
		return nil, &SectionClosedError{Section: s}
	}
	slot, mem, err := m.pool.take(dirEntry{kind: kindRecords, no: uint64(s)})
	if err != nil {
		return nil, err
	}
	p := &Page{Words: mem, section: s, slot: slot, life: sec.life.Load()}
	sec.records = append(sec.records, p)
	return p, nil
}

// GivePage takes a page back; one of an earlier life is gone already. Hold the Guard.
func (a *Arena) GivePage(p *Page) {
	sec, m, err := a.section(p.section)
	if err != nil {
		return
	}
	if sec.dropRecords(p) {
		m.pool.give(p.slot)
	}
}

// Pages lists the section's pages and tells the life they are of. Hold the Guard.
func (a *Arena) Pages(s ids.Section) (pages []*Page, life uint64) {
	sec, _, err := a.section(s)
	if err != nil {
		return nil, 0
	}
	sec.mu.Lock()
	defer sec.mu.Unlock()
	return slices.Clone(sec.records), sec.life.Load()
}

func sinceSalt(s ids.Section) uint64 { return uint64(s)*mulLo + mulSpace }

// RecordsSince is from when on the section's records are complete, in Unix ms, as
// last noted in this life; 0: not said. Hold the Guard.
func (a *Arena) RecordsSince(s ids.Section) uint64 {
	sec, _, err := a.section(s)
	if err != nil {
		return 0
	}
	w := sec.since.Load()
	if w == 0 {
		return 0
	}
	ms, _, _ := unseal(w, sinceSalt(s))
	return ms
}

// NoteRecordsSince persists it. Hold the Guard.
func (a *Arena) NoteRecordsSince(s ids.Section, ms uint64) {
	if sec, _, err := a.section(s); err == nil {
		sec.since.Store(seal(ms, false, sinceSalt(s)))
	}
}

// OnAdopt has resumed called by Adopt, before it returns, and then commit for each
// Note of the dead process that was on its way; see Note. Call it before Adopt.
func (a *Arena) OnAdopt(resumed func(sections uint32), commit func(Intent) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.resumed, a.commit = resumed, commit
}

// MovePage empties a page and gives it to another section (or the same one anew),
// for users who are short of pages. The old *Page must not be used any more, and
// nobody may be using its memory. nil: it was gone already.
func (a *Arena) MovePage(p *Page, to ids.Section) *Page {
	from, m, err := a.section(p.section)
	if err != nil {
		return nil
	}
	dest, _, err := a.section(to)
	if err != nil {
		return nil
	}
	if !from.dropRecords(p) {
		return nil
	}
	dest.mu.Lock()
	defer dest.mu.Unlock()
	if epoch, _ := dest.state(); epoch == 0 {
		m.pool.give(p.slot)
		return nil
	}
	m.pool.renew(p.slot, dirEntry{kind: kindRecords, no: uint64(to)})
	q := &Page{Words: p.Words, section: to, slot: p.slot, life: dest.life.Load()}
	dest.records = append(dest.records, q)
	return q
}

// dropRecords takes a page out of the section's list, if it is still there.
func (s *section) dropRecords(p *Page) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.records, p)
	if i < 0 || s.life.Load() != p.life {
		return false
	}
	s.records = slices.Delete(s.records, i, i+1)
	return true
}
