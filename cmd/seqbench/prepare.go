package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// How the keys are prepared: so many requests at a time, of so many keys. A
// pipeline of cold keys is worked off one by one by the Redis door, so there it
// must be short to be answered in time.
const (
	setupWorkers = 4
	redisWorkers = 32
	redisKeys    = 100
)

// prepare reads the counters, and touches the keys if asked to.
func (m *measurement) prepare(ctx context.Context) error {
	workers, chunk := setupWorkers, bulkKeys
	if m.cfg.target == targetRedis {
		workers, chunk = redisWorkers, redisKeys
	}
	if m.verify != nil {
		if err := m.eachChunk(ctx, workers, chunk, func(ctx context.Context) func([]int) error {
			into := make([]uint64, chunk)
			return func(keys []int) error { return m.readBases(ctx, keys, into) }
		}); err != nil {
			return err
		}
	}
	if !m.cfg.touch {
		return nil
	}
	return m.eachChunk(ctx, workers, chunk, func(context.Context) func([]int) error {
		w := m.worker(m.target.bulk(), chunk)
		return func(keys []int) error {
			if w.call(keys); w.err != nil {
				return fmt.Errorf("the keys could not be touched: %s: see that the target is well, or leave --touch out", oneLine(w.err))
			}
			return nil
		}
	})
}

func (m *measurement) readBases(ctx context.Context, keys []int, into []uint64) error {
	if err := m.target.current(ctx, keys, into[:len(keys)]); err != nil {
		return fmt.Errorf("the counters could not be read before the run: %w: see that the target is well, or use --no-verify", err)
	}
	for i, k := range keys {
		m.verify.setBase(k, into[i])
	}
	return nil
}

// eachChunk hands all keys, some at a time, to a few goroutines. The first error ends it.
func (m *measurement) eachChunk(ctx context.Context, atOnce, chunk int, newWork func(context.Context) func([]int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			work := newWork(ctx)
			for ctx.Err() == nil {
				first := int(next.Add(int64(chunk))) - chunk
				if first >= m.cfg.keys {
					return
				}
				keys := make([]int, min(chunk, m.cfg.keys-first))
				for i := range keys {
					keys[i] = first + i
				}
				if err := work(keys); err != nil {
					cancel(err)
				}
			}
		})
	}
	workers.Wait()
	cause := context.Cause(ctx)
	if errors.Is(cause, context.Canceled) {
		return errInterrupted
	}
	return cause
}

var errInterrupted = errors.New("interrupted before the measurement: there are no figures: run it again")
