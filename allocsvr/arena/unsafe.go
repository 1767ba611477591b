package arena

import (
	"sync/atomic"
	"unsafe"
)

// wordsOf views mapped memory as words. b must be 8-aligned, which mapped pages are.
func wordsOf(b []byte) []atomic.Uint64 {
	if len(b) == 0 {
		return nil
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%8 != 0 {
		panic("arena: memory is not word-aligned")
	}
	return unsafe.Slice((*atomic.Uint64)(p), len(b)/8)
}

// stripeHint differs between goroutines that run at the same time, since their
// stacks do; it needs no random number and no runtime internals.
func stripeHint() uint64 {
	var here byte
	return uint64(uintptr(unsafe.Pointer(&here))) * mulValue >> 52
}
