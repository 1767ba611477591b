package main

import "time"

// worker makes calls, one after the other, and has their numbers checked.
type worker struct {
	m       *measurement
	caller  caller
	reached []uint64
	got     []number
	// err is one of the last call's; failed is how many of its keys failed.
	err    error
	failed int
}

func (m *measurement) worker(c caller, keysMax int) *worker {
	return &worker{m: m, caller: c, reached: make([]uint64, keysMax), got: make([]number, keysMax)}
}

func (w *worker) call(keys []int) {
	w.prepare(keys)
	w.caller.alloc(keys, w.got[:len(keys)])
	w.check(keys)
}

// prepare and check are apart from the call so that what they take is not in its latency.
func (w *worker) prepare(keys []int) {
	if v := w.m.verify; v != nil {
		v.before(keys, w.reached)
	}
}

func (w *worker) check(keys []int) {
	got := w.got[:len(keys)]
	if v := w.m.verify; v != nil {
		v.after(keys, w.reached, got)
	}
	w.err, w.failed = nil, 0
	for i := range got {
		if got[i].err != nil {
			w.err = got[i].err
			w.failed++
		}
	}
}

// backOff keeps a caller from flooding a target that fails at once.
type backOff time.Duration

const (
	backOffMin = backOff(time.Millisecond)
	backOffMax = backOff(100 * time.Millisecond)
)

func (b *backOff) pause(stop <-chan struct{}) {
	*b = min(max(2**b, backOffMin), backOffMax)
	t := time.NewTimer(time.Duration(*b))
	defer t.Stop()
	select {
	case <-t.C:
	case <-stop:
	}
}
