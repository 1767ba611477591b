package arena

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitReturnsWhenAllWhoWereInsideHaveLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGuard()
		if err := g.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		var left atomic.Int32
		for i := range 10 {
			go func() {
				defer g.Enter().Exit()
				time.Sleep(time.Duration(i+1) * time.Second)
				left.Add(1)
			}()
		}
		synctest.Wait()
		start := time.Now()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := g.Wait(t.Context()); err != nil {
					t.Error(err)
				}
				if n := left.Load(); n != 10 {
					t.Errorf("returned when %d had left", n)
				}
			})
		}
		wg.Wait()
		if d := time.Since(start); d != 10*time.Second {
			t.Errorf("waited %v", d)
		}
	})
}

func TestNewReadersDoNotHoldTheWaiterUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGuard()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 8 { // at any time somebody is inside
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				for ctx.Err() == nil {
					tok := g.Enter()
					time.Sleep(20 * time.Millisecond)
					tok.Exit()
				}
			})
		}
		time.Sleep(time.Second)
		start := time.Now()
		if err := g.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d > 41*time.Millisecond {
			t.Errorf("waited %v for readers of 20 ms", d)
		}
		cancel()
		wg.Wait()
	})
}

func TestWaitGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGuard()
		tok := g.Enter()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if err := g.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		tok.Exit()
		if err := g.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// A writer unpublishes a value and breaks it after the grace; a reader must never see it broken.
func TestNothingIsBrokenUnderAReader(t *testing.T) {
	type thing struct{ broken atomic.Bool }
	g := NewGuard()
	var present atomic.Pointer[thing]
	present.Store(&thing{})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				tok := g.Enter()
				x := present.Load()
				for range 10 {
					if x.broken.Load() {
						t.Error("a reader saw a broken value")
						tok.Exit()
						return
					}
				}
				tok.Exit()
			}
		})
	}
	for range 3000 {
		old := present.Swap(&thing{})
		if err := g.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		old.broken.Store(true)
	}
	close(stop)
	wg.Wait()
}

func TestEnteringDoesNotAllocate(t *testing.T) {
	g := NewGuard()
	if n := testing.AllocsPerRun(100, func() { g.Enter().Exit() }); n != 0 {
		t.Fatal(n)
	}
}
