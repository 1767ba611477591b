package arena

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Region is memory that outlives a process. A File is shared memory; a Heap is
// for simulations, where "processes" die inside one real process.
//
// Of two users of the same memory at most one holds the lock. In a File the
// operating system drops it when the process dies. A simulation must do what the
// system does: first see to it that nothing of the killed process runs any more
// (its goroutines have ended, nobody holds one of its cells), then Close(false),
// and only then let the next process Lock.
type Region interface {
	// Name is for messages.
	Name() string
	// Lock claims the memory; *InUseError if another has it. Nothing else may be called before it succeeded.
	Lock() error
	// Size is how many bytes exist. They may be touched.
	Size() int64
	// Grow makes the bytes below size exist, new ones zero; *FullError if they
	// cannot be reserved, and then nothing changed.
	Grow(size int64) error
	// Words is the memory at [off, off+n), multiples of 8 that exist, and that came into being by one Grow.
	Words(off, n int64) []atomic.Uint64
	// Clear drops everything: size 0. Nobody may be using Words from before.
	Clear() error
	// Close gives the lock up; with remove, the memory too, unseen by the next to lock.
	Close(remove bool) error
}

// Heap is a Region in ordinary memory. The value is the machine's memory: keep it
// across the simulated deaths of processes, and drop it for a simulated machine loss.
type Heap struct {
	name   string
	mu     sync.Mutex
	locked bool
	limit  int64
	size   int64
	chunks []heapChunk
}

type heapChunk struct {
	off   int64
	words []atomic.Uint64
}

// NewHeap makes an empty region that refuses to grow past limit bytes (0: no limit).
func NewHeap(name string, limit int64) *Heap { return &Heap{name: name, limit: limit} }

// Name implements Region.
func (h *Heap) Name() string { return h.name }

// Lock implements Region.
func (h *Heap) Lock() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.locked {
		return &InUseError{Path: h.name}
	}
	h.locked = true
	return nil
}

// Size implements Region.
func (h *Heap) Size() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.size
}

// Grow implements Region.
func (h *Heap) Grow(size int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if size <= h.size {
		return nil
	}
	if h.limit > 0 && size > h.limit {
		return &FullError{Path: h.name, Need: size, Err: fmt.Errorf("simulated memory of %d bytes", h.limit)}
	}
	h.chunks = append(h.chunks, heapChunk{h.size, make([]atomic.Uint64, (size-h.size)/8)})
	h.size = size
	return nil
}

// Words implements Region.
func (h *Heap) Words(off, n int64) []atomic.Uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.chunks {
		if off >= c.off && off+n <= c.off+int64(len(c.words))*8 {
			return c.words[(off-c.off)/8 : (off-c.off+n)/8]
		}
	}
	panic(fmt.Sprintf("arena: bytes [%d, %d) of %s were not grown in one step", off, off+n, h.name))
}

// Clear implements Region.
func (h *Heap) Clear() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.size, h.chunks = 0, nil
	return nil
}

// Close implements Region.
func (h *Heap) Close(remove bool) error {
	if remove {
		_ = h.Clear()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.locked = false
	return nil
}

// Clone copies the memory, as a machine's snapshot would: for tests.
func (h *Heap) Clone() *Heap {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &Heap{name: h.name, limit: h.limit, size: h.size}
	for _, from := range h.chunks {
		to := heapChunk{from.off, make([]atomic.Uint64, len(from.words))}
		for i := range from.words {
			to.words[i].Store(from.words[i].Load())
		}
		c.chunks = append(c.chunks, to)
	}
	return c
}
