package allocsvr

import "sync"

// batch is the asks of one request and their answers, for reuse.
type batch struct {
	asks []ask
	out  []answer
	cold []int
}

var batches sync.Pool // of *batch

// newBatch has n asks and answers, all zero.
func newBatch(n int) *batch {
	b, _ := batches.Get().(*batch)
	if b == nil || cap(b.asks) < n {
		return &batch{asks: make([]ask, n), out: make([]answer, n)}
	}
	b.asks, b.out = b.asks[:n], b.out[:n]
	return b
}

// recycle gives a batch back. Nobody may look at it any more.
func (b *batch) recycle() {
	clear(b.asks)
	clear(b.out)
	batches.Put(b)
}

// readings are the keys of one request to read, for reuse.
type readings struct{ keys []reading }

var readingsPool sync.Pool // of *readings

// newReadings has n keys, all zero.
func newReadings(n int) *readings {
	r, _ := readingsPool.Get().(*readings)
	if r == nil || cap(r.keys) < n {
		return &readings{make([]reading, n)}
	}
	r.keys = r.keys[:n]
	return r
}

// recycle gives the readings back. Nobody may look at them any more.
func (r *readings) recycle() {
	clear(r.keys)
	readingsPool.Put(r)
}
