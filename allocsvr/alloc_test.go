package allocsvr

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

var auto = storetest.Config{Auto: true}

func TestNumbersStartAtOneAndFollowEachOther(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1")
		for want := ids.Seq(1); want <= 250; want++ {
			a.wantNext(t, uid(42), want)
		}
		if res := a.take(t, uid(42), 70); res.First != 251 || res.Prev() != 250 {
			t.Errorf("a batch of 70: %+v", res)
		}
		if res := a.take(t, uid(42), 5000); res.First != 321 {
			t.Errorf("a batch larger than the step: %+v", res)
		}
		a.wantNext(t, uid(42), 5321)
		conv, _ := ids.DefaultSpaces()[1].NameKey("a conversation")
		a.wantNext(t, conv, 1)
	})
}

func TestPrefetchKeepsCallersFromWaiting(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1")
		a.take(t, uid(1), 1)
		waits := a.Stats().ColdWaits
		for range 2000 {
			a.take(t, uid(1), 1)
			time.Sleep(200 * time.Microsecond)
		}
		if st := a.Stats(); st.ColdWaits != waits || st.Prefetches < 20 {
			t.Errorf("%d callers waited, %d prefetches", st.ColdWaits-waits, st.Prefetches)
		}
	})
}

func TestALostPrefetchIsAskedForAgain(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1")
		a.take(t, uid(1), 1)
		a.net.Fates(storetest.LoseRequest, storetest.LoseReply)
		a.take(t, uid(1), 60)
		settle()
		if got := r.store.Record(uid(1)); got.Bound != 161 {
			t.Errorf("record %+v, want a bound of 61+100", got)
		}
	})
}

func TestAnExpiredLeaseServesNothing(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a := r.boot("a1")
		r.store.Assign("a1")
		settle()
		a.wantNext(t, uid(1), 1)
		a.net.Cut(true)
		time.Sleep(2 * time.Second)
		a.wantFailure(t, uid(1), seqpb.Code_CODE_LEASE_EXPIRED)
		if err := a.Ready(); err == nil {
			t.Error("ready without a lease")
		}
	})
}

// The holder must be silent before the leader may give its sections away.
func TestTheLeaseEndsBeforeTheLeaderGivesUp(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1", func(c *Config) { c.Steps = raise.Fixed(100_000) })
		a.wantNext(t, uid(1), 1)
		a.net.Cut(true)
		var silent time.Time
		for {
			if _, err := a.AllocOne(context.Background(), uid(1), 1, nil); err != nil {
				silent = time.Now()
				break
			}
			time.Sleep(time.Millisecond)
		}
		if node, _ := r.store.Owner(0); node != "a1" {
			t.Fatal("the leader gave the section away before its owner stopped")
		}
		for {
			if node, _ := r.store.Owner(0); node != "a1" {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if early := time.Since(silent); early < 150*time.Millisecond {
			t.Errorf("the owner stopped only %v before", early)
		}
	})
}

// The lease is looked at again after a wait (trap 8).
func TestALeaseThatEndsDuringAWaitServesNothing(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1")
		done := make(chan error, 1)
		r.store.SetReady(false)
		go func() {
			_, err := a.AllocOne(context.Background(), uid(1), 1, nil)
			done <- err
		}()
		time.Sleep(10 * time.Millisecond)
		// The heartbeats stop getting through, but the raise of before arrives at last.
		sec := a.world.Load().section(uid(1))
		sec.mu.Lock()
		raising := sec.extending[uid(1)].carrier
		sec.mu.Unlock()
		a.net.Cut(true)
		time.Sleep(2 * time.Second)
		raising.Done(state.OpResult{Floor: 0, Bound: 100}, nil)
		if err := <-done; failureOf(err).Code != seqpb.Code_CODE_LEASE_EXPIRED {
			t.Errorf("got %v, want lease expired", err)
		}
	})
}

func TestAColdKeyWithoutLeaderFailsInTime(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1")
		r.store.SetReady(false)
		start := time.Now()
		rep, err := a.Alloc(context.Background(), &seqpb.AllocRequest{Space: "uid", Uids: []uint64{1, 2, 3}, TimeoutMs: 500})
		if err != nil || len(rep.Failures) != 3 || rep.Failures[0].Code != seqpb.Code_CODE_BUSY {
			t.Fatalf("%+v, %v", rep, err)
		}
		if took := time.Since(start); took >= 500*time.Millisecond || took < 400*time.Millisecond {
			t.Errorf("answered after %v", took)
		}
		r.store.SetReady(true)
		time.Sleep(time.Second)
		a.wantNext(t, uid(1), 1)
	})
}

func TestAnUnknownOutcomeIsRetriedUnderANewSequence(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1")
		a.net.Fates(storetest.LoseReply, storetest.LoseRequest, storetest.LoseReply)
		a.wantNext(t, uid(1), 1)
		if got := r.store.Record(uid(1)); got.Bound != 100 {
			t.Errorf("record %+v: a lost reply must not cost a second step", got)
		}
		seqs := map[ids.BatchSeq]bool{}
		for _, b := range r.store.Executed() {
			if seqs[b.Seq] {
				t.Errorf("sequence %d was used twice", b.Seq)
			}
			seqs[b.Seq] = true
		}
	})
}

func TestABatchOfColdAndRepeatedKeysIsAnsweredInOrder(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1")
		a.take(t, uid(7), 95)
		rep, err := a.Alloc(context.Background(), &seqpb.AllocRequest{
			Space: "uid", Uids: []uint64{7, 8, 7, 9, 8, 7}, Counts: []uint32{1, 200, 10, 1, 1, 1},
		})
		if err != nil || len(rep.Failures) != 0 {
			t.Fatalf("%+v, %v", rep, err)
		}
		want := []uint64{96, 1, 97, 1, 201, 107}
		for i := range want {
			if rep.First[i] != want[i] {
				t.Fatalf("got %v, want %v", rep.First, want)
			}
		}
	})
}

func TestTenThousandColdKeysTakeFewBatches(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1")
		req := &seqpb.AllocRequest{Space: "uid"}
		for i := range uint64(10_000) {
			req.Uids = append(req.Uids, i*3)
		}
		before := len(r.store.Executed())
		rep, err := a.Alloc(context.Background(), req)
		if err != nil || len(rep.Failures) != 0 {
			t.Fatalf("%v %v", rep.Failures, err)
		}
		for i, f := range rep.First {
			if f != 1 {
				t.Fatalf("key %d got %d", i, f)
			}
		}
		if n := len(r.store.Executed()) - before; n > 4 {
			t.Errorf("%d batches", n)
		}
	})
}

func TestTheLastNumberIsReachedAndNotPassed(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		r.store.Apply(state.Advance{Key: uid(1), To: ids.MaxSeq - 150})
		a := r.boot("a1")
		r.store.Assign("a1")
		settle()
		if res := a.take(t, uid(1), 140); res.First != ids.MaxSeq-149 || res.HoleFrom != 1 || res.HoleTo != ids.MaxSeq-150 {
			t.Fatalf("got %+v", res)
		}
		if _, err := a.AllocOne(context.Background(), uid(1), 11, nil); !errors.Is(err, errExhausted) {
			t.Errorf("11 of the last 10: %v", err)
		}
		for want := ids.MaxSeq - 9; want <= ids.MaxSeq; want++ {
			a.wantNext(t, uid(1), want)
		}
		a.wantFailure(t, uid(1), seqpb.Code_CODE_EXHAUSTED)
		a.wantCurrent(t, uid(1), ids.MaxSeq)
	})
}

func TestAHoleIsDeclaredOnceWithTheFirstNumber(t *testing.T) {
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
		// The first caller gives up before the raise is through.
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		if _, err := b.AllocOne(ctx, uid(1), 1, nil); err == nil {
			t.Fatal("served cold within a millisecond")
		}
		settle()
		b.wantCurrent(t, uid(1), 100)
		if res := b.take(t, uid(1), 150); res.First != 101 || res.HoleFrom != 58 && res.HoleFrom != 1 || res.HoleTo != 100 {
			t.Fatalf("first after the loss: %+v", res)
		}
		b.wantNext(t, uid(1), 251)
		b.wantCurrent(t, uid(1), 251)
	})
}

// Current acquires nothing, however often it is asked (trap 9).
func TestCurrentOfAColdKeyAcquiresNothing(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a := r.boot("a1")
		r.store.Assign("a1")
		settle()
		a.take(t, uid(1), 10)
		batches := len(r.store.Executed())
		for range 100 {
			a.wantCurrent(t, uid(1), 10)
			a.wantCurrent(t, uid(2), 0)
		}
		if n := len(r.store.Executed()); n != batches {
			t.Errorf("%d batches for reading", n-batches)
		}
		if got := r.store.Record(uid(2)); got != (state.Record{}) {
			t.Errorf("record of a key that was only read: %+v", got)
		}
		if st := a.Stats(); st.Keys != 1 {
			t.Errorf("%d keys are held, want the one that was allocated", st.Keys)
		}
		a.wantNext(t, uid(2), 1)
		a.wantCurrent(t, uid(2), 1)
	})
}

func TestALargeRequestIsNotStarvedBySmallOnes(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1")
		a.take(t, uid(1), 1)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Microsecond):
					if _, err := a.AllocOne(context.Background(), uid(1), 1, nil); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
		start := time.Now()
		for range 5 {
			if _, err := a.AllocOne(context.Background(), uid(1), 300, nil); err != nil {
				t.Error(err)
			}
		}
		close(stop)
		wg.Wait()
		if took := time.Since(start); took > 200*time.Millisecond {
			t.Errorf("five requests of three steps took %v", took)
		}
	})
}
