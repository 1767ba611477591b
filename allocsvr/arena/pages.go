package arena

import "sync/atomic"

// pageIndex finds the page of a block of uids. It is an open-addressed table, so
// that uids may be anywhere below 2^64 and memory follows the blocks touched.
// Readers take no lock: within one table a place is given to one block for ever
// (its page may come and go); growing and cleaning make a new table.
type pageIndex struct {
	table atomic.Pointer[[]pagePlace]
	// Under the arena's index lock:
	places int // taken, also by blocks without a page now
	live   int
}

type pagePlace struct {
	block atomic.Uint64 // block number + 1; 0: not taken
	page  atomic.Pointer[page]
}

const pageIndexMin = 64

func hashBlock(block uint64, size int) int {
	return int((block*mulValue)>>32) & (size - 1)
}

func (x *pageIndex) find(block uint64) *page {
	t := x.table.Load()
	if t == nil {
		return nil
	}
	places := *t
	for i := hashBlock(block, len(places)); ; i = (i + 1) & (len(places) - 1) {
		switch places[i].block.Load() {
		case block + 1:
			return places[i].page.Load()
		case 0:
			return nil
		}
	}
}

// put may be called only under the index lock.
func (x *pageIndex) put(block uint64, p *page) {
	t := x.table.Load()
	if t == nil || (x.places+1)*2 > len(*t) {
		t = x.rebuild()
	}
	places := *t
	for i := hashBlock(block, len(places)); ; i = (i + 1) & (len(places) - 1) {
		switch places[i].block.Load() {
		case block + 1:
			if places[i].page.Swap(p) == nil {
				x.live++
			}
			return
		case 0:
			places[i].page.Store(p)
			places[i].block.Store(block + 1)
			x.places++
			x.live++
			return
		}
	}
}

// drop may be called only under the index lock.
func (x *pageIndex) drop(block uint64) {
	places := *x.table.Load()
	for i := hashBlock(block, len(places)); places[i].block.Load() != 0; i = (i + 1) & (len(places) - 1) {
		if places[i].block.Load() == block+1 {
			if places[i].page.Swap(nil) != nil {
				x.live--
			}
			return
		}
	}
}

func (x *pageIndex) rebuild() *[]pagePlace {
	size := pageIndexMin
	for size < (x.live+1)*3 {
		size *= 2
	}
	next := make([]pagePlace, size)
	x.places = 0
	if t := x.table.Load(); t != nil {
		for i := range *t {
			from := &(*t)[i]
			p := from.page.Load()
			if p == nil {
				continue
			}
			block := from.block.Load()
			j := hashBlock(block-1, size)
			for next[j].block.Load() != 0 {
				j = (j + 1) & (size - 1)
			}
			next[j].page.Store(p)
			next[j].block.Store(block)
			x.places++
		}
	}
	x.table.Store(&next)
	return &next
}

func (x *pageIndex) bytes() int64 {
	if t := x.table.Load(); t != nil {
		return int64(len(*t)) * 16
	}
	return 0
}
