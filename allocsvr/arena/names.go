package arena

import (
	"math/bits"
	"sync/atomic"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// nameSet finds the names of one section and space. Entries (32 bytes: fingerprint
// and cell) lie in slots and never move, since a reader may be using one. What
// grows and is rebuilt is only the index in front of them.
//
// A table has up to nameTableMax names, so that an index place fits 16 bits:
// [tag:4][local entry + 1:12]. Four places are read as one word. The tag spares 15
// of 16 looks at a wrong entry. At 9/10 load the index costs about 2.5 bytes a name.
// When a section has more names, tables come in levels: one, four, sixteen …; a name
// belongs to one table of each level, by bits of its fingerprint, and is in the first
// that had room. So a search looks at log₄ of the number of tables.
//
// Readers take no lock; all changes are made under the section's lock.
type nameSet struct {
	tables atomic.Pointer[[]*nameTable]
}

const (
	nameTableSlots = 32
	nameTableMax   = nameTableSlots*namesPerSlot - 1 // 12 bits, 0 is not an entry

	lanes     = 4
	laneBits  = 16
	laneEmpty = 0
	// laneDropped has no entry, but the search goes on behind it.
	laneDropped = 0xF000
)

type nameTable struct {
	slots [nameTableSlots]atomic.Pointer[page]
	index atomic.Pointer[[]atomic.Uint64]

	meta    []nameSlotMeta // as many as slots were ever used
	taken   int            // entries in use or in limbo
	live    int            // entries in the index
	dropped int            // dropped lanes in the index
	limbo   []limboName    // oldest first
	// marks of the slots' last look; see Shelf. nil before the first.
	marks *[nameTableSlots]*[namesPerSlot / 2]uint8
}

type nameSlotMeta struct {
	bits  [namesPerSlot / 64]uint64
	slot  uint32
	taken uint8
	// leaving: no name is added while other slots have room, so that it comes free.
	leaving bool
}

type limboName struct {
	local uint16
	stamp uint64
}

func laneTag(lo uint64) uint64 { return lo >> 60 << 12 }

func homeWord(lo uint64, words int) int { return int(uint64(uint32(lo)) * uint64(words) >> 32) }

func (s *nameSet) find(k ids.Key) *[nameEntryWords]atomic.Uint64 {
	tables := s.all()
	for at := firstTable(); at.index(k.Lo) < len(tables); at = at.next() {
		if t := tables[at.index(k.Lo)]; t != nil {
			if e, _ := t.find(k); e != nil {
				return e
			}
		}
	}
	return nil
}

// all lists the tables, level after level; those never needed are nil.
func (s *nameSet) all() []*nameTable {
	if p := s.tables.Load(); p != nil {
		return *p
	}
	return nil
}

// level is where the tables of one level are in the list.
type level struct{ base, size int }

func firstTable() level { return level{0, 1} }

func (l level) next() level { return level{l.base + l.size, l.size * 4} }

// index is the place of a name's table in the list.
func (l level) index(lo uint64) int { return l.base + int(lo>>32)&(l.size-1) }

// at returns the table at a place in the list, making it if need be. It may be
// called only with the section locked.
func (s *nameSet) at(i int) *nameTable {
	tables := s.all()
	if i < len(tables) && tables[i] != nil {
		return tables[i]
	}
	n := len(tables)
	for l := firstTable(); n <= i; l = l.next() {
		n = l.base + l.size
	}
	next := make([]*nameTable, n)
	copy(next, tables)
	next[i] = newNameTable()
	s.tables.Store(&next)
	return next[i]
}

// roomy returns the first table of a name's that has a free entry, and its place.
// It may be called only with the section locked.
func (s *nameSet) roomy(lo uint64, guard *Guard, give func(uint32)) (t *nameTable, i int) {
	for l := firstTable(); ; l = l.next() {
		i = l.index(lo)
		t = s.at(i)
		t.settle(guard, give)
		if !t.full() {
			return t, i
		}
	}
}

// holds reports whether a name may be in the table at place i of the list.
func holds(i int, lo uint64) bool {
	l := firstTable()
	for i >= l.base+l.size {
		l = l.next()
	}
	return l.index(lo) == i
}

// A name slot's directory number: [slot of the table:8][table:24][section:32], so
// that the next process finds every name where it was.
func nameSlotNumber(s ids.Section, table, slot int) uint64 {
	return uint64(slot)<<56 | uint64(table)<<32 | uint64(s)
}

func splitNameSlotNumber(no uint64) (s ids.Section, table, slot int) {
	return ids.Section(no), int(no >> 32 & 0xFFFFFF), int(no >> 56)
}

func (t *nameTable) find(k ids.Key) (e *[nameEntryWords]atomic.Uint64, local int) {
	words := *t.index.Load()
	tag := laneTag(k.Lo)
	i := homeWord(k.Lo, len(words))
	for range words {
		w := words[i].Load()
		end := false
		for range lanes {
			lane := w & 0xFFFF
			w >>= laneBits
			if lane == laneEmpty {
				end = true
				continue
			}
			if lane&0xF000 != tag || lane&0xFFF == 0 {
				continue
			}
			local := int(lane&0xFFF) - 1
			p := t.slots[local/namesPerSlot].Load()
			if p == nil {
				continue
			}
			e := nameEntry(p, local%namesPerSlot)
			if e[0].Load() == k.Hi && e[1].Load() == k.Lo {
				return e, local
			}
		}
		if end {
			return nil, 0
		}
		if i++; i == len(words) {
			i = 0
		}
	}
	return nil, 0
}

func newNameTable() *nameTable {
	t := &nameTable{}
	words := make([]atomic.Uint64, 4)
	t.index.Store(&words)
	return t
}

// indexPut adds an entry whose fingerprint is already in its place.
func (t *nameTable) indexPut(lo uint64, local int) {
	words := *t.index.Load()
	if n := len(words) * lanes; (t.live+t.dropped+1)*10 > n*9 {
		words = t.reindex()
	}
	indexPlace(words, lo, local, &t.dropped)
	t.live++
}

func indexPlace(words []atomic.Uint64, lo uint64, local int, dropped *int) {
	lane := laneTag(lo) | uint64(local+1)
	i := homeWord(lo, len(words))
	for {
		w := words[i].Load()
		for l := 0; l < lanes*laneBits; l += laneBits {
			switch old := w >> l & 0xFFFF; old {
			case laneDropped, laneEmpty:
				if old == laneDropped {
					*dropped--
				}
				words[i].Store(w&^(0xFFFF<<l) | lane<<l)
				return
			}
		}
		if i++; i == len(words) {
			i = 0
		}
	}
}

// indexDrop takes an entry out; it must be there.
func (t *nameTable) indexDrop(lo uint64, local int) {
	words := *t.index.Load()
	lane := laneTag(lo) | uint64(local+1)
	i := homeWord(lo, len(words))
	for range words {
		w := words[i].Load()
		at, end := -1, false
		for l := 0; l < lanes*laneBits; l += laneBits {
			switch w >> l & 0xFFFF {
			case lane:
				at = l
			case laneEmpty:
				end = true
			}
		}
		if at >= 0 {
			next := w &^ (0xFFFF << at)
			if !end { // searches pass through this word and must go on doing so
				next |= laneDropped << at
				t.dropped++
			}
			words[i].Store(next)
			t.live--
			return
		}
		if i++; i == len(words) {
			i = 0
		}
	}
	panic("arena: a name is missing from its index")
}

// reindex makes room for more, and forgets dropped lanes.
func (t *nameTable) reindex() []atomic.Uint64 {
	old := *t.index.Load()
	n := max(4, ((t.live+1)*5/4+lanes-1)/lanes)
	words := make([]atomic.Uint64, n)
	t.dropped = 0
	for i := range old {
		for w := old[i].Load(); w != 0; w >>= laneBits {
			if local := int(w&0xFFF) - 1; local >= 0 {
				e := nameEntry(t.slots[local/namesPerSlot].Load(), local%namesPerSlot)
				indexPlace(words, e[1].Load(), local, &t.dropped)
			}
		}
	}
	t.index.Store(&words)
	return words
}

// full reports whether the table has no entry to give.
func (t *nameTable) full() bool { return t.taken >= nameTableMax }

// takeEntry finds a free entry, in a new slot if need be. The table must not be full.
// Slots that are to come free are used only where the table can have no other.
func (t *nameTable) takeEntry(newSlot func(i int) (uint32, *page, error)) (local int, err error) {
	empty := len(t.meta)
	for i := range t.meta {
		if t.slots[i].Load() == nil {
			empty = min(empty, i)
		} else if t.meta[i].leaving {
			continue
		} else if local, ok := t.takeFrom(i); ok {
			return local, nil
		}
	}
	for i := 0; empty == nameTableSlots && i < len(t.meta); i++ {
		if local, ok := t.takeFrom(i); ok {
			t.meta[i].leaving = false
			return local, nil
		}
	}
	slot, mem, err := newSlot(empty)
	if err != nil {
		return 0, err
	}
	t.addSlot(empty, slot, mem)
	local, _ = t.takeFrom(empty)
	return local, nil
}

func (t *nameTable) addSlot(i int, slot uint32, mem *page) {
	for len(t.meta) <= i {
		t.meta = append(t.meta, nameSlotMeta{})
	}
	t.meta[i] = nameSlotMeta{slot: slot}
	if t.marks != nil {
		t.marks[i] = nil
	}
	t.slots[i].Store(mem)
}

func (t *nameTable) takeFrom(i int) (local int, ok bool) {
	for j, b := range t.meta[i].bits {
		if b == ^uint64(0) {
			continue
		}
		local = i*namesPerSlot + j*64 + bits.TrailingZeros64(^b)
		if local >= nameTableMax {
			return 0, false
		}
		t.mark(local)
		return local, true
	}
	return 0, false
}

func (t *nameTable) mark(local int) {
	m := &t.meta[local/namesPerSlot]
	j := local % namesPerSlot
	m.bits[j/64] |= 1 << (j % 64)
	m.taken++
	t.taken++
}

// settle gives entries and slots back whose grace has passed.
func (t *nameTable) settle(guard *Guard, give func(slot uint32)) {
	for len(t.limbo) > 0 && guard.passed(t.limbo[0].stamp) {
		local := int(t.limbo[0].local)
		t.limbo = t.limbo[1:]
		i, j := local/namesPerSlot, local%namesPerSlot
		m := &t.meta[i]
		m.bits[j/64] &^= 1 << (j % 64)
		m.taken--
		t.taken--
		if m.taken == 0 {
			t.slots[i].Store(nil)
			give(m.slot)
		}
	}
}

func (t *nameTable) bytes() int64 {
	n := int64(len(*t.index.Load()))*8 + int64(cap(t.meta))*24 + nameTableSlots*8 + 104
	if t.marks != nil {
		n += nameTableSlots * 8
		for _, m := range t.marks {
			if m != nil {
				n += namesPerSlot / 2
			}
		}
	}
	return n
}
