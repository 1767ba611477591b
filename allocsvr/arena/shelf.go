package arena

import (
	"sync/atomic"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Shelf is the keys that share a page: what a sweep looks at, and what comes free
// together. It may be kept for as long as one likes: a page that has gone since is
// an empty shelf.
//
// For each cell half a byte of ordinary memory keeps what the last look saw:
// [looks at which the number stood still:2][the number's low 2 bits:2]. So issuing
// numbers costs nothing. A key that moved by a multiple of 4 is taken for one that
// stood still: to hand it back is then unneeded, not wrong, and costs it a raise.
type Shelf struct {
	m   *memory
	sec *section
	mem *page
	// Of uids:
	uids *pageMeta
	id   pageID
	// Of names: the table's and the slot's place.
	ord, table, slot int
}

// AgeMax is the most looks that an age counts.
const AgeMax = 1<<(laneMark-markBits) - 1

const (
	laneMark   = 4 // bits of a mark
	markBits   = 2 // of those, the number's
	markNumber = 1<<markBits - 1
)

// marks of a page's cells, two in a byte.
type marks []uint8

func (m marks) get(i int) uint8 { return m[i/2] >> (i % 2 * laneMark) & (1<<laneMark - 1) }

func (m marks) set(i int, v uint8) {
	shift := i % 2 * laneMark
	m[i/2] = m[i/2]&^((1<<laneMark-1)<<shift) | v<<shift
}

// Held is one key of a shelf as a look found it. The Cell may be used under the
// guard of the look only.
type Held struct {
	Key    ids.Key
	Cell   Cell
	Closed bool
	// Age is at how many aging looks in a row the number has stood still, up to AgeMax.
	Age int
}

// Shelves lists a section's pages of keys, in an order that does not change from run to run.
func (a *Arena) Shelves(s ids.Section) []Shelf {
	sec, m, err := a.section(s)
	if err != nil {
		return nil
	}
	sec.mu.Lock()
	defer sec.mu.Unlock()
	var out []Shelf
	l := sec.list()
	for _, p := range l.uids {
		out = append(out, Shelf{m: m, sec: sec, mem: p.mem, uids: sec.pages[p.id], id: p.id})
	}
	for ord := range sec.names {
		for i, t := range sec.names[ord].all() {
			if t == nil {
				continue
			}
			for j := range t.slots {
				if p := t.slots[j].Load(); p != nil {
					out = append(out, Shelf{m: m, sec: sec, mem: p, ord: ord, table: i, slot: j})
				}
			}
		}
	}
	return out
}

// Section whose keys they are.
func (sh Shelf) Section() ids.Section { return sh.sec.no }

// Look calls f with each key of the shelf that has one, also of keys of which
// nothing is known; with age, it ages them too. Only one goroutine may look, and it must hold the
// Guard: until it lets go, the page is the shelf's.
func (sh Shelf) Look(age bool, f func(h Held)) {
	marks := sh.marks()
	if marks == nil {
		return
	}
	open := false
	see := func(i int, k ids.Key, c Cell) {
		cur, _, closed := c.Load()
		open = open || !closed
		m := uint8(cur) & markNumber
		old := marks.get(i)
		if old&markNumber == m {
			m = old
			if age {
				m = min(old>>markBits+1, AgeMax)<<markBits | old&markNumber
			}
		}
		if age {
			marks.set(i, m)
		}
		f(Held{Key: k, Cell: c, Closed: closed, Age: int(m >> markBits)})
	}
	if sh.uids != nil {
		k := ids.Key{Space: sh.m.spaces[sh.id.space].ID}
		for i := range uint64(cellsPerPage) {
			if w := uidCell(sh.mem, i); w[0].Load() != 0 {
				k.Hi = sh.id.block<<ids.BlockShift | i
				see(int(i), k, sh.m.cell(w, k))
			}
		}
		return
	}
	k := ids.Key{Space: sh.m.spaces[sh.ord].ID}
	for i := range namesPerSlot {
		e := nameEntry(sh.mem, i)
		if w := nameCell(e); w[0].Load() != 0 {
			k.Hi, k.Lo = e[0].Load(), e[1].Load()
			see(i, k, sh.m.cell(w, k))
		}
	}
	if open {
		sh.leave(false) // not all of it went, or it did not come free
	}
}

// Leave has no name added to the shelf, if the names there can go elsewhere, until
// it has come free or a look finds a key that is open. All of its keys are about to
// be closed: their places are worth more together, as a page for keys of any kind.
func (sh Shelf) Leave() {
	if sh.uids == nil {
		sh.leave(true)
	}
}

func (sh Shelf) leave(leaving bool) {
	sh.sec.mu.Lock()
	defer sh.sec.mu.Unlock()
	if tables := sh.sec.names[sh.ord].all(); sh.table < len(tables) && tables[sh.table] != nil {
		if t := tables[sh.table]; t.slots[sh.slot].Load() == sh.mem {
			t.meta[sh.slot].leaving = leaving
		}
	}
}

// marks are those of the shelf's page; nil if it has gone. The first look makes
// them, such that nothing in it seems to have stood still.
func (sh Shelf) marks() marks {
	sh.sec.mu.Lock()
	defer sh.sec.mu.Unlock()
	if sh.uids != nil {
		if sh.sec.pages[sh.id] != sh.uids {
			return nil
		}
		if sh.uids.marks == nil {
			sh.uids.marks = (*[cellsPerPage / 2]uint8)(newMarks(cellsPerPage, func(i int) *[cellWords]atomic.Uint64 { return uidCell(sh.mem, uint64(i)) }))
		}
		return sh.uids.marks[:]
	}
	tables := sh.sec.names[sh.ord].all()
	if sh.table >= len(tables) || tables[sh.table] == nil {
		return nil
	}
	t := tables[sh.table]
	if t.slots[sh.slot].Load() != sh.mem {
		return nil
	}
	if t.marks == nil {
		t.marks = new([nameTableSlots]*[namesPerSlot / 2]uint8)
	}
	if t.marks[sh.slot] == nil {
		t.marks[sh.slot] = (*[namesPerSlot / 2]uint8)(newMarks(namesPerSlot, func(i int) *[cellWords]atomic.Uint64 { return nameCell(nameEntry(sh.mem, i)) }))
	}
	return t.marks[sh.slot][:]
}

func newMarks(n int, cell func(int) *[cellWords]atomic.Uint64) marks {
	m := make(marks, n/2)
	for i := range n {
		m.set(i, ^uint8(cell(i)[0].Load())&markNumber)
	}
	return m
}

// Usage is how many pages hold keys, how many hold anything, and how many there can be.
func (a *Arena) Usage() (keys, used, limit int64) {
	m := a.mem.Load()
	if m == nil {
		return 0, 0, 0
	}
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(p.used - p.records), int64(p.used), (p.bytesMax - p.front) / extentBytes * extentSlots
}
