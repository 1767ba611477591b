package allocsvr

import (
	"sync/atomic"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// takings counts the numbers issued of each section. Callers that run at the same
// time mostly count in stripes of their own, far apart: one counter a section would be
// the one thing that callers of different keys write to, and costs them more than all else.
type takings [takingsStripes][]atomic.Uint64 // by section

const takingsStripes = 16

func newTakings(sections uint32) *takings {
	var t takings
	for i := range t {
		t[i] = make([]atomic.Uint64, sections)
	}
	return &t
}

// add counts n numbers more, of whoever is inside the guard.
func (t *takings) add(in arena.Token, no ids.Section, n uint64) {
	t[in.Stripe()%takingsStripes][no].Add(n)
}

// of is how many there were. It sees all that were counted before, and never less than once before.
func (t *takings) of(no ids.Section) (n uint64) {
	for i := range t {
		n += t[i][no].Load()
	}
	return n
}
