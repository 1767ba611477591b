package arena

import (
	"fmt"
	"sync/atomic"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// verify reads all of what a dead process left and returns it ready for use, or
// an *UntrustedError for the first thing that is not as it must be. It changes nothing.
func verify(r Region, o Options, guard *Guard, owner *cellOwner) (*memory, error) {
	h, err := readHeader(r)
	if err != nil {
		return nil, err
	}
	v := &verifier{region: r, lenient: o.Bugs.TrustAnyArena}
	if err := v.identity(h, o); err != nil && !v.lenient {
		return nil, err
	}
	if err := checkShape(h.sections, h.spaces); err != nil {
		return nil, v.bad(ReasonHeader, fixedBytes, h.bytes-fixedBytes, "%v", err)
	}
	v.m = newMemory(h, r, guard, owner, o.MaxBytes)
	if err := v.sections(); err != nil {
		return nil, err
	}
	if err := v.intents(); err != nil {
		return nil, err
	}
	if err := v.slots(); err != nil {
		return nil, err
	}
	return v.m, nil
}

type verifier struct {
	region  Region
	m       *memory
	pending map[ids.Key]bool // keys with an intent
	lenient bool             // Bugs.TrustAnyArena
}

func (v *verifier) bad(reason Reason, off, n int64, format string, args ...any) error {
	return &UntrustedError{Path: v.region.Name(), Reason: reason, Off: off, Len: n, Detail: fmt.Sprintf(format, args...)}
}

func (v *verifier) identity(h header, o Options) error {
	switch {
	case h.cluster != o.Cluster:
		return v.bad(ReasonCluster, fixedBytes, 0, "it belongs to cluster %q, this is %q", h.cluster, o.Cluster)
	case h.node != o.Node:
		return v.bad(ReasonNode, fixedBytes, 0, "it belongs to node %q, this is %q", h.node, o.Node)
	case h.bootID != o.BootID:
		return v.bad(ReasonBoot, fixedBytes, 0, "the machine was restarted since (boot id %s, now %s)", h.bootID, o.BootID)
	case h.session == 0:
		return v.bad(ReasonHeader, fixedBytes, 0, "it has no session")
	}
	return nil
}

func (v *verifier) sections() error {
	h := v.m.header
	for i, s := range v.m.sections {
		off := h.bytes + int64(i)*sectionWords*8
		if w := s.since.Load(); w != 0 {
			if _, flag, ok := unseal(w, sinceSalt(s.no)); !ok || flag {
				if !v.lenient {
					return v.bad(ReasonSections, off+8, 8, "the records of section %d have a date that does not match its check", i)
				}
				s.since.Store(0)
			}
		}
		w := s.word.Load()
		if w == 0 {
			continue
		}
		if epoch, _, ok := unseal(w, sectionSalt(s.no)); !ok || epoch == 0 {
			if v.lenient {
				s.set(ids.Epoch(epoch), w&flagBit != 0)
				continue
			}
			return v.bad(ReasonSections, off, 8, "section %d does not match its check", i)
		}
	}
	return nil
}

func (v *verifier) intents() error {
	v.pending = make(map[ids.Key]bool)
	for i := range cellStripes {
		w := (*intent)(v.m.intents[i*intentWords:])
		in, ok := readIntent(w)
		switch {
		case !ok && v.lenient:
			w[0].Store(0)
		case !ok:
			off := v.m.header.frontBytes() - intentBytes + int64(i)*intentWords*8
			return v.bad(ReasonIntent, off, intentWords*8, "intent %d does not match its check", i)
		case in.N != 0:
			v.pending[in.Key] = true
		}
	}
	return nil
}

func (v *verifier) slots() error {
	p := v.m.pool
	n := uint32(len(p.extents) * extentSlots)
	p.fresh = n // a free slot may have old content, so none counts as never used
	for slot := range n {
		d, ok := readDirEntry(p.entry(slot), slot)
		off := v.offset(slot)
		if !ok {
			if v.lenient {
				p.entry(slot)[1].Store(0)
				p.free = append(p.free, slot)
				continue
			}
			return v.bad(ReasonDirectory, v.dirOffset(slot), dirEntryWords*8, "slot %d does not match its check", slot)
		}
		if d.kind == 0 {
			p.free = append(p.free, slot)
			continue
		}
		p.count(d, 1)
		if d.kind == kindRecords {
			if err := v.records(slot, d); err != nil {
				return err
			}
			continue
		}
		ord, kind, known := v.m.space(d.space)
		if !known || kind != d.kind {
			return v.bad(ReasonDirectory, v.dirOffset(slot), dirEntryWords*8, "slot %d holds a %s of unknown space %d", slot, d.kind, d.space)
		}
		var err error
		if kind == ids.KindUID {
			err = v.uidPage(slot, off, ord, d)
		} else {
			err = v.nameSlot(slot, off, ord, d)
		}
		if err != nil {
			return err
		}
	}
	// Low slots first, so that a resumed arena fills as a new one does.
	for i, j := 0, len(p.free)-1; i < j; i, j = i+1, j-1 {
		p.free[i], p.free[j] = p.free[j], p.free[i]
	}
	return nil
}

func (v *verifier) offset(slot uint32) int64 {
	return v.dirBase(slot) + int64(1+slot%extentSlots)*pageBytes
}

func (v *verifier) dirOffset(slot uint32) int64 {
	return v.dirBase(slot) + int64(slot%extentSlots)*dirEntryWords*8
}

func (v *verifier) dirBase(slot uint32) int64 {
	return v.m.pool.front + int64(slot/extentSlots)*extentBytes
}

// opened returns the section, which must have been opened once if it has keys.
func (v *verifier) opened(no ids.Section, slot uint32) (*section, error) {
	s := v.m.sections[no]
	if epoch, _ := s.state(); epoch == 0 {
		return nil, v.bad(ReasonDirectory, v.dirOffset(slot), dirEntryWords*8, "slot %d has keys of section %d, which was never open", slot, no)
	}
	return s, nil
}

func (v *verifier) uidPage(slot uint32, off int64, ord int, d dirEntry) error {
	if d.no > v.m.spaces[ord].MaxUID>>ids.BlockShift {
		return v.bad(ReasonDirectory, v.dirOffset(slot), dirEntryWords*8, "slot %d has uids from %d×256, beyond the largest of its space", slot, d.no)
	}
	s, err := v.opened(ids.SectionOf(ids.Position(d.no<<ids.BlockShift), v.m.header.sections), slot)
	if err != nil {
		return err
	}
	id := pageID{ord, d.no}
	if other := s.pages[id]; other != nil {
		return v.bad(ReasonDirectory, v.dirOffset(slot), dirEntryWords*8, "slots %d and %d have the same uids", other.slot, slot)
	}
	mem := v.m.pool.at(slot)
	meta := v.m.addPage(s, id, slot, mem)
	for i := range uint64(cellsPerPage) {
		k := ids.Key{Space: d.space, Hi: d.no<<ids.BlockShift | i}
		used, err := v.cell(uidCell(mem, i), k, off+int64(i)*cellWords*8)
		if err != nil {
			return err
		}
		if used {
			meta.used++
		}
	}
	// A page without a key (its first was never finished, or its last just freed)
	// stays with its section.
	s.keys.Add(int64(meta.used))
	return nil
}

// records takes a page over; its user verifies what is in it.
func (v *verifier) records(slot uint32, d dirEntry) error {
	if d.no >= uint64(len(v.m.sections)) || d.space != 0 {
		return v.bad(ReasonDirectory, v.dirOffset(slot), dirEntryWords*8, "slot %d has records of section %d of %d", slot, d.no, len(v.m.sections))
	}
	s, err := v.opened(ids.Section(d.no), slot)
	if err != nil {
		return err
	}
	s.records = append(s.records, &Page{Words: v.m.pool.at(slot), section: s.no, slot: slot, life: s.life.Load()})
	return nil
}

func (v *verifier) nameSlot(slot uint32, off int64, ord int, d dirEntry) error {
	no, table, first := splitNameSlotNumber(d.no)
	if int(no) >= len(v.m.sections) || first >= nameTableSlots {
		return v.bad(ReasonDirectory, v.dirOffset(slot), dirEntryWords*8, "slot %d has names of section %d of %d", slot, no, len(v.m.sections))
	}
	s, err := v.opened(no, slot)
	if err != nil {
		return err
	}
	mem := v.m.pool.at(slot)
	set := &s.names[ord]
	t := set.at(table)
	if t.slots[first].Load() != nil {
		return v.bad(ReasonDirectory, v.dirOffset(slot), dirEntryWords*8, "slots %d and %d have the same place in a name table", t.meta[first].slot, slot)
	}
	t.addSlot(first, slot, mem)
	first *= namesPerSlot
	for i := range namesPerSlot {
		e := nameEntry(mem, i)
		k := ids.Key{Space: d.space, Hi: e[0].Load(), Lo: e[1].Load()}
		at := off + int64(i)*nameEntryWords*8
		used, err := v.cell(nameCell(e), k, at+16)
		if err != nil {
			return err
		}
		if !used {
			continue
		}
		if k.Section(v.m.header.sections) != s.no {
			return v.bad(ReasonCell, at, nameEntryWords*8, "a name of section %d among those of %d", k.Section(v.m.header.sections), s.no)
		}
		if !holds(table, k.Lo) || first+i >= nameTableMax {
			return v.bad(ReasonCell, at, nameEntryWords*8, "a name where no search looks")
		}
		if set.find(k) != nil {
			return v.bad(ReasonCell, at, nameEntryWords*8, "the same name twice")
		}
		t.mark(first + i)
		t.indexPut(k.Lo, first+i)
		s.keys.Add(1)
	}
	return nil
}

func (v *verifier) cell(w *[cellWords]atomic.Uint64, k ids.Key, off int64) (used bool, err error) {
	value, bound := w[0].Load(), w[1].Load()
	if value == 0 {
		// Adding or freeing a key leaves one of these; anything else was a key.
		if bound != 0 && bound != maxUnknown && !v.lenient {
			return false, v.bad(ReasonCell, off, 16, "an unused cell of key %s has a bound", k)
		}
		return false, nil
	}
	salt := saltOf(k)
	cur, closed, ok := unseal(value, salt)
	if !ok && isPending(value, salt) && v.pending[k] {
		ok = true
	}
	if !ok && v.lenient {
		w[0].Store(seal(cur, closed, salt))
		ok = true
	}
	if !ok {
		return false, v.bad(ReasonCell, off, 8, "the number of key %s does not match its check", k)
	}
	if !maxOK(bound) && !v.lenient {
		return false, v.bad(ReasonCell, off+8, 8, "the bound of key %s does not match its parity", k)
	}
	if m := bound & maxMask; m != 0 && (m-cur)&valueMask > m {
		if v.lenient {
			w[1].Store(maxUnknown)
			return true, nil
		}
		return false, v.bad(ReasonCell, off, 16, "key %s is beyond its bound", k)
	}
	return true, nil
}
