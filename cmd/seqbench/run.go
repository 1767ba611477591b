package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// measurement is one run: callers that call, and what came of it.
type measurement struct {
	cfg    *config
	target target
	// verify is nil for --no-verify.
	verify  *verifier
	latency *latencies
	tallies []tally

	// measuring: the warm-up is over. began is when it was, and is written before.
	measuring atomic.Bool
	began     time.Time
	stop      chan struct{}
	stopped   atomic.Bool

	mu       sync.Mutex
	firstErr error // for people; the others are counted
}

// tally is what one caller did while measuring. It fills a cache line.
type tally struct {
	allocations, errors atomic.Int64
	_                   [48]byte
}

func newMeasurement(c *config, t target) *measurement {
	m := &measurement{
		cfg: c, target: t, latency: newLatencies(c.callers),
		tallies: make([]tally, c.callers), stop: make(chan struct{}),
	}
	if !c.noVerify {
		m.verify = newVerifier(t.keys(), c.keys)
	}
	return m
}

// run warms up, measures until the duration is over or ctx ends, and waits for
// the calls under way. It answers for how long it measured.
func (m *measurement) run(ctx context.Context, live func(*measurement)) (measured time.Duration, interrupted bool) {
	var callers sync.WaitGroup
	start := time.Now()
	m.began = start
	if m.cfg.warmup == 0 {
		m.measuring.Store(true)
	}
	for i := range m.tallies {
		callers.Go(func() { m.callerLoop(i, start) })
	}
	if m.cfg.warmup > 0 && wait(ctx, m.cfg.warmup) {
		m.began = time.Now()
		m.measuring.Store(true)
	}
	var watchers sync.WaitGroup
	if live != nil {
		watchers.Go(func() { live(m) })
	}
	if ctx.Err() == nil {
		wait(ctx, m.cfg.duration)
	}
	interrupted = ctx.Err() != nil
	m.stopped.Store(true)
	close(m.stop)
	callers.Wait()
	if m.measuring.Load() {
		measured = time.Since(m.began)
	}
	watchers.Wait()
	m.latency.take()
	if m.verify != nil {
		m.verify.finish()
	}
	return measured, interrupted
}

// wait answers false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// totals so far.
func (m *measurement) totals() (allocations, errs int64) {
	for i := range m.tallies {
		allocations += m.tallies[i].allocations.Load()
		errs += m.tallies[i].errors.Load()
	}
	return allocations, errs
}

func (m *measurement) failedWith(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.firstErr == nil {
		m.firstErr = err
	}
}

// callerLoop is one caller, until the run stops.
func (m *measurement) callerLoop(n int, start time.Time) {
	w := m.worker(m.target.caller(), m.cfg.batch)
	choose := newChooser(m.cfg, n)
	stripe, tally := m.latency.stripe(n), &m.tallies[n]
	keys := make([]int, m.cfg.batch)
	pace := newPace(m.cfg, n, start)
	every := m.cfg.sampling()
	var back backOff
	for calls := 0; !m.stopped.Load(); calls++ {
		var due time.Time
		if pace != nil {
			if due = pace.next(m.stop); due.IsZero() {
				return
			}
		}
		choose.fill(keys)
		w.prepare(keys)
		// What was due in the warm-up is not measured, however late it is.
		measuring := m.measuring.Load() && (pace == nil || !due.Before(m.began))
		timed := measuring && calls%every == 0
		if timed && pace == nil {
			due = time.Now()
		}
		w.caller.alloc(keys, w.got)
		if timed {
			stripe.record(time.Since(due))
		}
		w.check(keys)
		if measuring {
			tally.allocations.Add(int64(len(keys) - w.failed))
			if w.failed > 0 {
				tally.errors.Add(int64(w.failed))
			}
		}
		if w.err == nil {
			back = 0
			continue
		}
		m.failedWith(w.err)
		back.pause(m.stop)
	}
}
