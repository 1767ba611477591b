package arena

import (
	"sync"
	"sync/atomic"
)

// slotPool gives out slots and takes them back. A slot that was given back is
// free in the directory at once, but given out again only after the guard's grace,
// since a reader may still hold a cell in it.
type slotPool struct {
	region   Region
	guard    *Guard
	bytesMax int64
	front    int64 // bytes before the first extent
	counter  *atomic.Uint64

	mu      sync.Mutex
	extents []extent
	fresh   uint32 // slots from here on were never used and are zero
	free    []uint32
	limbo   []limboSlot // oldest first
	used    int
	records int // of used: pages of records
}

type limboSlot struct {
	slot  uint32
	stamp uint64
}

func (p *slotPool) at(slot uint32) *page {
	return p.extents[slot/extentSlots].slot(int(slot % extentSlots))
}

func (p *slotPool) entry(slot uint32) *[dirEntryWords]atomic.Uint64 {
	return p.extents[slot/extentSlots].entry(int(slot % extentSlots))
}

// take gives out a zeroed slot that the directory says holds d.
func (p *slotPool) take(d dirEntry) (slot uint32, mem *page, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settleLocked()
	switch n := len(p.free); {
	case n > 0:
		slot, p.free = p.free[n-1], p.free[:n-1]
		mem = p.at(slot)
		for i := range mem {
			mem[i].Store(0)
		}
	default:
		if int(p.fresh) == len(p.extents)*extentSlots {
			if err := p.grow(); err != nil {
				return 0, nil, err
			}
		}
		slot = p.fresh
		p.fresh++
		mem = p.at(slot)
	}
	p.write(slot, d)
	p.count(d, 1)
	return slot, mem, nil
}

func (p *slotPool) count(d dirEntry, n int) {
	p.used += n
	if d.kind == kindRecords {
		p.records += n
	}
}

// write notes in the directory what a zeroed slot holds.
func (p *slotPool) write(slot uint32, d dirEntry) {
	e := p.entry(slot)
	e[0].Store(d.no)
	e[1].Store(d.word(slot))
}

// renew empties a slot in use that nobody is reading, and gives it to another holder.
func (p *slotPool) renew(slot uint32, d dirEntry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entry(slot)[1].Store(0)
	mem := p.at(slot)
	for i := range mem {
		mem[i].Store(0)
	}
	p.write(slot, d)
}

func (p *slotPool) settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settleLocked()
}

// room is how many slots can be taken now, if the file can grow as far as it may.
func (p *slotPool) room() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settleLocked()
	extents := (p.bytesMax - p.front) / extentBytes
	return int64(len(p.free)) + extents*extentSlots - int64(p.fresh)
}

// settleLocked frees the slots whose grace has passed.
func (p *slotPool) settleLocked() {
	for len(p.limbo) > 0 && p.guard.passed(p.limbo[0].stamp) {
		p.free = append(p.free, p.limbo[0].slot)
		p.limbo = p.limbo[1:]
	}
}

func (p *slotPool) grow() error {
	n := int64(len(p.extents))
	off := p.front + n*extentBytes
	if need := off + extentBytes; need > p.bytesMax {
		return &FullError{Path: p.region.Name(), Need: need, Limit: p.bytesMax}
	}
	if err := p.region.Grow(off + extentBytes); err != nil {
		return err
	}
	p.extents = append(p.extents, extentOf(p.region.Words(off, extentBytes)))
	p.counter.Store(sealCount(uint32(n+1), wordExtents))
	return nil
}

// give takes a slot back. It must be unreachable for new readers.
func (p *slotPool) give(slot uint32) {
	stamp := p.guard.stamp()
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entry(slot)
	d, _ := readDirEntry(e, slot)
	p.count(d, -1)
	e[1].Store(0)
	e[0].Store(0)
	p.limbo = append(p.limbo, limboSlot{slot, stamp})
}
