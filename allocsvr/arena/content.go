package arena

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/seqsvr/seqsvr/internal/ids"
)

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

	unsettledMu sync.Mutex
	unsettled   []*section // those whose unsettled is set, each once
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
		w := m.place(ord, k)
		if w == nil || w[0].Load() == 0 {
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

// place is where a uid's cell is, used or not; nil if its page is not there.
func (m *memory) place(ord int, k ids.Key) *[cellWords]atomic.Uint64 {
	if k.Lo != 0 {
		return nil
	}
	p := m.pages[ord].find(k.Hi >> ids.BlockShift)
	if p == nil {
		return nil
	}
	return uidCell(p, k.Hi)
}

// ensure may be called only with the section locked.
func (m *memory) ensure(s *section, ord int, kind ids.Kind, k ids.Key, grow bool) (Cell, error) {
	take := m.pool.take
	if !grow {
		take = noPage
	}
	if kind == ids.KindUID {
		return m.ensureUID(s, ord, k, take)
	}
	return m.ensureName(s, ord, k, take)
}

// takeSlot gives out a zeroed page that is noted to hold d.
type takeSlot func(d dirEntry) (slot uint32, mem *page, err error)

func noPage(dirEntry) (uint32, *page, error) { return 0, nil, ErrNoPage }

func (m *memory) ensureUID(s *section, ord int, k ids.Key, take takeSlot) (Cell, error) {
	if k.Lo != 0 || k.Hi > m.spaces[ord].MaxUID {
		return Cell{}, fmt.Errorf("%w: %s is no uid of space %q", ids.ErrBadKey, k, m.spaces[ord].Name)
	}
	id := pageID{ord, k.Hi >> ids.BlockShift}
	meta := s.pages[id]
	if meta == nil {
		slot, mem, err := take(dirEntry{kind: ids.KindUID, space: k.Space, no: id.block})
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

func (m *memory) ensureName(s *section, ord int, k ids.Key, take takeSlot) (Cell, error) {
	set := &s.names[ord]
	if e := set.find(k); e != nil {
		return m.cell(nameCell(e), k), nil
	}
	t, table := set.roomy(k.Lo, m.guard, m.pool.give)
	local, err := t.takeEntry(func(i int) (uint32, *page, error) {
		return take(dirEntry{kind: ids.KindName, space: k.Space, no: nameSlotNumber(s.no, table, i)})
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
	tables := s.names[ord].all()
	for l := firstTable(); l.index(k.Lo) < len(tables); l = l.next() {
		t := tables[l.index(k.Lo)]
		if t == nil {
			continue
		}
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
		if len(t.limbo) > 0 && !s.unsettled {
			s.unsettled = true
			m.unsettledMu.Lock()
			m.unsettled = append(m.unsettled, s)
			m.unsettledMu.Unlock()
		}
		return
	}
}

// settleNames gives the names' entries back whose grace has passed, and with the
// last entry of a page the page. Without it a page would wait until a name next to
// its last ones is freed or wanted.
func (m *memory) settleNames() {
	m.unsettledMu.Lock()
	todo := m.unsettled
	m.unsettled = nil
	m.unsettledMu.Unlock()
	for _, s := range todo {
		if m.settleNamesOf(s) {
			m.unsettledMu.Lock()
			m.unsettled = append(m.unsettled, s)
			m.unsettledMu.Unlock()
		}
	}
}

// settleNamesOf reports whether some of the section's names have readers still.
func (m *memory) settleNamesOf(s *section) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.names {
		for _, t := range s.names[i].all() {
			if t != nil {
				t.settle(m.guard, m.pool.give)
				more = more || len(t.limbo) > 0
			}
		}
	}
	s.unsettled = more
	return more
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
		for _, t := range s.names[i].all() {
			if t == nil {
				continue
			}
			for j := range t.slots {
				if t.slots[j].Load() != nil {
					m.pool.give(t.meta[j].slot)
				}
			}
		}
		s.names[i].tables.Store(nil)
	}
	s.keys.Store(0)
	for _, p := range s.records {
		m.pool.give(p.slot)
	}
	s.records = nil
	s.since.Store(0)
	s.life.Store(lives.Add(1))
}
