package allocsvr

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// What evictions meet: freezes, watchers, and requests of several keys.

// returnsOf lists the numbers at which a key was handed back, repetitions included.
func returnsOf(r *rig, k ids.Key) (curs []ids.Seq) {
	for _, b := range r.store.Executed() {
		for _, op := range b.Ops {
			if op.Kind == state.OpReturn && op.Key == k {
				curs = append(curs, op.Cur)
			}
		}
	}
	return curs
}

// A key that is on its way out when its range freezes is not handed back twice, and
// the range is vacated only after its hand-back.
func TestAFreezeWaitsForAnEvictionUnderWay(t *testing.T) {
	for _, fate := range []storetest.Fate{storetest.Deliver, storetest.LoseReply, storetest.LoseRequest} {
		inRig(t, storetest.Config{}, func(r *rig) {
			a := r.boot("a1", idleAfter(2*time.Second))
			r.store.Assign("a1")
			settle()
			for i := range uint64(200) {
				a.take(t, uid(i), uint32(1+i%7))
			}
			a.net.SetDelay(30 * time.Millisecond)
			a.net.Fates(fate)
			for a.Stats().Returning == 0 {
				time.Sleep(time.Millisecond)
			}
			p := r.store.Freeze(leaving)
			for range 100 {
				if p.Waiting() == 0 {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if p.Waiting() != 0 {
				t.Fatalf("fate %d: not vacated", fate)
			}
			for i := range uint64(200) {
				wantHandedBack(t, r, uid(i), ids.Seq(1+i%7))
				got := returnsOf(r, uid(i))
				if len(got) > 1 && fate == storetest.Deliver || len(slices.Compact(got)) != 1 || got[0] != ids.Seq(1+i%7) {
					t.Fatalf("fate %d: key %d was handed back as %v", fate, i, got)
				}
			}
			if st := a.Stats(); st.Returning != 0 || st.Keys != 0 {
				t.Errorf("%+v", st)
			}
			p.Thaw()
			settle()
			for i := range uint64(200) {
				a.wantNext(t, uid(i), ids.Seq(2+i%7))
			}
		})
	}
}

// A key under a raise stays open, however long that takes.
func TestAKeyUnderARaiseIsNotHandedBack(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1", idleAfter(time.Second))
		a.take(t, uid(1), 1)
		for range 30 {
			a.net.Fates(storetest.LoseRequest)
		}
		a.take(t, uid(1), 60) // raises ahead
		for range 40 {
			time.Sleep(100 * time.Millisecond)
			tok := a.arena.Guard().Enter()
			cell, ok := a.arena.Find(uid(1))
			if _, _, closed := cell.Load(); !ok || closed {
				t.Error("closed while it was being raised")
			}
			tok.Exit()
		}
		a.wantNext(t, uid(1), 62)
	})
}

// Ranges freeze and thaw, keys go idle, callers call: every number once and in order.
func TestFreezesAndEvictionsUnderTrafficSkipAndRepeatNothing(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a := r.boot("a1", idleAfter(20*time.Millisecond), func(c *Config) { c.Steps = raise.Fixed(10) })
		r.store.Assign("a1")
		settle()
		done := make(chan struct{})
		go func() {
			defer close(done)
			next := map[uint64]ids.Seq{}
			for i := range uint64(1500) {
				u := i * i % 37 << 6
				res, err := a.AllocOne(context.Background(), uid(u), 1+uint32(i%3), nil)
				if err != nil || res.First != next[u]+1 || res.HoleTo != 0 {
					t.Errorf("uid %d: %+v, %v after %d", u, res, err, next[u])
					return
				}
				next[u] = res.First + ids.Seq(res.Count) - 1
				time.Sleep(time.Duration(i%7) * time.Millisecond)
			}
		}()
		p := r.store.Freeze(leaving)
		for i := 0; ; i++ {
			time.Sleep(time.Duration(i%41) * time.Millisecond)
			p.Thaw()
			select {
			case <-done:
				if st := a.Stats(); st.Evicted < 100 {
					t.Errorf("%d evictions", st.Evicted)
				}
				return
			case <-time.After(time.Duration(i%13) * time.Millisecond):
			}
			p = p.Again()
		}
	})
}

// A watcher reads a key that was handed back again, also one that it never saw held.
func TestAWatcherLearnsWhatWasIssuedBeforeAnEviction(t *testing.T) {
	for _, seen := range []bool{true, false} {
		inRig(t, storetest.Config{}, func(r *rig) {
			a := r.boot("a1", idleAfter(100*time.Millisecond))
			r.store.Assign("a1")
			settle()
			if seen {
				a.take(t, uid(1), 7)
			}
			w := a.watch(t, uid(1))
			w.until("first value", func() bool { return len(w.values) == 1 })
			w.take() // a sign of life: nothing is on its way
			for a.holds(uid(1)) {
				w.take()
			}
			want := w.values[0]
			// It does not take: it looks when all is over.
			time.Sleep(watchAlive + watchInterval)
			for range 3 {
				a.take(t, uid(1), 5)
				want += 5
				for a.holds(uid(1)) {
					time.Sleep(time.Millisecond)
				}
			}
			w.until("the newest", func() bool { return w.values[0] == want })
			if got := w.values[0]; got != want || len(w.failed) != 0 {
				t.Errorf("seen %v: %d, want %d; %v", seen, got, want, w.failed)
			}
		})
	}
}

// A crowded arena, a frozen range, and keys that can be had, in one request: each
// is answered in its own time.
func TestKeysBesideCrowdedAndFrozenOnesAreServed(t *testing.T) {
	inRig(t, storetest.Config{Sections: 8}, func(r *rig) {
		a := r.boot("a1", func(c *Config) { c.ArenaMaxBytes = 2 << 20 })
		r.store.Assign("a1")
		settle()
		r.store.Freeze(leaving)
		settle()
		req := &seqpb.AllocRequest{Space: "uid", Uids: []uint64{1}, TimeoutMs: 2000}
		for i := uint64(10); i < 1200; i++ { // a page each, more than there are
			req.Uids = append(req.Uids, i<<ids.BlockShift)
		}
		start := time.Now()
		rep, err := a.Alloc(context.Background(), req)
		if err != nil || len(rep.Failures) != 1 || rep.Failures[0].Index != 0 || rep.Failures[0].Code != seqpb.Code_CODE_NOT_READY {
			t.Fatalf("%v, %d failures: %+v", err, len(rep.GetFailures()), rep.GetFailures()[:min(2, len(rep.GetFailures()))])
		}
		for i, first := range rep.First[1:] {
			if first != 1 {
				t.Errorf("key %d got %d", i+1, first)
			}
		}
		if took := time.Since(start); took < 1900*time.Millisecond || took > 2100*time.Millisecond {
			t.Errorf("answered after %v", took)
		}
	})
}

// Between the sweep's look at a key and its closing, the key may have been forgotten
// and acquired anew, in another cell: the one that was seen says nothing of it.
func TestASweepDoesNotForgetAKeyThatWasAcquiredAnew(t *testing.T) {
	conv, _ := ids.DefaultSpaces()[1].NameKey("a conversation")
	for _, k := range []ids.Key{uid(1), conv} {
		inRig(t, auto, func(r *rig) {
			a := r.boot("a1", idleAfter(2*time.Second))
			a.take(t, k, 5)
			a.net.SetDelay(20 * time.Millisecond)
			for a.Stats().Returning == 0 {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Millisecond) // it is sent
			tok := a.arena.Guard().Enter()
			cell, ok := a.arena.Find(k)
			if !ok {
				t.Fatal("forgotten before its hand-back was acknowledged")
			}
			a.wantNext(t, k, 6)
			w := a.world.Load()
			items := a.closeCold(w, w.section(k), []arena.Held{{Key: k, Cell: cell, Closed: true}})
			tok.Exit()
			_ = a.queue.Submit(raise.HandBack, items...)
			a.wantNext(t, k, 7)
			a.wantCurrent(t, k, 7)
		})
	}
}
