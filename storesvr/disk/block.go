package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// The records of ids.BlockSize neighbouring uids are one entry of the file: a tree
// of blocks is shallow and small, and a flush of scattered keys finds several of
// them in each (docs/decisions/029). Names, whose positions are hashes, have no
// neighbours; each is an entry of its own.

// blockID names a block. Its order is that of its keys.
type blockID struct{ space, no uint64 }

// inBlock: all uids, and no name but for a chance of 2^-64, which does no harm.
func inBlock(k ids.Key) bool { return k.Lo == 0 }

// blockOf is where a key is that is inBlock.
func blockOf(k ids.Key) (id blockID, slot int) {
	return blockID{space: uint64(k.Space), no: k.Hi >> ids.BlockShift}, int(k.Hi % ids.BlockSize)
}

func (id blockID) key(slot int) ids.Key {
	return ids.Key{Space: ids.SpaceID(id.space), Hi: id.no<<ids.BlockShift | uint64(slot)}
}

// has tells whether a key that is inBlock is of this one.
func (id blockID) has(k ids.Key) bool {
	of, _ := blockOf(k)
	return of == id
}

func (id blockID) compare(o blockID) int { return id.key(0).Compare(o.key(0)) }

// blockKeyBytes is a block's key on disk: space and number, big-endian.
const blockKeyBytes = 2 + 8

func (id blockID) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(id.space))
	return binary.BigEndian.AppendUint64(dst, id.no)
}

func decodeBlockID(b []byte) (blockID, error) {
	if len(b) != blockKeyBytes {
		return blockID{}, fmt.Errorf("block key of %d bytes, want %d", len(b), blockKeyBytes)
	}
	id := blockID{space: uint64(binary.BigEndian.Uint16(b)), no: binary.BigEndian.Uint64(b[2:])}
	if id.no > ^uint64(0)>>ids.BlockShift {
		return blockID{}, fmt.Errorf("block %d lies beyond the last position", id.no)
	}
	return id, nil
}

// widths are how many bytes each part of a record takes in a block, 0 to 8.
type widths struct{ floor, span, epoch, flags uint8 }

func widthsOf(r *state.Record) widths {
	return widths{
		floor: bytesOf(uint64(r.Floor)), span: bytesOf(uint64(r.Bound - r.Floor)),
		epoch: bytesOf(uint64(r.Epoch)), flags: bytesOf(uint64(flagsOf(r))),
	}
}

func bytesOf(v uint64) uint8 { return uint8((bits.Len64(v) + 7) / 8) }

func (w widths) record() int { return int(w.floor) + int(w.span) + int(w.epoch) + int(w.flags) }

// join is wide enough for both.
func (w widths) join(o widths) widths {
	return widths{max(w.floor, o.floor), max(w.span, o.span), max(w.epoch, o.epoch), max(w.flags, o.flags)}
}

const (
	blockHoleAtFloor = 0x01
	blockMoved       = 0x02
)

func flagsOf(r *state.Record) (f byte) {
	if r.HoleAtFloor {
		f |= blockHoleAtFloor
	}
	if r.Moved {
		f |= blockMoved
	}
	return f
}

// block is an encoded block without its checksum; the zero one has no records:
//
//	version (1) · widths of floor, bound − floor, epoch, flags (4) · slotSet (32) · the records, in order of their slots
type block struct {
	widths widths
	slots  slotSet
	// records are all of the same width. They are not to be changed.
	records []byte
}

const (
	blockVersion     = 1
	blockHeaderBytes = 1 + 4 + slotSetBytes
)

// openBlock reads a sealed block. It shares b's memory. The records in it are not looked at.
func openBlock(key, b []byte) (bl block, err error) {
	v, err := unseal(key, b)
	if err != nil {
		return bl, err
	}
	if len(v) < blockHeaderBytes {
		return bl, fmt.Errorf("block of %d bytes", len(v))
	}
	if v[0] != blockVersion {
		return bl, fmt.Errorf("block of version %d, this program reads %d", v[0], blockVersion)
	}
	bl.widths = widths{v[1], v[2], v[3], v[4]}
	bl.slots = decodeSlots(v[5:])
	bl.records = v[blockHeaderBytes:]
	n := bl.slots.count()
	switch w := bl.widths; {
	case max(w.floor, w.span, w.epoch) > 8 || w.flags > 1:
		return bl, fmt.Errorf("widths %v", w)
	case n == 0:
		return bl, errors.New("block without records")
	case len(bl.records) != n*w.record():
		return bl, fmt.Errorf("%d records of %d bytes in %d", n, w.record(), len(bl.records))
	}
	return bl, nil
}

// at is the record of a slot.
func (b *block) at(slot int) (r state.Record, known bool, err error) {
	if !b.slots.has(slot) {
		return r, false, nil
	}
	w := b.widths
	v := b.records[b.slots.rank(slot)*w.record():]
	floor, v := uintOf(v, w.floor)
	span, v := uintOf(v, w.span)
	epoch, v := uintOf(v, w.epoch)
	flags, _ := uintOf(v, w.flags)
	switch {
	case floor > uint64(ids.MaxSeq) || span > uint64(ids.MaxSeq)-floor:
		return r, false, fmt.Errorf("record %d ends beyond the last number", slot)
	case epoch == 0 && span != 0:
		return r, false, fmt.Errorf("record %d has numbers at risk without an epoch", slot)
	case flags&^(blockHoleAtFloor|blockMoved) != 0:
		return r, false, fmt.Errorf("record %d has unknown flags %#x", slot, flags)
	}
	return state.Record{
		Floor: ids.Seq(floor), Bound: ids.Seq(floor + span), Epoch: ids.Epoch(epoch),
		HoleAtFloor: flags&blockHoleAtFloor != 0, Moved: flags&blockMoved != 0,
	}, true, nil
}

// with is the block after changes of it, which ascend.
func (b *block) with(changes []change) (block, error) {
	out := block{widths: b.widths, slots: b.slots}
	for i := range changes {
		_, slot := blockOf(changes[i].key)
		if changes[i].deleted {
			out.slots.clear(slot)
			continue
		}
		out.slots.set(slot)
		out.widths = out.widths.join(widthsOf(&changes[i].record))
	}
	if out.slots == (slotSet{}) {
		return block{}, nil
	}
	old := *b
	if out.widths != b.widths && b.slots != (slotSet{}) {
		var err error
		if old, err = b.widened(out.widths); err != nil {
			return block{}, err
		}
	}
	n := out.widths.record()
	out.records = make([]byte, 0, out.slots.count()*n)
	copied := 0
	for i := range changes {
		_, slot := blockOf(changes[i].key)
		before := old.slots.rank(slot)
		out.records = append(out.records, old.records[copied*n:before*n]...)
		if copied = before; old.slots.has(slot) {
			copied++
		}
		if !changes[i].deleted {
			out.records = out.widths.append(out.records, &changes[i].record)
		}
	}
	out.records = append(out.records, old.records[copied*n:]...)
	return out, nil
}

// widened is the same block in other widths, which are wide enough.
func (b *block) widened(w widths) (block, error) {
	out := block{widths: w, slots: b.slots, records: make([]byte, 0, b.slots.count()*w.record())}
	for slot := b.slots.next(0); slot >= 0; slot = b.slots.next(slot + 1) {
		r, _, err := b.at(slot)
		if err != nil {
			return block{}, err
		}
		out.records = w.append(out.records, &r)
	}
	return out, nil
}

func (w widths) append(dst []byte, r *state.Record) []byte {
	dst = appendUint(dst, uint64(r.Floor), w.floor)
	dst = appendUint(dst, uint64(r.Bound-r.Floor), w.span)
	dst = appendUint(dst, uint64(r.Epoch), w.epoch)
	return appendUint(dst, uint64(flagsOf(r)), w.flags)
}

// sealed is what openBlock reads.
func (b *block) sealed(key []byte) []byte {
	w := b.widths
	v := append(make([]byte, 0, blockHeaderBytes+len(b.records)+4), blockVersion, w.floor, w.span, w.epoch, w.flags)
	return seal(key, append(b.slots.append(v), b.records...))
}

// appendUint appends the lowest n bytes of v.
func appendUint(dst []byte, v uint64, n uint8) []byte {
	return binary.LittleEndian.AppendUint64(dst, v)[:len(dst)+int(n)]
}

// uintOf reads n bytes, and answers what follows them.
func uintOf(b []byte, n uint8) (v uint64, rest []byte) {
	for i := int(n) - 1; i >= 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v, b[n:]
}
