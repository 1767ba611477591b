package redis

import (
	"errors"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// turn is what one connection at a time needs while its commands are carried out.
// A loop has one for all of its connections; one that has to wait takes it along.
type turn struct {
	// w has the replies that are not sent.
	w    replies
	args [][]byte
	run  run
	look look
	// waits says what has to be waited for.
	waits waits
}

type waits uint8

const (
	waitsForNothing waits = iota
	waitsForRun
	waitsForLook
)

// run is the allocations that arrived together on one connection, not answered
// yet: they are made in one go, so that those that have to wait do so together.
// All are of one space.
type run struct {
	asks []allocsvr.Ask
	// texts has the keys as they were written, each up to its end.
	texts []byte
	ends  []int
}

// runMax is how many allocations are made in one go.
const runMax = 128

func (r *run) add(k ids.Key, n uint32, text []byte) {
	r.asks = append(r.asks, allocsvr.Ask{Key: k, N: n})
	r.texts = append(r.texts, text...)
	r.ends = append(r.ends, len(r.texts))
}

func (r *run) text(i int) string {
	from := 0
	if i > 0 {
		from = r.ends[i-1]
	}
	return string(r.texts[from:r.ends[i]])
}

func (r *run) clear() {
	clear(r.asks)
	r.asks, r.texts, r.ends = r.asks[:0], r.texts[:0], r.ends[:0]
}

// settled reports whether every allocation of the run has its answer, from here.
func (r *run) settled() bool {
	for i := range r.asks {
		if err := r.asks[i].Err; err != nil && (errors.Is(err, allocsvr.ErrWouldWait) || elsewhere(err)) {
			return false
		}
	}
	return true
}

// look is the keys of one command that reads.
type look struct {
	reads []allocsvr.Read
	// array: the reply is one, of all keys.
	array bool
	// texts are the keys as they were written, if they are needed.
	texts []string
}

func (l *look) settled() bool {
	for i := range l.reads {
		if err := l.reads[i].Err; err != nil && (errors.Is(err, allocsvr.ErrWouldWait) || elsewhere(err)) {
			return false
		}
	}
	return true
}

// clear makes the turn ready for another connection. What one of them made
// uncommonly large is dropped.
func (t *turn) clear() {
	t.run.clear()
	t.waits, t.look.texts = waitsForNothing, nil
	if cap(t.look.reads) > 2*runMax {
		t.look.reads = nil
	}
	if cap(t.args) > 2*runMax {
		t.args = nil
	}
	if t.w.b = t.w.b[:0]; cap(t.w.b) > 4*unsentMax {
		t.w.b = nil
	}
}
