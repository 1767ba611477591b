package sim

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// ring keeps the last events of a run. What happened just before a violation
// is what one wants to read; a whole run would be gigabytes.
type ring struct {
	mu     sync.Mutex
	start  time.Time
	events []event
	next   int
	full   bool
	// said counts the processes' log messages.
	said map[string]int
}

// event is formatted only when it is dumped: most never are.
type event struct {
	at     time.Duration
	format string
	args   [6]any
	n      int
}

func newRing(size int) *ring {
	return &ring{start: time.Now(), events: make([]event, size), said: map[string]int{}}
}

func (r *ring) add(format string, args ...any) {
	r.mu.Lock()
	e := &r.events[r.next]
	e.at, e.format = time.Since(r.start), format
	e.n = copy(e.args[:], args)
	r.next++
	if r.next == len(r.events) {
		r.next, r.full = 0, true
	}
	r.mu.Unlock()
}

// count notes that a process said something.
func (r *ring) count(message string) {
	r.mu.Lock()
	r.said[message]++
	r.mu.Unlock()
}

func (r *ring) counted(message string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said[message]
}

// dump writes the events, oldest first.
func (r *ring) dump(w io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	write := func(es []event) {
		for i := range es {
			e := &es[i]
			fmt.Fprintf(w, "%12.6fs  %s\n", e.at.Seconds(), fmt.Sprintf(e.format, e.args[:e.n]...))
		}
	}
	if r.full {
		write(r.events[r.next:])
	}
	write(r.events[:r.next])
}
