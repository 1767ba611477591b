package raise

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// store records batches and answers after `takes`; the first `fails` calls fail.
type store struct {
	mu      sync.Mutex
	batches [][]state.Op
	at      []time.Time
	takes   time.Duration
	fails   int
	flying  int
	most    int
}

func (s *store) Execute(ctx context.Context, ops []state.Op) ([]state.OpResult, error) {
	s.mu.Lock()
	s.batches = append(s.batches, append([]state.Op(nil), ops...))
	s.at = append(s.at, time.Now())
	s.flying++
	s.most = max(s.most, s.flying)
	fail := s.fails > 0
	s.fails--
	s.mu.Unlock()
	defer func() { s.mu.Lock(); s.flying--; s.mu.Unlock() }()
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if fail {
		return nil, errors.New("reply lost")
	}
	res := make([]state.OpResult, len(ops))
	for i, op := range ops {
		res[i].Bound = op.Step
	}
	return res, nil
}

type item struct {
	step  ids.Seq
	moot  bool
	done  int
	bound ids.Seq
	err   error
	after func()
}

func (i *item) Fill(op *state.Op) bool {
	*op = state.Op{Kind: state.OpExtend, Step: i.step}
	return !i.moot
}

func (i *item) Done(res state.OpResult, err error) {
	i.done++
	i.bound, i.err = res.Bound, err
	if i.after != nil {
		i.after()
	}
}

// inBubble runs f with a queue over s, and closes the queue after it.
func inBubble(t *testing.T, s *store, cfg Config, f func(q *Queue)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg.Executor = s
		q := NewQueue(cfg)
		defer q.Close()
		f(q)
	})
}

func submit(t *testing.T, q *Queue, l Lane, items ...Item) {
	t.Helper()
	if err := q.Submit(l, items...); err != nil {
		t.Fatal(err)
	}
}

func TestAColdCallerGoesAtOnceAndTheRestFormsTheNextBatch(t *testing.T) {
	s := &store{takes: 10 * time.Millisecond}
	inBubble(t, s, Config{}, func(q *Queue) {
		start := time.Now()
		var its [5]item
		submit(t, q, Urgent, &its[0])
		synctest.Wait()
		for i := 1; i < 5; i++ {
			submit(t, q, Urgent, &its[i])
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(s.batches) != 2 || len(s.batches[0]) != 1 || len(s.batches[1]) != 4 {
			t.Fatalf("batches %v, want one of 1 and one of 4", s.batches)
		}
		if got := s.at[0].Sub(start); got != 0 {
			t.Errorf("the first caller waited %v", got)
		}
		if got := s.at[1].Sub(start); got != s.takes {
			t.Errorf("the second batch left after %v, want as soon as the first was answered", got)
		}
		if s.most != 1 {
			t.Errorf("%d batches in flight at once", s.most)
		}
		for i := range its {
			if its[i].done != 1 || its[i].err != nil {
				t.Errorf("item %d settled %d times, %v", i, its[i].done, its[i].err)
			}
		}
	})
}

func TestPrefetchesWaitForCompany(t *testing.T) {
	s := &store{takes: time.Millisecond}
	inBubble(t, s, Config{PrefetchKeys: 100}, func(q *Queue) {
		start := time.Now()
		for range 10 {
			submit(t, q, Prefetch, &item{})
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(s.batches) != 1 || s.at[0].Sub(start) != DefaultPrefetchDelay {
			t.Fatalf("%d batches, the first after %v; want 1 after %v", len(s.batches), s.at[0].Sub(start), DefaultPrefetchDelay)
		}
		start = time.Now()
		for range 100 {
			submit(t, q, Prefetch, &item{})
		}
		synctest.Wait()
		if len(s.batches) != 2 || s.at[1] != start {
			t.Fatal("a full set of prefetches did not go at once")
		}
	})
}

func TestAnUnknownOutcomeIsAskedAgainWithWhatIsWantedThen(t *testing.T) {
	s := &store{takes: time.Millisecond, fails: 2}
	inBubble(t, s, Config{}, func(q *Queue) {
		a, b := &item{step: 1}, &item{step: 2}
		submit(t, q, Urgent, a, b)
		synctest.Wait()
		a.step, b.moot = 7, true
		late := &item{step: 3}
		submit(t, q, Urgent, late)
		time.Sleep(time.Second)
		synctest.Wait()
		if len(s.batches) != 3 {
			t.Fatalf("%d batches, want 3", len(s.batches))
		}
		if last := s.batches[2]; len(last) != 2 || last[0].Step != 7 || last[1].Step != 3 {
			t.Errorf("last batch %v, want the changed item and the late one", last)
		}
		if a.bound != 7 || a.done != 1 || late.done != 1 {
			t.Errorf("results %+v %+v", a, late)
		}
		if b.done != 1 || !errors.Is(b.err, ErrMoot) {
			t.Errorf("moot item: %+v", b)
		}
	})
}

func TestAFullQueueRefusesCallersButNotHandBacks(t *testing.T) {
	s := &store{takes: time.Hour}
	inBubble(t, s, Config{QueueMax: 2}, func(q *Queue) {
		submit(t, q, Urgent, &item{})
		synctest.Wait()
		submit(t, q, Urgent, &item{}, &item{})
		if err := q.Submit(Urgent, &item{}); !errors.Is(err, ErrFull) {
			t.Errorf("got %v, want ErrFull", err)
		}
		submit(t, q, HandBack, &item{}, &item{}, &item{})
		if got := q.Stats(); got.Queued != 6 || got.Refused != 1 {
			t.Errorf("stats %+v", got)
		}
	})
}

func TestNoLaneStarves(t *testing.T) {
	s := &store{takes: time.Millisecond}
	inBubble(t, s, Config{BatchOps: 16}, func(q *Queue) {
		submit(t, q, Urgent, &item{})
		synctest.Wait()
		var urgent, back, pre [40]item
		for i := range urgent {
			submit(t, q, Urgent, &urgent[i])
			submit(t, q, HandBack, &back[i])
			submit(t, q, Prefetch, &pre[i])
		}
		time.Sleep(2500 * time.Microsecond)
		synctest.Wait()
		if urgent[11].done == 0 || back[1].done == 0 || pre[1].done == 0 {
			t.Errorf("after one batch: urgent %d, hand-back %d, prefetch %d", urgent[11].done, back[1].done, pre[1].done)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for i := range urgent {
			if urgent[i].done+back[i].done+pre[i].done != 3 {
				t.Fatalf("item %d of some lane was not settled once", i)
			}
		}
	})
}

func TestHandBacksKeepTheirOrder(t *testing.T) {
	s := &store{takes: time.Millisecond, fails: 3}
	inBubble(t, s, Config{BatchOps: 8}, func(q *Queue) {
		for i := range 100 {
			submit(t, q, HandBack, &item{step: ids.Seq(i + 1)})
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		want := ids.Seq(1)
		for _, b := range s.batches[3:] {
			for _, op := range b {
				if op.Step != want {
					t.Fatalf("got %d, want %d", op.Step, want)
				}
				want++
			}
		}
	})
}

func TestCloseSettlesEverything(t *testing.T) {
	s := &store{takes: time.Hour}
	var flying, queued, more item
	inBubble(t, s, Config{}, func(q *Queue) {
		flying.after = func() { _ = q.Submit(Urgent, &more) }
		submit(t, q, Urgent, &flying)
		synctest.Wait()
		submit(t, q, HandBack, &queued)
		q.Close()
		if !errors.Is(flying.err, ErrClosed) || !errors.Is(queued.err, ErrClosed) {
			t.Errorf("flying %v, queued %v", flying.err, queued.err)
		}
		if err := q.Submit(Urgent, &item{}); !errors.Is(err, ErrClosed) {
			t.Errorf("a closed queue took an item: %v", err)
		}
	})
}
