package history

import (
	"sync"
	"sync/atomic"
	"time"
)

// Recorder collects a run. Each client has a Log of its own, so that recording
// costs a client one uncontended lock and one shared atomic per stamp.
type Recorder struct {
	start time.Time
	last  atomic.Int64

	mu     sync.Mutex
	logs   []*Log
	faults []Fault
	ledger []Gap
}

// NewRecorder starts the clock.
func NewRecorder() *Recorder { return &Recorder{start: time.Now()} }

// Stamp is the time since the start, made strictly growing: it is larger than
// any stamp that was given out before.
func (r *Recorder) Stamp() int64 {
	now := int64(time.Since(r.start))
	for {
		last := r.last.Load()
		next := max(now, last+1)
		if r.last.CompareAndSwap(last, next) {
			return next
		}
	}
}

// Client makes the log of one client. Clients are numbered from 0.
func (r *Recorder) Client() *Log {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &Log{rec: r, client: len(r.logs)}
	r.logs = append(r.logs, l)
	return l
}

// Fault begins a fault and gives what ends it. Until it is ended, it lasts.
func (r *Recorder) Fault(f Fault) (end func()) {
	f.Start = r.Stamp()
	r.mu.Lock()
	defer r.mu.Unlock()
	i := len(r.faults)
	r.faults = append(r.faults, f)
	return func() {
		at := r.Stamp()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.faults[i].End = at
	}
}

// Add records a fault whose stamps are known, e.g. one that is only recognised afterwards.
func (r *Recorder) Add(f Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, f)
}

// Ledger adds the declared holes of a key, as read from the cluster.
func (r *Recorder) Ledger(gaps ...Gap) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ledger = append(r.ledger, gaps...)
}

// History is a copy of what was recorded so far. Operations without an answer
// are in it as unknown; faults that still last end now.
func (r *Recorder) History() *History {
	now := r.Stamp()
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &History{
		Faults: append([]Fault(nil), r.faults...),
		Ledger: append([]Gap(nil), r.ledger...),
	}
	for i := range h.Faults {
		if h.Faults[i].End == 0 {
			h.Faults[i].End = now
		}
	}
	for _, l := range r.logs {
		l.mu.Lock()
		h.Ops = append(h.Ops, l.ops...)
		l.mu.Unlock()
	}
	return h
}

// Log is what one client did. It may be used by several goroutines of that client.
type Log struct {
	rec    *Recorder
	client int

	mu  sync.Mutex
	ops []Op
}

// Number is the client's number.
func (l *Log) Number() int { return l.client }

// Call records that an operation begins, just before it is sent. The result
// names it for Return.
func (l *Log) Call(op Op) (id int) {
	op.Client, op.Outcome, op.Return = l.client, Unknown, 0
	op.Call = l.rec.Stamp()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops = append(l.ops, op)
	return len(l.ops) - 1
}

// Return records how an operation ended, just after its answer arrived. Only
// the fields of the answer are taken from `answer`.
func (l *Log) Return(id int, answer Op) {
	at := l.rec.Stamp()
	l.mu.Lock()
	defer l.mu.Unlock()
	o := &l.ops[id]
	o.Return, o.Outcome, o.Err = at, answer.Outcome, answer.Err
	o.First, o.Count, o.Value = answer.First, answer.Count, answer.Value
	o.HoleFrom, o.HoleTo, o.Replayed = answer.HoleFrom, answer.HoleTo, answer.Replayed
	if answer.WindowSince != 0 {
		o.WindowSince = max(1, answer.WindowSince-l.rec.start.UnixNano())
	}
}
