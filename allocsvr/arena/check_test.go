package arena

import (
	"testing"

	"pgregory.net/rapid"
)

// From open to pending the check moves by a fixed distance. No flip of a stored bit
// may do the same: neither one of cur or the closed flag (which moves the check
// that is expected), nor one of the check's own.
func TestNoSingleBitMakesACellPending(t *testing.T) {
	const ones = 1<<15 - 1
	bit, mul := uint64(pendingBit), mulValue
	distance := bit * mul >> 49
	for _, pending := range []uint64{distance, -distance & ones} {
		near := func(v uint64) bool { // folding and carrying shift by up to two
			d := (v - pending) & ones
			return d <= 2 || d >= ones-1
		}
		for i := range 15 {
			if near(1<<i) || near(-(1<<i)&ones) {
				t.Errorf("check bit %d", i)
			}
		}
		for i := range 49 {
			for _, d := range []uint64{mul << i >> 49, -(mul << i) >> 49} {
				if near(d) {
					t.Errorf("value bit %d", i)
				}
			}
		}
	}
}

// A flipped input bit must move the 15 kept bits by at least two, whatever else is
// in the sum: then folding 0 into 1 hides nothing.
func TestEverySingleBitMovesTheCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		mul        uint64
		bits, keep int
	}{
		"cur and flag": {mulValue, 49, 15},
		"hi":           {mulHi, 64, 15},
		"lo":           {mulLo, 64, 15},
		"space":        {mulSpace, 16, 15},
		"entry number": {mulHi, 64, 32},
		"entry meta":   {mulLo, 32, 32},
		"count":        {mulHi, 32, 32},
	} {
		for i := range tc.bits {
			d := tc.mul << i
			top := d >> (64 - tc.keep)
			ones := uint64(1)<<tc.keep - 1
			if top == 0 || top == 1 || top == ones || top == ones-1 {
				t.Errorf("%s: bit %d moves the check by too little (%#x)", name, i, top)
			}
		}
	}
}

func TestSealedWordsAreReadBackAndNeverZero(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.Uint64Range(0, valueMask).Draw(t, "value")
		flag := rapid.Bool().Draw(t, "flag")
		salt := rapid.Uint64().Draw(t, "salt")
		w := seal(value, flag, salt)
		if w>>valueBits&0x7fff == 0 {
			t.Fatal("a check of 0 would look unused")
		}
		if v, f, ok := unseal(w, salt); v != value || f != flag || !ok {
			t.Fatalf("got %d %v %v", v, f, ok)
		}
		for i := range 64 {
			if _, _, ok := unseal(w^1<<i, salt); ok {
				t.Fatalf("flip of bit %d of %#x is not noticed", i, w)
			}
		}
		m := rapid.Uint64Range(0, maxMask).Draw(t, "max")
		x := sealMax(m)
		if x == 0 || !maxOK(x) || x&maxMask != m {
			t.Fatalf("max %d sealed as %#x", m, x)
		}
		for i := range 64 {
			if maxOK(x ^ 1<<i) {
				t.Fatalf("flip of bit %d of %#x is not noticed", i, x)
			}
		}
	})
}
