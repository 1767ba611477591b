package raise

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/storesvr/state"
)

var (
	// ErrFull refuses an item: the queue holds as much as it may. The StoreSvr
	// group is slower than the demand for cold keys; back off and retry.
	ErrFull = errors.New("raise queue is full")
	// ErrClosed settles the items of a queue that was closed.
	ErrClosed = errors.New("raise queue is closed")
)

// Lane says who is waiting for an item.
type Lane uint8

const (
	// Urgent: a caller waits.
	Urgent Lane = iota
	// HandBack: a section waits to change its owner. Never refused as full.
	HandBack
	// Prefetch: nobody waits yet.
	Prefetch
	lanes
)

// Item is one operation to be carried out.
type Item interface {
	// Fill writes the operation as it is wanted now. False: it is no longer
	// wanted; the item is settled with ErrMoot and not sent. It is called from
	// the queue's goroutine and must not block.
	Fill(op *state.Op) bool
	// Done settles the item. With err nil, res is what the state machine
	// answered. It is called from the queue's goroutine (from Submit's caller
	// never) and must not block; it may submit.
	Done(res state.OpResult, err error)
}

// ErrMoot settles an item that was no longer wanted when its batch was formed.
var ErrMoot = errors.New("no longer wanted")

// Executor commits one batch. It adds the session's identity and a fresh
// sequence number to each call. An error means that the outcome is unknown or
// that nothing happened; the items are then asked again.
type Executor interface {
	Execute(ctx context.Context, ops []state.Op) ([]state.OpResult, error)
}

// Config of a Queue. The zero value of a bound means its default.
type Config struct {
	Executor Executor
	Logger   *zap.Logger
	// BatchOps is the most operations in one batch.
	BatchOps int
	// QueueMax bounds the urgent and the prefetch lane, each.
	QueueMax int
	// PrefetchDelay and PrefetchKeys: a prefetch waits for company that long, or for that many.
	PrefetchDelay time.Duration
	PrefetchKeys  int
	// RetryMin and RetryMax bound the back-off between failed batches.
	RetryMin, RetryMax time.Duration
	// Jitter spreads a back-off; nil leaves it as it is.
	Jitter func(time.Duration) time.Duration
}

// The defaults of Config.
const (
	DefaultBatchOps      = 4096
	DefaultQueueMax      = 1 << 16
	DefaultPrefetchDelay = 2 * time.Millisecond
	DefaultPrefetchKeys  = 1000
	DefaultRetryMin      = 10 * time.Millisecond
	DefaultRetryMax      = 250 * time.Millisecond
)

// Stats counts since the start.
type Stats struct {
	Batches, Ops, Retries, Refused uint64
	// Queued is how many items wait or are in flight now.
	Queued int
}

// Queue collects items into batches; see the package comment. It owns one
// goroutine, which Close ends.
type Queue struct {
	cfg Config

	mu     sync.Mutex
	lane   [lanes][]Item
	oldest time.Time // when the first of the prefetch lane came
	closed bool
	flying int
	stats  Stats

	wake   chan struct{} // holds one token: something was submitted
	cancel context.CancelFunc
	done   chan struct{}
}

// NewQueue starts a queue.
func NewQueue(cfg Config) *Queue {
	setDefault(&cfg.BatchOps, DefaultBatchOps)
	setDefault(&cfg.QueueMax, DefaultQueueMax)
	setDefault(&cfg.PrefetchDelay, DefaultPrefetchDelay)
	setDefault(&cfg.PrefetchKeys, DefaultPrefetchKeys)
	setDefault(&cfg.RetryMin, DefaultRetryMin)
	setDefault(&cfg.RetryMax, DefaultRetryMax)
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.Jitter == nil {
		cfg.Jitter = func(d time.Duration) time.Duration { return d }
	}
	ctx, cancel := context.WithCancel(context.Background())
	q := &Queue{cfg: cfg, wake: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{})}
	go q.run(ctx)
	return q
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Submit queues items in order, all or none. It never blocks.
func (q *Queue) Submit(l Lane, items ...Item) error {
	if len(items) == 0 {
		return nil
	}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return ErrClosed
	}
	if l != HandBack && len(q.lane[l])+len(items) > q.cfg.QueueMax {
		q.stats.Refused += uint64(len(items))
		q.mu.Unlock()
		return fmt.Errorf("%w: %d wait already", ErrFull, q.cfg.QueueMax)
	}
	first := len(q.lane[l]) == 0
	if first && l == Prefetch {
		q.oldest = time.Now()
	}
	q.lane[l] = append(q.lane[l], items...)
	// The goroutine sleeps on a timer once it knows of a prefetch, so a later
	// one needs to wake it only when it completes a batch.
	wake := l != Prefetch || first || len(q.lane[l]) >= q.cfg.PrefetchKeys
	q.mu.Unlock()
	if wake {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
	return nil
}

// Stats reports what the queue did.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.stats
	s.Queued = q.flying
	for _, l := range q.lane {
		s.Queued += len(l)
	}
	return s
}

// Close ends the goroutine, abandons the batch in flight, and settles every
// item with ErrClosed.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.cancel()
	<-q.done
}

func (q *Queue) run(ctx context.Context) {
	defer close(q.done)
	defer q.abandon()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait, work := q.ready()
		if !work {
			var due <-chan time.Time
			if wait > 0 {
				timer.Reset(wait)
				due = timer.C
			}
			select {
			case <-ctx.Done():
				return
			case <-q.wake:
			case <-due:
			}
			continue
		}
		if ctx.Err() != nil {
			return
		}
		q.round(ctx)
	}
}

// ready says whether there is work for a batch now, and else after how long (0: when woken).
func (q *Queue) ready() (wait time.Duration, work bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.lane[Prefetch])
	if len(q.lane[Urgent]) > 0 || len(q.lane[HandBack]) > 0 || n >= q.cfg.PrefetchKeys {
		return 0, true
	}
	if n == 0 {
		return 0, false
	}
	wait = q.cfg.PrefetchDelay - time.Since(q.oldest)
	return wait, wait <= 0
}

// round carries one batch through, retries included.
func (q *Queue) round(ctx context.Context) {
	items := q.take()
	ops := make([]state.Op, 0, len(items))
	back := q.cfg.RetryMin
	for {
		ops = ops[:0]
		kept := items[:0]
		for _, it := range items {
			var op state.Op
			if !it.Fill(&op) {
				q.settle(it, state.OpResult{}, ErrMoot)
				continue
			}
			ops = append(ops, op)
			kept = append(kept, it)
		}
		items = kept
		if len(items) == 0 {
			return
		}
		res, err := q.cfg.Executor.Execute(ctx, ops)
		if err == nil && len(res) != len(ops) {
			err = fmt.Errorf("%d results for %d operations", len(res), len(ops))
		}
		if err == nil {
			q.mu.Lock()
			q.stats.Batches++
			q.stats.Ops += uint64(len(ops))
			q.mu.Unlock()
			for i, it := range items {
				q.settle(it, res[i], nil)
			}
			return
		}
		if ctx.Err() == nil {
			q.cfg.Logger.Debug("batch has no known outcome, will be repeated", zap.Int("ops", len(ops)), zap.Error(err))
			q.mu.Lock()
			q.stats.Retries++
			q.mu.Unlock()
			backOff(ctx, q.cfg.Jitter(back))
			back = min(2*back, q.cfg.RetryMax)
		}
		if ctx.Err() != nil {
			for _, it := range items {
				q.settle(it, state.OpResult{}, ErrClosed)
			}
			return
		}
		// What came in meanwhile joins the retry, or a caller's cold key would
		// wait behind hand-backs that wait for a dead leader.
		items = append(items, q.takeUpTo(q.cfg.BatchOps-len(items))...)
	}
}

// backOff is the pause between a failed batch and its repetition.
func backOff(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func (q *Queue) settle(it Item, res state.OpResult, err error) {
	q.mu.Lock()
	q.flying--
	q.mu.Unlock()
	it.Done(res, err)
}

func (q *Queue) take() []Item { return q.takeUpTo(q.cfg.BatchOps) }

// takeUpTo removes up to n items: callers' first, but each other lane that has
// items is sure of an eighth of the batch, so that none starves.
func (q *Queue) takeUpTo(n int) []Item {
	q.mu.Lock()
	defer q.mu.Unlock()
	var share [lanes]int
	left := n
	for l := range q.lane {
		share[l] = min(len(q.lane[l]), n/8)
		left -= share[l]
	}
	items := make([]Item, 0, min(n, len(q.lane[Urgent])+len(q.lane[HandBack])+len(q.lane[Prefetch])))
	for l := range q.lane {
		more := min(left, len(q.lane[l])-share[l])
		left -= more
		k := share[l] + more
		items = append(items, q.lane[l][:k]...)
		q.lane[l] = q.lane[l][k:]
		if len(q.lane[l]) == 0 {
			q.lane[l] = nil // lets go of the backing array
		} else if Lane(l) == Prefetch {
			q.oldest = time.Time{} // the rest has waited long enough
		}
	}
	q.flying += len(items)
	return items
}

// abandon settles what is left when the queue closes.
func (q *Queue) abandon() {
	for {
		q.mu.Lock()
		q.closed = true
		var rest []Item
		for l := range q.lane {
			rest = append(rest, q.lane[l]...)
			q.lane[l] = nil
		}
		q.flying += len(rest)
		q.mu.Unlock()
		if len(rest) == 0 {
			return
		}
		for _, it := range rest {
			q.settle(it, state.OpResult{}, ErrClosed)
		}
	}
}
