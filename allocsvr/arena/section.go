package arena

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// section is what Go memory knows of one section: its persisted word, and where
// its keys are, so that closing or forgetting it looks at nothing else.
type section struct {
	no   ids.Section
	word *atomic.Uint64 // sealed word: closed flag, epoch; 0: never opened
	// since is a sealed word: from when on its records are complete, in Unix ms; 0: not said.
	since *atomic.Uint64
	keys  atomic.Int64
	// life is unique to what the section holds now: it changes when all is forgotten.
	life atomic.Uint64

	mu    sync.Mutex
	pages map[pageID]*pageMeta
	names []nameSet // by space ordinal
	// unsettled: names were freed that may have readers still.
	unsettled bool

	records []*Page
}

type pageID struct {
	space int // ordinal
	block uint64
}

type pageMeta struct {
	mem  *page
	slot uint32
	used int // cells in use
	// marks of the last look; see Shelf. nil before the first.
	marks *[cellsPerPage / 2]uint8
}

func sectionSalt(s ids.Section) uint64 { return uint64(s)*mulHi + mulSpace }

func (s *section) state() (epoch ids.Epoch, closed bool) {
	w := s.word.Load()
	value, closed, _ := unseal(w, sectionSalt(s.no))
	if w == 0 {
		return 0, false
	}
	return ids.Epoch(value), closed
}

func (s *section) set(epoch ids.Epoch, closed bool) {
	s.word.Store(seal(uint64(epoch), closed, sectionSalt(s.no)))
}

// slotList is where a section's keys are, in an order that does not change from run to run.
type slotList struct {
	uids  []listedPage
	names []listedNames
}

type listedPage struct {
	id  pageID
	mem *page
}

type listedNames struct {
	space int
	mem   *page
}

// list may be called only with the section locked.
func (s *section) list() slotList {
	var l slotList
	for id, meta := range s.pages {
		l.uids = append(l.uids, listedPage{id, meta.mem})
	}
	slices.SortFunc(l.uids, func(a, b listedPage) int {
		return cmp.Or(cmp.Compare(a.id.space, b.id.space), cmp.Compare(a.id.block, b.id.block))
	})
	for ord := range s.names {
		for _, t := range s.names[ord].all() {
			if t == nil {
				continue
			}
			for i := range t.slots {
				if p := t.slots[i].Load(); p != nil {
					l.names = append(l.names, listedNames{ord, p})
				}
			}
		}
	}
	return l
}

func (l slotList) each(m *memory, f func(ids.Key, Cell) bool) {
	for _, p := range l.uids {
		if !eachUID(m, p.id, p.mem, f) {
			return
		}
	}
	for _, n := range l.names {
		if !eachName(m, n.space, n.mem, f) {
			return
		}
	}
}

func eachUID(m *memory, id pageID, p *page, f func(ids.Key, Cell) bool) bool {
	k := ids.Key{Space: m.spaces[id.space].ID}
	for i := range uint64(cellsPerPage) {
		w := uidCell(p, i)
		if w[0].Load() == 0 {
			continue
		}
		k.Hi = id.block<<ids.BlockShift | i
		if !f(k, m.cell(w, k)) {
			return false
		}
	}
	return true
}

func eachName(m *memory, ord int, p *page, f func(ids.Key, Cell) bool) bool {
	k := ids.Key{Space: m.spaces[ord].ID}
	for i := range namesPerSlot {
		e := nameEntry(p, i)
		w := nameCell(e)
		if w[0].Load() == 0 {
			continue
		}
		k.Hi, k.Lo = e[0].Load(), e[1].Load()
		if !f(k, m.cell(w, k)) {
			return false
		}
	}
	return true
}
