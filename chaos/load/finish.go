package load

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/chaos/history"
)

const (
	finishers = 8
	// betweenTries is the pause between two tries of finishing a key.
	betweenTries = 20 * time.Millisecond
)

// Finish brings a run to its end when the faults are over: it allocates once
// from each key, which declares any hole at the end and shows that the service
// is back, reads it, and adds its ledger to the history. It repeats what fails
// until the context is done.
func Finish(ctx context.Context, rec *history.Recorder, keys []string, target Target) error {
	work := make(chan string)
	errs := make(chan error, finishers)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for range finishers {
		log := rec.Client()
		wg.Go(func() {
			for key := range work {
				if err := finish(ctx, rec, log, key, target); err != nil {
					errs <- err
					cancel()
					return
				}
			}
		})
	}
	for _, k := range keys {
		select {
		case work <- k:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(work)
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return context.Cause(ctx)
	}
}

func finish(ctx context.Context, rec *history.Recorder, log *history.Log, key string, target Target) error {
	until := func(what string, try func(context.Context) bool) error {
		for {
			callCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
			ok := try(callCtx)
			cancel()
			if ok {
				return nil
			}
			pause(ctx, betweenTries)
			if ctx.Err() != nil {
				return fmt.Errorf("load: key %s: %s: %w", key, what, ctx.Err())
			}
		}
	}
	if err := until("allocate", func(ctx context.Context) bool { return one(ctx, log, target, Request{Key: key, N: 1}) }); err != nil {
		return err
	}
	if err := until("read", func(ctx context.Context) bool { return read(ctx, log, target, []string{key}) }); err != nil {
		return err
	}
	return until("read the ledger", func(ctx context.Context) bool {
		gaps, err := target.Gaps(ctx, key)
		if err == nil {
			rec.Ledger(gaps...)
		}
		return err == nil
	})
}
