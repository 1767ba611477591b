package allocsvr

import "sync"

// batch is the asks of one request and their answers, for reuse.
type batch struct {
	asks []ask
	out  []answer
}

var batches sync.Pool // of *batch

// newBatch has n asks and answers, all zero.
func newBatch(n int) *batch {
	b, _ := batches.Get().(*batch)
	if b == nil || cap(b.asks) < n {
		return &batch{make([]ask, n), make([]answer, n)}
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
