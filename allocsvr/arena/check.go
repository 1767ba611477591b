package arena

import (
	"math/bits"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// The checks are multiply-shift hashes: sum the inputs, each times its odd
// constant, and keep the top bits. Flipping input bit i adds ±2^i·constant to the
// sum; the constants are such that this moves the kept bits by at least two, for
// every i (TestEverySingleBitMovesTheCheck). So a single flipped bit is always
// noticed, and the value 0 can be given away (folded into 1) to mean "unused".
const (
	mulValue uint64 = 0x9E3779B97F4A7C15
	mulHi    uint64 = 0xC2B2AE3D27D4EB4F
	mulLo    uint64 = 0x165667B19E3779F9
	mulSpace uint64 = 0xD6E8FEB86659FD93
)

// saltOf ties a cell's check to the key, so that a cell found under a wrong key is noticed.
func saltOf(k ids.Key) uint64 {
	return k.Hi*mulHi + k.Lo*mulLo + uint64(k.Space)*mulSpace
}

// check15 is never 0.
func check15(value49, salt uint64) uint64 {
	c := (value49*mulValue + salt) >> 49
	if c == 0 {
		c = 1
	}
	return c
}

// check32 is never 0.
func check32(a, b, salt uint64) uint64 {
	c := (a*mulHi + b*mulLo + salt*mulSpace) >> 32
	if c == 0 {
		c = 1
	}
	return c
}

// A sealed word holds a 48-bit value and a flag: [flag:1][check:15][value:48]. It is
// never 0. The cells' first word and the section table are sealed words.
const (
	valueBits = 48
	valueMask = 1<<valueBits - 1
	flagBit   = 1 << 63
)

func seal(value uint64, flag bool, salt uint64) uint64 {
	value &= valueMask
	if flag {
		return flagBit | check15(value|1<<valueBits, salt)<<valueBits | value
	}
	return check15(value, salt)<<valueBits | value
}

func unseal(w, salt uint64) (value uint64, flag, ok bool) {
	value, flag = w&valueMask, w&flagBit != 0
	return value, flag, seal(value, flag, salt) == w
}

// A pending cell has a note in the making (note.go). It is sealed as if one more
// bit were set that is not stored: takers, who compare with the open check, find it
// out at no cost. Its check differs from the open one by a value that no single
// flipped bit of the word can make up (same test).
const pendingBit = 1 << (valueBits + 1)

func sealPending(value, salt uint64) uint64 {
	value &= valueMask
	return check15(value|pendingBit, salt)<<valueBits | value
}

func isPending(w, salt uint64) bool { return w == sealPending(w, salt) }

// The cells' second word is [parity:1][max:63] with an odd number of ones, so that 0 is not valid.
const maxMask = 1<<63 - 1

// maxUnknown is the word of max 0.
const maxUnknown uint64 = flagBit

func sealMax(m uint64) uint64 {
	m &= maxMask
	return m | uint64(^bits.OnesCount64(m)&1)<<63
}

func maxOK(w uint64) bool { return bits.OnesCount64(w)&1 == 1 }

// A counted word holds a 32-bit number: [check:32][number:32].
func sealCount(n uint32, salt uint64) uint64 { return check32(uint64(n), 0, salt)<<32 | uint64(n) }

func unsealCount(w, salt uint64) (n uint32, ok bool) {
	n = uint32(w)
	return n, sealCount(n, salt) == w
}
