package disk

import (
	"maps"
	"slices"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// generation is a set of changes that goes to the file in one transaction.
// While it is the active one only the apply goroutine changes it, under
// Store.mu; frozen, it never changes.
type generation struct {
	// Changed records: of uids by block, of names by key.
	blocks map[blockID]*changedBlock
	names  map[ids.Key]state.Record
	// uids is how many records all blocks have.
	uids int
	gaps map[ids.Key][]state.Gap
	// deleted keys: what older generations and the file have of them is gone;
	// records and gaps may have something newer.
	deleted map[ids.Key]struct{}
	// head is encodeHead at the freeze; records and gaps are all changes up to its index.
	head []byte
	// view, if set, is given a read transaction of the file as this generation left
	// it, or an error. Store.mu is held.
	view chan<- viewResult
	// awaited: somebody waits for it to be in the file.
	awaited bool

	ordering sync.Once
	order    []change
}

// changedBlock has the changed records of a block, in order of their slots.
type changedBlock struct {
	slots   slotSet
	records []state.Record
}

type viewResult struct {
	tx  *bbolt.Tx
	err error
}

func newGeneration() *generation {
	return &generation{
		blocks: map[blockID]*changedBlock{}, names: map[ids.Key]state.Record{},
		gaps: map[ids.Key][]state.Gap{}, deleted: map[ids.Key]struct{}{},
	}
}

// presence is what the changes in memory say of a key.
type presence int

const (
	// unknown: the file says it.
	unknown presence = iota
	present
	absent
)

func (g *generation) record(k ids.Key) (r state.Record, p presence) {
	if inBlock(k) {
		id, slot := blockOf(k)
		if b := g.blocks[id]; b != nil && b.slots.has(slot) {
			return b.records[b.slots.rank(slot)], present
		}
	} else if r, ok := g.names[k]; ok {
		return r, present
	}
	return r, g.gone(k)
}

func (g *generation) ledger(k ids.Key) ([]state.Gap, presence) {
	if gaps, ok := g.gaps[k]; ok {
		return gaps, present
	}
	return nil, g.gone(k)
}

func (g *generation) gone(k ids.Key) presence {
	if _, ok := g.deleted[k]; ok {
		return absent
	}
	return unknown
}

func (g *generation) put(k ids.Key, r state.Record) {
	if !inBlock(k) {
		g.names[k] = r
		return
	}
	id, slot := blockOf(k)
	b := g.blocks[id]
	if b == nil {
		b = &changedBlock{}
		g.blocks[id] = b
	}
	at := b.slots.rank(slot)
	if b.slots.has(slot) {
		b.records[at] = r
		return
	}
	b.slots.set(slot)
	b.records = slices.Insert(b.records, at, r)
	g.uids++
}

func (g *generation) delete(k ids.Key) {
	delete(g.gaps, k)
	g.deleted[k] = struct{}{}
	if !inBlock(k) {
		delete(g.names, k)
		return
	}
	id, slot := blockOf(k)
	if b := g.blocks[id]; b != nil && b.slots.has(slot) {
		at := b.slots.rank(slot)
		b.slots.clear(slot)
		b.records = slices.Delete(b.records, at, at+1)
		g.uids--
	}
}

// each visits all changed records: blocks in order if ordered is set.
func (g *generation) each(ordered bool, f func(ids.Key, state.Record)) {
	if ordered {
		for _, id := range slices.SortedFunc(maps.Keys(g.blocks), blockID.compare) {
			g.blocks[id].each(id, f)
		}
	} else {
		for id, b := range g.blocks {
			b.each(id, f)
		}
	}
	for k, r := range g.names {
		f(k, r)
	}
}

// within visits the changed records of a range, and others: those of blocks in order, from
// the block that the key is in. It looks only at the blocks that the range has, if these
// are the fewer ones.
func (g *generation) within(r *sets.Range, from ids.Key, f func(ids.Key, state.Record)) {
	first, last := from.Hi>>ids.BlockShift, uint64(r.Last)>>ids.BlockShift
	if from.Space == r.Space && first <= last {
		if last-first < uint64(len(g.blocks)) {
			for no := first; no <= last; no++ {
				id := blockID{space: uint64(r.Space), no: no}
				if b := g.blocks[id]; b != nil {
					b.each(id, f)
				}
			}
		} else {
			for _, id := range g.blocksWithin(blockID{space: uint64(r.Space), no: first}, last) {
				g.blocks[id].each(id, f)
			}
		}
	}
	for k, rec := range g.names {
		f(k, rec)
	}
}

// blocksWithin are those that have changed from one up to another, in order.
func (g *generation) blocksWithin(first blockID, last uint64) (out []blockID) {
	for id := range g.blocks {
		if id.space == first.space && id.no >= first.no && id.no <= last {
			out = append(out, id)
		}
	}
	slices.SortFunc(out, blockID.compare)
	return out
}

func (b *changedBlock) each(id blockID, f func(ids.Key, state.Record)) {
	slot := -1
	for _, r := range b.records {
		slot = b.slots.next(slot + 1)
		f(id.key(slot), r)
	}
}

// inOrder are the changed records by key. It is for a frozen generation: the
// flush and whoever reads meanwhile share the work.
func (g *generation) inOrder() []change {
	g.ordering.Do(func() {
		g.order = make([]change, 0, g.uids+len(g.names)+len(g.deleted))
		g.each(true, func(k ids.Key, r state.Record) { g.order = append(g.order, change{key: k, record: r}) })
		for k := range g.deleted {
			if _, p := g.record(k); p != present {
				g.order = append(g.order, change{key: k, deleted: true})
			}
		}
		if len(g.order) > g.uids {
			slices.SortFunc(g.order, compareChanges)
		}
	})
	return g.order
}

// answer gives the view, once. Store.mu is held.
func (g *generation) answer(r viewResult) {
	if g.view != nil {
		g.view <- r
		g.view = nil
	}
}

func (g *generation) dirty() int { return g.uids + len(g.names) + len(g.gaps) + len(g.deleted) }

// entries of the file that change, at most.
func (g *generation) entries() int {
	return len(g.blocks) + len(g.names) + len(g.gaps) + 2*len(g.deleted)
}
