package client_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func TestConcurrentCallsShareBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers = 500
		f := newFake("a:1")
		f.nodes["a:1"].latency = time.Millisecond
		c := dial(t, f)
		start := time.Now()
		seen := make(map[int64]bool)
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				r, err := c.Alloc(t.Context(), client.UID(1))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if seen[r.First] {
					t.Errorf("%d was given twice", r.First)
				}
				seen[r.First] = true
			})
		}
		wg.Wait()
		batches := f.nodes["a:1"].batches
		total := 0
		for _, n := range batches {
			total += n
		}
		if len(batches) > 6 || total != callers {
			t.Errorf("%d keys in batches of %v", total, batches)
		}
		if took := time.Since(start); took > 3*time.Millisecond {
			t.Errorf("took %v for calls of 1 ms", took)
		}
	})
}

func TestALoneCallIsNotDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		f.nodes["a:1"].latency = time.Millisecond
		c := dial(t, f)
		start := time.Now()
		if _, err := c.Alloc(t.Context(), client.UID(1)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

func TestBatchesUnderWayAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		stuck := make(chan struct{})
		f.nodes["a:1"].latency = 0
		c := dial(t, f, client.WithInFlight(3))
		synctest.Wait()
		f.change(func() { f.nodes["a:1"].stuck = stuck })
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if _, err := c.Alloc(t.Context(), client.UID(1)); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(late)
		}
		close(stuck)
		wg.Wait()
		got := f.nodes["a:1"].batches
		slices.Sort(got)
		if !slices.Equal(got, []int{1, 1, 1, 7}) {
			t.Errorf("batches of %v keys, want 1, 1, 1 and then the 7 that waited", got)
		}
	})
}

// late is when what is under way keeps nobody else waiting any more.
const late = 3 * time.Millisecond

func TestASecondBatchGoesOnlyWhenItIsFullOrTheFirstIsLate(t *testing.T) {
	t.Run("nobody waits for a batch", func(t *testing.T) { secondBatch(t, false) })
	t.Run("a goroutine waits for each", func(t *testing.T) { secondBatch(t, true) })
}

func secondBatch(t *testing.T, waits bool) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		f.waits = waits
		c := dial(t, f, client.WithMaxBatch(4))
		synctest.Wait()
		stuck := make(chan struct{})
		f.change(func() { f.nodes["a:1"].stuck = stuck })
		var wg sync.WaitGroup
		call := func(n int) {
			for range n {
				wg.Go(func() {
					if _, err := c.Alloc(t.Context(), client.UID(1)); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
		}
		sent := func() (n int) {
			f.change(func() { n = f.nodes["a:1"].arrivals })
			return n
		}
		arrived := func(want int, why string) {
			t.Helper()
			if got := sent(); got != want {
				t.Errorf("%d batches were sent, want %d: %s", got, want, why)
			}
		}
		call(1)
		call(3)
		arrived(1, "the second is neither full nor late")
		call(1)
		arrived(2, "the second is full")
		call(4)
		arrived(2, "no more than two")
		close(stuck)
		wg.Wait()

		stuck = make(chan struct{})
		f.change(func() { f.nodes["a:1"].stuck = stuck })
		before := sent()
		call(1)
		call(1)
		arrived(before+1, "the second is not full")
		time.Sleep(late)
		synctest.Wait()
		arrived(before+2, "the first is late")
		close(stuck)
		wg.Wait()
	})
}

func TestReadsAndAllocationsOfSeveralSpacesDoNotMix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		f.nodes["a:1"].latency = time.Millisecond
		c := dial(t, f)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				if _, err := c.Alloc(t.Context(), client.UID(uint64(i))); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if _, err := c.AllocN(t.Context(), client.Name("conv", string(rune('a'+i))), 2); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if _, err := c.Current(t.Context(), client.UID(1000+uint64(i))); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for i := range 50 {
			if n, err := c.Current(t.Context(), client.UID(uint64(i))); err != nil || n != 1 {
				t.Errorf("uid %d: %d, %v", i, n, err)
			}
			if n, err := c.Current(t.Context(), client.Name("conv", string(rune('a'+i)))); err != nil || n != 2 {
				t.Errorf("name %d: %d, %v", i, n, err)
			}
		}
	})
}

func TestACancelledCallDoesNotDisturbItsBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f, client.WithInFlight(1))
		synctest.Wait()
		stuck := make(chan struct{})
		f.change(func() { f.nodes["a:1"].stuck = stuck })

		type end struct {
			r   client.Result
			err error
		}
		start := func(ctx context.Context) chan end {
			done := make(chan end, 1)
			go func() {
				r, err := c.Alloc(ctx, client.UID(1))
				done <- end{r, err}
			}()
			synctest.Wait()
			return done
		}
		sentCtx, cancelSent := context.WithCancel(t.Context())
		queuedCtx, cancelQueued := context.WithCancel(t.Context())
		sent := start(sentCtx)       // under way alone
		queued := start(queuedCtx)   // in the next batch
		stays := start(t.Context())  // with this one
		stays2 := start(t.Context()) // and this

		cancelSent()
		cancelQueued()
		if e := <-sent; !errors.Is(e.err, client.ErrUnknownResult) || !errors.Is(e.err, context.Canceled) {
			t.Errorf("sent: %v", e.err)
		}
		if e := <-queued; errors.Is(e.err, client.ErrUnknownResult) || !errors.Is(e.err, context.Canceled) {
			t.Errorf("never sent: %v", e.err)
		}
		close(stuck)
		// The sent call got number 1, the queued one none.
		if e := <-stays; e.err != nil || e.r.First != 2 {
			t.Errorf("%+v", e)
		}
		if e := <-stays2; e.err != nil || e.r.First != 3 {
			t.Errorf("%+v", e)
		}
		if got := f.nodes["a:1"].batches; !slices.Equal(got, []int{1, 2}) {
			t.Errorf("batches of %v keys, want 1 and 2", got)
		}
		done, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Alloc(done, client.UID(1)); !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrUnknownResult) {
			t.Errorf("a context that had ended: %v", err)
		}
		if n := f.nodes["a:1"].rpcs(); n != 2 {
			t.Errorf("it was sent all the same")
		}
	})
}

// What a call uses is used again by later ones. The reply to a call that was
// given up must not be taken for theirs: that would be another key's number.
func TestALateReplyIsNotTakenForAnotherCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f)
		synctest.Wait()
		for round := range 20 {
			stuck := make(chan struct{})
			f.change(func() { f.nodes["a:1"].stuck, f.counters["uid/1"] = stuck, 100 })
			ctx, cancel := context.WithCancel(t.Context())
			given := make(chan error)
			var second client.Result
			go func() {
				_, err := c.Alloc(ctx, client.UID(1))
				given <- err
				second, err = c.Alloc(t.Context(), client.UID(2))
				given <- err
			}()
			synctest.Wait()
			cancel()
			if err := <-given; !errors.Is(err, client.ErrUnknownResult) {
				t.Fatal(err)
			}
			synctest.Wait()
			close(stuck)
			if err := <-given; err != nil || second.First != int64(round+1) {
				t.Fatalf("%+v, %v, want number %d", second, err, round+1)
			}
			f.change(func() { f.nodes["a:1"].stuck = nil })
		}
	})
}

func TestACancelledAllocManyTellsKeyByKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial2(t, f, "b:1")
		synctest.Wait()
		stuck := make(chan struct{})
		defer close(stuck)
		f.change(func() { f.nodes["a:1"].stuck = stuck })
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		results, err := c.AllocMany(ctx, []client.Request{
			{Key: client.UID(inSection(0)), N: 1}, {Key: client.UID(inSection(1)), N: 1}, {Key: client.UID(inSection(2)), N: 1},
		})
		var partial *client.PartialError
		if !errors.As(err, &partial) || partial.Failed != 2 {
			t.Fatalf("got %v", err)
		}
		for i, r := range results {
			if i == 1 && (r.Err != nil || r.First != 1) {
				t.Errorf("the key of the healthy node: %+v", r)
			}
			if i != 1 && (!errors.Is(r.Err, client.ErrUnknownResult) || !errors.Is(r.Err, errDeadline)) {
				t.Errorf("a key of the stuck node: %+v", r)
			}
		}
	})
}

func TestOneWrongCallDoesNotFailThoseBesideIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f, client.WithInFlight(1))
		synctest.Wait()
		stuck := make(chan struct{})
		f.change(func() {
			f.nodes["a:1"].stuck = stuck
			f.nodes["a:1"].refuse = func(keys []string) error {
				if slices.Contains(keys, "13") {
					return wire.Refusef(seqpb.Code_CODE_INVALID_ARGUMENT, "13 is not liked here")
				}
				return nil
			}
		})
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				r, err := c.Alloc(t.Context(), client.UID(uint64(i)))
				if i == 13 {
					if !errors.Is(err, client.ErrInvalidArgument) {
						t.Errorf("13: %+v, %v", r, err)
					}
				} else if err != nil || r.First != 1 {
					t.Errorf("%d: %+v, %v", i, r, err)
				}
			})
			synctest.Wait()
		}
		close(stuck)
		wg.Wait()
	})
}

func TestKeysThatWaitForTheDurableTierHoldNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		var down atomic.Bool
		down.Store(true)
		f.nodes["a:1"].cold = func(key string) bool { return down.Load() && key != "0" }
		c := dial(t, f)
		synctest.Wait()
		var wg sync.WaitGroup
		for i := range 20 { // one after the other, so that no batch is free of them
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 50 * time.Millisecond)
				if _, err := c.Alloc(t.Context(), client.UID(uint64(1+i))); err != nil {
					t.Errorf("cold: %v", err)
				}
			})
		}
		time.AfterFunc(3*time.Second, func() { down.Store(false) })
		for start := time.Now(); time.Since(start) < 3*time.Second; time.Sleep(time.Millisecond) {
			ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
			if _, err := c.Alloc(ctx, client.UID(0)); err != nil {
				t.Errorf("warm, after %v: %v", time.Since(start), err)
			}
			cancel()
		}
		wg.Wait()
	})
}

func TestAFullQueueIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f, client.WithInFlight(1), client.WithQueue(5))
		synctest.Wait()
		stuck := make(chan struct{})
		f.change(func() { f.nodes["a:1"].stuck = stuck })
		var wg sync.WaitGroup
		for range 6 { // one under way, five wait
			wg.Go(func() {
				if _, err := c.Alloc(t.Context(), client.UID(1)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Alloc(ctx, client.UID(1)); !errors.Is(err, client.ErrBusy) {
			t.Errorf("the seventh: %v", err)
		}
		close(stuck)
		wg.Wait()
		if _, err := c.Alloc(t.Context(), client.UID(1)); err != nil {
			t.Errorf("after the jam: %v", err)
		}
	})
}

func TestCancelledCallsMakeRoomInAFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f, client.WithInFlight(1), client.WithQueue(3))
		synctest.Wait()
		stuck := make(chan struct{})
		f.change(func() { f.nodes["a:1"].stuck = stuck })
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if _, err := c.Alloc(ctx, client.UID(1)); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		cancel()
		wg.Wait()
		start := time.Now()
		for range 3 {
			wg.Go(func() {
				if _, err := c.Alloc(t.Context(), client.UID(1)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(stuck)
		wg.Wait()
		if took := time.Since(start); took != 0 {
			t.Errorf("the last three backed off for %v", took)
		}
		if n := f.counters["uid/1"]; n != 4 {
			t.Errorf("%d numbers were given, want 4: to the one that was under way, and the last three", n)
		}
	})
}

func TestALargeCallDoesNotHoldUpSmallOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		f.nodes["a:1"].latency = time.Millisecond
		c := dial(t, f, client.WithMaxBatch(10))
		synctest.Wait()
		reqs := make([]client.Request, 10_000)
		for i := range reqs {
			reqs[i] = client.Request{Key: client.UID(uint64(i)), N: 1}
		}
		start := time.Now()
		var large time.Duration
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.AllocMany(t.Context(), reqs); err != nil {
				t.Error(err)
			}
			large = time.Since(start)
		})
		time.Sleep(20 * time.Millisecond)
		for range 10 {
			start := time.Now()
			if _, err := c.Alloc(t.Context(), client.UID(1)); err != nil {
				t.Error(err)
			}
			if took := time.Since(start); took > 10*time.Millisecond {
				t.Errorf("a small call took %v", took)
			}
		}
		wg.Wait()
		if large < 200*time.Millisecond {
			t.Errorf("the large call was over in %v, and proves nothing", large)
		}
	})
}

func TestCallsAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f, client.WithInFlight(1), client.WithMaxBatch(3))
		synctest.Wait()
		stuck := make(chan struct{})
		f.change(func() { f.nodes["a:1"].stuck = stuck })
		got := make([]int64, 20)
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() {
				r, err := c.Alloc(t.Context(), client.UID(1))
				if err != nil {
					t.Error(err)
				}
				got[i] = r.First
			})
			synctest.Wait()
		}
		close(stuck)
		wg.Wait()
		if !slices.IsSorted(got) {
			t.Errorf("in order of arrival: %v", got)
		}
	})
}

func TestCloseDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f, client.WithInFlight(1))
		synctest.Wait()
		stuck := make(chan struct{})
		f.change(func() { f.nodes["a:1"].stuck = stuck })
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if _, err := c.Alloc(t.Context(), client.UID(1)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		closed := make(chan struct{})
		go func() {
			c.Close()
			close(closed)
		}()
		synctest.Wait()
		for name, call := range map[string]func() error{
			"alloc":   func() error { _, err := c.Alloc(t.Context(), client.UID(1)); return err },
			"many":    func() error { _, err := c.AllocMany(t.Context(), nil); return err },
			"current": func() error { _, err := c.Current(t.Context(), client.UID(1)); return err },
			"gaps":    func() error { _, err := c.Gaps(t.Context(), client.UID(1)); return err },
			"route":   func() error { _, err := c.Route(t.Context(), client.UID(1)); return err },
			"watch":   func() error { return c.Watch(t.Context(), func(*client.Table) {}) },
		} {
			if err := call(); !errors.Is(err, client.ErrClosed) || !errors.Is(err, client.ErrUnavailable) {
				t.Errorf("%s on a closing client: %v", name, err)
			}
		}
		select {
		case <-closed:
			t.Fatal("Close did not wait for the calls under way")
		default:
		}
		close(stuck)
		wg.Wait()
		<-closed
		c.Close() // again does no harm
		if f.nodes["a:1"].open != 0 {
			t.Error("a connection is left open")
		}
	})
}

func TestCloseDoesNotWaitForRepliesThatNobodyWantsAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f)
		synctest.Wait()
		stuck := make(chan struct{})
		defer close(stuck)
		f.change(func() { f.nodes["a:1"].stuck = stuck })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		other := make(chan error)
		go func() {
			_, err := c.Alloc(ctx, client.UID(1))
			other <- err
		}()
		<-other
		start := time.Now()
		c.Close()
		if time.Since(start) != 0 {
			t.Errorf("Close took %v", time.Since(start))
		}
	})
}
