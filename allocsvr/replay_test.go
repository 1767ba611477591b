package allocsvr

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func rid(b byte) *[16]byte { return &[16]byte{15: b} }

func TestARepeatedRequestGetsTheSameNumbers(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		ctx := context.Background()
		first, err := a.AllocOne(ctx, uid(1), 5, rid(1))
		if err != nil || first.Replayed {
			t.Fatal(first, err)
		}
		a.take(t, uid(1), 3)
		again, err := a.AllocOne(ctx, uid(1), 5, rid(1))
		if err != nil || again.First != first.First || !again.Replayed {
			t.Errorf("repeated: %+v, %v", again, err)
		}
		if _, err := a.AllocOne(ctx, uid(1), 6, rid(1)); wire.CodeOf(err) != seqpb.Code_CODE_INVALID_ARGUMENT {
			t.Errorf("the same id for another count: %v", err)
		}
		if other, err := a.AllocOne(ctx, uid(2), 5, rid(1)); err != nil || other.Replayed || other.First != 1 {
			t.Errorf("the same id for another key: %+v, %v", other, err)
		}
		a.Kill()
		a = r.boot("a1")
		if again, err = a.AllocOne(ctx, uid(1), 5, rid(1)); err != nil || again.First != first.First || !again.Replayed {
			t.Errorf("repeated after a crash: %+v, %v", again, err)
		}
		a.wantNext(t, uid(1), 9)
	})
}

func TestARetryThatRacesItsOriginalGetsTheSameNumber(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		a.net.SetDelay(20 * time.Millisecond) // cold, so the original takes a while
		var wg sync.WaitGroup
		replayed := make([]bool, 8)
		for i := range replayed {
			wg.Go(func() {
				res, err := a.AllocOne(context.Background(), uid(1), 2, rid(1))
				if err != nil || res.First != 1 {
					t.Errorf("%+v, %v", res, err)
				}
				replayed[i] = res.Replayed
			})
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		n := 0
		for _, r := range replayed {
			if !r {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d of 8 were told that they are the original", n)
		}
		a.wantNext(t, uid(1), 3)
	})
}

func TestARetryTakesOverWhenItsOriginalGaveUp(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		r.store.SetReady(false)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		done := make(chan error)
		go func() { _, err := a.AllocOne(ctx, uid(1), 1, rid(1)); done <- err }()
		time.Sleep(50 * time.Millisecond)
		go func() {
			res, err := a.AllocOne(context.Background(), uid(1), 1, rid(1))
			if err == nil && (res.First != 1 || res.Replayed) {
				t.Errorf("%+v", res)
			}
			done <- err
		}()
		if err := <-done; wire.CodeOf(err) != seqpb.Code_CODE_BUSY {
			t.Errorf("the original: %v", err)
		}
		r.store.SetReady(true)
		if err := <-done; err != nil {
			t.Errorf("the retry: %v", err)
		}
	})
}

func TestABatchMixesNewRepeatedAndUnidentifiedKeys(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		start := uint64(time.Now().UnixMilli())
		if _, err := a.AllocOne(context.Background(), uid(2), 1, rid(2)); err != nil {
			t.Fatal(err)
		}
		a.take(t, uid(2), 4)
		rep, err := a.Alloc(context.Background(), &seqpb.AllocRequest{
			Space: "uid", Uids: []uint64{1, 2, 3, 1},
			RequestIds: [][]byte{rid(1)[:], rid(2)[:], nil, rid(1)[:]}, // the last is the first again
		})
		if err != nil || len(rep.Failures) > 0 {
			t.Fatalf("%+v, %v", rep, err)
		}
		for i, want := range []uint64{1, 1, 1, 1} {
			if rep.First[i] != want {
				t.Errorf("key %d: got %d, want %d", i, rep.First[i], want)
			}
		}
		if len(rep.Replayed) != 2 || rep.Replayed[0] != 1 || rep.Replayed[1] != 3 {
			t.Errorf("replayed %v, want 1 and 3", rep.Replayed)
		}
		if rep.WindowSinceMs == 0 || rep.WindowSinceMs > uint64(time.Now().UnixMilli()) || rep.WindowSinceMs > start+1 {
			t.Errorf("window since %d, began at %d", rep.WindowSinceMs, start)
		}
		a.wantNext(t, uid(2), 6)
	})
}

func TestAnIdentifiedRequestDuringAMoveIsToldTheNewOwner(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		a.wantNext(t, uid(1), 1)
		a.net.SetDelay(20 * time.Millisecond)
		r.store.Move("b1", allSections...)
		time.Sleep(25 * time.Millisecond)
		_, err := a.AllocOne(context.Background(), uid(1), 1, rid(1))
		if failureOf(err).Owner != "b1:1" {
			t.Errorf("got %v", err)
		}
	})
}

// The first answer after a loss may itself be lost: its repetition must declare
// the hole as well, also by the next process on the machine.
func TestARepeatedAnswerDeclaresTheHoleAgain(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a := r.boot("a1")
		r.store.Assign("a1")
		settle()
		a.take(t, uid(1), 57)
		a.Kill() // and its machine with it
		r.store.Expire("a1")
		b := r.boot("b1")
		r.store.Assign("b1")
		settle()
		ask := func(n *node) Result {
			t.Helper()
			res, err := n.AllocOne(context.Background(), uid(1), 2, rid(1))
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		first := ask(b)
		if first.First != 101 || first.HoleTo != 100 || first.Replayed {
			t.Fatalf("first after the loss: %+v", first)
		}
		b.wantNext(t, uid(1), 103)
		want := first
		want.Replayed = true
		if again := ask(b); again != want {
			t.Errorf("again: %+v, want %+v", again, want)
		}
		b.Kill()
		b = r.boot("b1")
		settle()
		if again := ask(b); again != want {
			t.Errorf("by the next process: %+v, want %+v", again, want)
		}
	})
}

func TestRetriesThatWaitForTheirOriginalAreLimited(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		r.boot("b1")
		a := r.boot("a1", func(c *Config) { c.MaxInFlight = 2 })
		r.store.Assign("a1")
		settle()
		r.store.SetReady(false)
		var wg sync.WaitGroup
		busy := make(chan time.Duration, 5)
		for range cap(busy) {
			wg.Go(func() {
				start := time.Now()
				if _, err := a.AllocOne(context.Background(), uid(1), 1, rid(1)); err != nil {
					busy <- time.Since(start)
				}
			})
			time.Sleep(time.Millisecond)
		}
		time.Sleep(10 * time.Millisecond)
		r.store.SetReady(true)
		wg.Wait()
		if len(busy) != 3 {
			t.Fatalf("%d of 5 were sent away, want 3: one carries the request out, and one may wait", len(busy))
		}
		for range 3 {
			if took := <-busy; took > 0 {
				t.Errorf("sent away after %v", took)
			}
		}
	})
}
