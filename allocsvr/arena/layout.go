package arena

import (
	"sync/atomic"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// The file:
//
//	header          whole pages: identity, spaces (header.go)
//	section table   whole pages: two sealed words a section: closed flag and epoch;
//	                since when its records are complete (window.go)
//	intents         one page (note.go)
//	extents         each one directory page and 256 slots of 4096 bytes
//
// A slot is a page of 256 neighbouring uids, 16 bytes each; 128 names of one
// section, 32 bytes each (fingerprint, then cell); or a page of a section's records,
// whose content is its user's affair. The directory entry of a slot says which:
//
//	word 0: page number (uids), or section (names, records)
//	word 1: [check:32][space:16][kind:8][0:8]     0 = free
//
// Word 1 is stored last when a slot is taken and first when it is freed.
const (
	pageBytes      = 4096
	pageWords      = pageBytes / 8
	extentSlots    = 256
	extentBytes    = pageBytes * (1 + extentSlots)
	dirEntryWords  = 2
	cellsPerPage   = ids.BlockSize
	cellWords      = 2
	sectionWords   = 2
	namesPerSlot   = 128
	nameEntryWords = 4
)

type page = [pageWords]atomic.Uint64

func roundUpPage(n int64) int64 { return (n + pageBytes - 1) / pageBytes * pageBytes }

// extent is one growth step of the file.
type extent struct {
	dir   []atomic.Uint64
	slots []atomic.Uint64
}

func extentOf(words []atomic.Uint64) extent {
	return extent{dir: words[:pageWords], slots: words[pageWords:]}
}

func (e extent) slot(i int) *page { return (*page)(e.slots[i*pageWords:]) }

func (e extent) entry(i int) *[dirEntryWords]atomic.Uint64 {
	return (*[dirEntryWords]atomic.Uint64)(e.dir[i*dirEntryWords:])
}

// kindRecords is the kind of a page of records; it belongs to no space.
const kindRecords ids.Kind = 3

// dirEntry is what a slot holds.
type dirEntry struct {
	kind  ids.Kind // 0: free
	space ids.SpaceID
	no    uint64
}

func (d dirEntry) word(slot uint32) uint64 {
	low := uint64(d.space)<<16 | uint64(d.kind)<<8
	return check32(d.no, low, uint64(slot))<<32 | low
}

func readDirEntry(w *[dirEntryWords]atomic.Uint64, slot uint32) (d dirEntry, ok bool) {
	meta := w[1].Load()
	if meta == 0 {
		return dirEntry{}, true
	}
	d = dirEntry{kind: ids.Kind(meta >> 8), space: ids.SpaceID(meta >> 16), no: w[0].Load()}
	return d, (d.kind == ids.KindUID || d.kind == ids.KindName || d.kind == kindRecords) && d.word(slot) == meta
}

func uidCell(p *page, uid uint64) *[cellWords]atomic.Uint64 {
	return (*[cellWords]atomic.Uint64)(p[uid%cellsPerPage*cellWords:])
}

func nameEntry(p *page, i int) *[nameEntryWords]atomic.Uint64 {
	return (*[nameEntryWords]atomic.Uint64)(p[i*nameEntryWords:])
}

func nameCell(e *[nameEntryWords]atomic.Uint64) *[cellWords]atomic.Uint64 {
	return (*[cellWords]atomic.Uint64)(e[2:])
}
