package arena

import (
	"cmp"
	"fmt"
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

// memory is everything found of an arena's content; a Reset or Adopt installs it whole.
type memory struct {
	header   header
	spaces   []ids.Space
	ordinals []int16 // by space id; −1: unknown
	sections []*section
	pool     *slotPool
	owner    *cellOwner
	guard    *Guard
	intents  []atomic.Uint64

	indexMu sync.Mutex
	pages   []pageIndex // by space ordinal
}

// lives counts the lives of all sections of all arenas of this process.
var lives atomic.Uint64

func newMemory(h header, r Region, guard *Guard, owner *cellOwner, bytesMax int64) *memory {
	m := &memory{header: h, spaces: h.spaces, owner: owner, guard: guard}
	front := r.Words(0, h.frontBytes())
	table := front[h.bytes/8:]
	m.intents = table[tableBytesFor(h.sections)/8:]
	m.pool = &slotPool{
		region: r, guard: guard, bytesMax: bytesMax, front: h.frontBytes(), counter: &front[wordExtents],
	}
	for i := range h.extents {
		m.pool.extents = append(m.pool.extents, extentOf(r.Words(h.frontBytes()+int64(i)*extentBytes, extentBytes)))
	}
	highest := ids.SpaceID(0)
	for _, s := range h.spaces {
		highest = max(highest, s.ID)
	}
	m.ordinals = make([]int16, int(highest)+1)
	for i := range m.ordinals {
		m.ordinals[i] = -1
	}
	names := 0
	for i, s := range h.spaces {
		m.ordinals[s.ID] = int16(i)
		if s.Kind == ids.KindName {
			names = i + 1
		}
	}
	m.pages = make([]pageIndex, len(h.spaces))
	m.sections = make([]*section, h.sections)
	for i := range m.sections {
		m.sections[i] = &section{
			no: ids.Section(i), word: &table[i*sectionWords], since: &table[i*sectionWords+1], names: make([]nameSet, names),
		}
		m.sections[i].life.Store(lives.Add(1))
	}
	return m
}

// space returns the key's space and its ordinal.
func (m *memory) space(id ids.SpaceID) (ord int, kind ids.Kind, ok bool) {
	if int(id) >= len(m.ordinals) || m.ordinals[id] < 0 {
		return 0, 0, false
	}
	ord = int(m.ordinals[id])
	return ord, m.spaces[ord].Kind, true
}

func (m *memory) sectionOf(k ids.Key) *section {
	return m.sections[k.Section(m.header.sections)]
}

func (m *memory) cell(w *[cellWords]atomic.Uint64, k ids.Key) Cell {
	return Cell{w: w, salt: saltOf(k), own: m.owner}
}

func (m *memory) find(k ids.Key) (Cell, bool) {
	ord, kind, ok := m.space(k.Space)
	if !ok {
		return Cell{}, false
	}
	if kind == ids.KindUID {
		if k.Lo != 0 {
			return Cell{}, false
		}
		p := m.pages[ord].find(k.Hi >> ids.BlockShift)
		if p == nil {
			return Cell{}, false
		}
		w := uidCell(p, k.Hi)
		if w[0].Load() == 0 {
			return Cell{}, false
		}
		return m.cell(w, k), true
	}
	e := m.sectionOf(k).names[ord].find(k)
	if e == nil {
		return Cell{}, false
	}
	return m.cell(nameCell(e), k), true
}

// ensure may be called only with the section locked.
func (m *memory) ensure(s *section, ord int, kind ids.Kind, k ids.Key) (Cell, error) {
	if kind == ids.KindUID {
		return m.ensureUID(s, ord, k)
	}
	return m.ensureName(s, ord, k)
}

func (m *memory) ensureUID(s *section, ord int, k ids.Key) (Cell, error) {
	if k.Lo != 0 || k.Hi > m.spaces[ord].MaxUID {
		return Cell{}, fmt.Errorf("%w: %s is no uid of space %q", ids.ErrBadKey, k, m.spaces[ord].Name)
	}
	id := pageID{ord, k.Hi >> ids.BlockShift}
	meta := s.pages[id]
	if meta == nil {
		slot, mem, err := m.pool.take(dirEntry{kind: ids.KindUID, space: k.Space, no: id.block})
		if err != nil {
			return Cell{}, err
		}
		meta = m.addPage(s, id, slot, mem)
	}
	c := m.cell(uidCell(meta.mem, k.Hi), k)
	if c.w[0].Load() == 0 {
		c.use()
		meta.used++
		s.keys.Add(1)
	}
	return c, nil
}

// addPage makes a page reachable.
func (m *memory) addPage(s *section, id pageID, slot uint32, mem *page) *pageMeta {
	meta := &pageMeta{mem: mem, slot: slot}
	if s.pages == nil {
		s.pages = make(map[pageID]*pageMeta)
	}
	s.pages[id] = meta
	m.indexMu.Lock()
	defer m.indexMu.Unlock()
	m.pages[id.space].put(id.block, mem)
	return meta
}

func (m *memory) dropPage(s *section, id pageID, meta *pageMeta) {
	delete(s.pages, id)
	m.indexMu.Lock()
	m.pages[id.space].drop(id.block)
	m.indexMu.Unlock()
	m.pool.give(meta.slot)
}

func (m *memory) ensureName(s *section, ord int, k ids.Key) (Cell, error) {
	set := &s.names[ord]
	if e := set.find(k); e != nil {
		return m.cell(nameCell(e), k), nil
	}
	t := set.roomy(m.guard, m.pool.give)
	local, err := t.takeEntry(func() (uint32, *page, error) {
		return m.pool.take(dirEntry{kind: ids.KindName, space: k.Space, no: uint64(s.no)})
	})
	if err != nil {
		return Cell{}, err
	}
	e := nameEntry(t.slots[local/namesPerSlot].Load(), local%namesPerSlot)
	e[0].Store(k.Hi)
	e[1].Store(k.Lo)
	c := m.cell(nameCell(e), k)
	c.use()
	t.indexPut(k.Lo, local)
	s.keys.Add(1)
	return c, nil
}

// roomy returns a table with a free entry.
func (s *nameSet) roomy(guard *Guard, give func(uint32)) *nameTable {
	var tables []*nameTable
	if p := s.tables.Load(); p != nil {
		tables = *p
	}
	for _, t := range tables {
		t.settle(guard, give)
		if !t.full() {
			return t
		}
	}
	return s.addTable()
}

func (s *nameSet) addTable() *nameTable {
	var tables []*nameTable
	if p := s.tables.Load(); p != nil {
		tables = *p
	}
	t := newNameTable()
	next := append(append([]*nameTable(nil), tables...), t)
	s.tables.Store(&next)
	return t
}

// free may be called only with the section locked.
func (m *memory) free(s *section, ord int, kind ids.Kind, k ids.Key) {
	if kind == ids.KindUID {
		if k.Lo != 0 {
			return
		}
		id := pageID{ord, k.Hi >> ids.BlockShift}
		meta := s.pages[id]
		if meta == nil {
			return
		}
		c := m.cell(uidCell(meta.mem, k.Hi), k)
		if c.w[0].Load() == 0 {
			return
		}
		c.clear()
		s.keys.Add(-1)
		if meta.used--; meta.used == 0 {
			m.dropPage(s, id, meta)
		}
		return
	}
	tables := s.names[ord].tables.Load()
	if tables == nil {
		return
	}
	for _, t := range *tables {
		e, local := t.find(k)
		if e == nil {
			continue
		}
		t.indexDrop(k.Lo, local)
		m.cell(nameCell(e), k).clear()
		e[0].Store(0)
		e[1].Store(0)
		s.keys.Add(-1)
		t.limbo = append(t.limbo, limboName{uint16(local), m.guard.stamp()})
		t.settle(m.guard, m.pool.give)
		return
	}
}

// forget drops all keys of the section at once. Readers that still hold a cell
// find it closed. It may be called only with the section locked.
func (m *memory) forget(s *section) {
	s.list().each(m, func(_ ids.Key, c Cell) bool { c.Close(); return true })
	for id, meta := range s.pages {
		m.dropPage(s, id, meta)
	}
	s.pages = nil
	for i := range s.names {
		tables := s.names[i].tables.Swap(nil)
		if tables == nil {
			continue
		}
		for _, t := range *tables {
			for j := range t.slots {
				if t.slots[j].Load() != nil {
					m.pool.give(t.meta[j].slot)
				}
			}
		}
	}
	s.keys.Store(0)
	for _, p := range s.records {
		m.pool.give(p.slot)
	}
	s.records = nil
	s.since.Store(0)
	s.life.Store(lives.Add(1))
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
		if tables := s.names[ord].tables.Load(); tables != nil {
			for _, t := range *tables {
				for i := range t.slots {
					if p := t.slots[i].Load(); p != nil {
						l.names = append(l.names, listedNames{ord, p})
					}
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
