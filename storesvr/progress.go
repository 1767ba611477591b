package storesvr

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqsvr/seqsvr/sets"
)

// progress is what only the leader that drives a move knows of it.
type progress struct {
	mu     sync.Mutex
	phase  string
	reason string
	began  time.Time
	// first keys had moved when this leader took the move up: they are not of its rate.
	first uint64
	// total is about how many there are; 0 while that is not known.
	total uint64
}

func (p *progress) state(phase string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase = phase
}

// failed notes what is wrong; false if it was noted already.
func (p *progress) failed(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	news := p.reason != err.Error()
	p.reason = err.Error()
	return news
}

func (p *progress) moved() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reason = ""
}

func (p *progress) from(keys uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.first = keys
}

func (p *progress) outOf(total uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total = total
}

// progressBook has those of this node's leadership; the moves are few (sets.RunningMax).
type progressBook struct {
	mu sync.Mutex
	of map[sets.MoveID]*progress
}

func (b *progressBook) begin(id sets.MoveID) *progress {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &progress{phase: "prepare", began: time.Now()}
	if b.of == nil {
		b.of = map[sets.MoveID]*progress{}
	}
	if old := b.of[id]; old != nil {
		p.total = old.total
	}
	for other := range b.of {
		if other+sets.SpanMax < id {
			delete(b.of, other)
		}
	}
	b.of[id] = p
	return p
}

func (b *progressBook) get(id sets.MoveID) *progress {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[id]
}

// frozenBounds are the buckets of the metric, in seconds.
var frozenBounds = [...]float64{0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 3}

// durations is a histogram of how long parts were frozen.
type durations struct {
	counts [len(frozenBounds)]atomic.Uint64
	n, us  atomic.Uint64
}

func (d *durations) observe(t time.Duration) {
	d.n.Add(1)
	d.us.Add(uint64(t.Microseconds()))
	for i, b := range frozenBounds {
		if t.Seconds() <= b {
			d.counts[i].Add(1)
		}
	}
}

func (d *durations) buckets() (n uint64, sum float64, of map[float64]uint64) {
	of = map[float64]uint64{}
	for i, b := range frozenBounds {
		of[b] = d.counts[i].Load()
	}
	return d.n.Load(), float64(d.us.Load()) / 1e6, of
}
