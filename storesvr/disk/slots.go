package disk

import (
	"encoding/binary"
	"math/bits"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// slotSet says which keys of a block are there.
type slotSet [ids.BlockSize / 64]uint64

const slotSetBytes = ids.BlockSize / 8

func (s *slotSet) has(slot int) bool { return s[slot>>6]>>(slot&63)&1 != 0 }
func (s *slotSet) set(slot int)      { s[slot>>6] |= 1 << (slot & 63) }
func (s *slotSet) clear(slot int)    { s[slot>>6] &^= 1 << (slot & 63) }

// rank is how many are there below slot, which may be ids.BlockSize.
func (s *slotSet) rank(slot int) (n int) {
	for _, w := range s[:slot>>6] {
		n += bits.OnesCount64(w)
	}
	if slot&63 != 0 {
		n += bits.OnesCount64(s[slot>>6] << (64 - slot&63))
	}
	return n
}

func (s *slotSet) count() int { return s.rank(ids.BlockSize) }

// next is the first one that is there at or after slot; -1: none is.
func (s *slotSet) next(slot int) int {
	for slot < ids.BlockSize {
		if w := s[slot>>6] >> (slot & 63); w != 0 {
			return slot + bits.TrailingZeros64(w)
		}
		slot = slot&^63 + 64
	}
	return -1
}

func (s *slotSet) append(dst []byte) []byte {
	for _, w := range s {
		dst = binary.LittleEndian.AppendUint64(dst, w)
	}
	return dst
}

func decodeSlots(b []byte) (s slotSet) {
	for i := range s {
		s[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return s
}
