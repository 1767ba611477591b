package allocsvr

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

func idleAfter(d time.Duration) func(*Config) { return func(c *Config) { c.IdleAfter = d } }

func (n *node) holds(k ids.Key) bool {
	defer n.arena.Guard().Enter().Exit()
	_, ok := n.arena.Find(k)
	return ok
}

func TestIdleKeysAreHandedBackExactlyAndGoOnWhereTheyWere(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1", idleAfter(10*time.Second))
		conv, _ := ids.DefaultSpaces()[1].NameKey("a conversation")
		a.take(t, uid(1), 57)
		a.take(t, conv, 3)
		busy := uid(2) // of the same page
		for range 20 {
			a.take(t, busy, 1)
			time.Sleep(time.Second)
		}
		for _, k := range []ids.Key{uid(1), conv} {
			if a.holds(k) {
				t.Errorf("key %v is held after twice the idle time", k)
			}
		}
		if !a.holds(busy) {
			t.Error("a key in use was handed back")
		}
		if rec := r.store.Record(uid(1)); rec.Floor != 57 || rec.Bound != 57 || rec.Epoch != 0 {
			t.Errorf("record %+v, want 57 exactly and no holder", rec)
		}
		if st := a.Stats(); st.Evicted != 2 || st.Returning != 0 || st.Keys != 1 {
			t.Errorf("%+v", st)
		}
		a.wantCurrent(t, uid(1), 57)
		a.wantNext(t, uid(1), 58)
		a.wantNext(t, conv, 4)
	})
}

func TestAKeyIsNotIdleBeforeItsTime(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1", idleAfter(10*time.Second))
		for range 50 {
			a.take(t, uid(1), 1)
			for range 9 {
				time.Sleep(time.Second)
				if !a.holds(uid(1)) {
					t.Fatal("handed back within 10 s")
				}
			}
		}
	})
}

// touchAll takes one number of each key, and later reads and takes again: none was lost.
func touchAll(t *testing.T, n *node, keys uint64, uidOf func(uint64) uint64, want ids.Seq) {
	t.Helper()
	const batch = 5000
	for lo := uint64(0); lo < keys; lo += batch {
		req := &seqpb.AllocRequest{Space: "uid"}
		for i := lo; i < min(lo+batch, keys); i++ {
			req.Uids = append(req.Uids, uidOf(i))
		}
		rep, err := n.Alloc(context.Background(), req)
		if err != nil || len(rep.Failures) > 0 || len(rep.Discontinuities) > 0 {
			t.Fatalf("from key %d: %d failures, %d holes, %v: %+v", lo, len(rep.GetFailures()), len(rep.GetDiscontinuities()), err, rep.GetFailures()[:min(1, len(rep.GetFailures()))])
		}
		for i, first := range rep.First {
			if ids.Seq(first) != want {
				t.Fatalf("key %d got %d, want %d", lo+uint64(i), first, want)
			}
		}
	}
}

// More keys than the arena holds, by far: 20 000 at most here.
func TestManyMoreKeysThanTheArenaHolds(t *testing.T) {
	keys, arenaBytes, perPage := uint64(100_000), int64(2<<20), uint64(80)
	if os.Getenv("SEQ_LONG") != "" {
		keys, arenaBytes, perPage = 10_000_000, 34<<20, 256 // 2.1 million keys
	}
	cfg := storetest.Config{Auto: true, Sections: 64}
	inRig(t, cfg, func(r *rig) {
		a := r.boot("a1", func(c *Config) { c.ArenaMaxBytes = arenaBytes })
		uidOf := func(i uint64) uint64 { return i/perPage<<8 | i%perPage }
		touchAll(t, a, keys, uidOf, 1)
		st := a.Stats()
		if st.Evicted < keys/2 || st.Keys > int64(keys)/4 || st.ArenaBytes > st.ArenaLimit {
			t.Fatalf("%d keys held, %d evicted, arena %d of %d", st.Keys, st.Evicted, st.ArenaBytes, st.ArenaLimit)
		}
		for i := uint64(0); i < keys; i += keys / 500 {
			a.wantCurrent(t, uid(uidOf(i)), 1)
		}
		touchAll(t, a, keys, uidOf, 2)
		if st := a.Stats(); st.Discontinuities != 0 || st.Busy != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// What was used the longest ago goes first.
func TestTheOldestPagesGoFirst(t *testing.T) {
	inRig(t, storetest.Config{Auto: true, Sections: 8}, func(r *rig) {
		a := r.boot("a1", func(c *Config) { c.ArenaMaxBytes = 2 << 20 })
		hot := func() {
			for i := range uint64(20) {
				a.take(t, uid(i<<8), 1)
			}
		}
		hot()
		for i := uint64(1000); i < 1200; i++ {
			a.take(t, uid(i<<8), 1)
		}
		for i := uint64(2000); i < 2300; i++ { // room for these must be made
			a.take(t, uid(i<<8), 1)
			time.Sleep(20 * time.Millisecond)
			if i%10 == 0 {
				hot()
			}
		}
		kept := 0
		for i := range uint64(20) {
			if a.holds(uid(i << 8)) {
				kept++
			}
		}
		old := 0
		for i := uint64(1000); i < 1200; i++ {
			if a.holds(uid(i << 8)) {
				old++
			}
		}
		if kept < 18 || old > 60 {
			t.Errorf("%d of 20 keys in use kept, %d of 200 old ones", kept, old)
		}
	})
}

// A call for a key on its way out waits for the acknowledgement, and gets the next number.
func TestACallForAKeyOnItsWayOutWaits(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1", idleAfter(2*time.Second))
		a.take(t, uid(1), 5)
		a.net.Fates(storetest.LoseReply, storetest.LoseRequest)
		for a.Stats().Returning == 0 {
			time.Sleep(time.Millisecond)
		}
		if !a.holds(uid(1)) {
			t.Error("forgotten before its hand-back was acknowledged")
		}
		a.wantCurrent(t, uid(1), 5)
		a.wantNext(t, uid(1), 6)
	})
}

// A process is killed with keys closed, some of them handed back: the next one continues all.
func TestAKillAmidEvictionsLosesNoNumber(t *testing.T) {
	for _, fate := range []storetest.Fate{storetest.LoseRequest, storetest.LoseReply} {
		inRig(t, auto, func(r *rig) {
			a := r.boot("a1", idleAfter(2*time.Second))
			for i := range uint64(1000) {
				a.take(t, uid(i*97), uint32(1+i%7))
			}
			a.net.Fates(fate)
			for a.Stats().Returning == 0 {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(5 * time.Millisecond)
			a.Kill()
			a = r.boot("a1", idleAfter(2*time.Second))
			time.Sleep(100 * time.Millisecond)
			closed := 0
			for i := range uint64(500) { // called for before the first lap
				a.wantNext(t, uid(i*97), ids.Seq(2+i%7))
			}
			time.Sleep(5 * time.Second)
			for i := range uint64(1000) {
				if rec := r.store.Record(uid(i * 97)); rec.Floor != rec.Bound {
					closed++
				}
			}
			if closed > 0 {
				t.Errorf("%d keys are not handed back", closed)
			}
			for i := uint64(500); i < 1000; i++ {
				a.wantNext(t, uid(i*97), ids.Seq(2+i%7))
			}
		})
	}
}

// A lost machine costs the keys that it held, not those that it had handed back.
func TestALostMachineCostsOnlyKeysThatWereHeld(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a := r.boot("a1", idleAfter(4*time.Second))
		r.store.Assign("a1")
		settle()
		a.take(t, uid(1), 5)
		for range 12 {
			a.take(t, uid(2), 1)
			time.Sleep(time.Second)
		}
		a.Kill()
		r.store.Expire("a1")
		b := r.boot("b1")
		r.store.Assign("b1")
		settle()
		b.wantNext(t, uid(1), 6)
		if res := b.take(t, uid(2), 1); res.HoleTo == 0 {
			t.Errorf("no hole declared for a key that was held: %+v", res)
		}
	})
}

// A section may be drained while keys of it are on their way out.
func TestADrainAmidEvictionsLosesNoNumber(t *testing.T) {
	for _, delay := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond} {
		inRig(t, storetest.Config{}, func(r *rig) {
			a := r.boot("a1", idleAfter(2*time.Second))
			r.store.Assign("a1")
			b := r.boot("b1", idleAfter(2*time.Second))
			settle()
			for i := range uint64(300) {
				a.take(t, uid(i), 3)
			}
			for a.Stats().Returning == 0 {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(delay)
			r.store.Move("b1", allSections...)
			settle()
			for i := range uint64(300) {
				b.wantNext(t, uid(i), 4)
			}
			if st := a.Stats(); st.Serving+st.Closing != 0 || st.Returning != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// Callers, evictions and time-outs together: every number once and in order.
func TestEvictionsUnderTrafficSkipAndRepeatNothing(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1", idleAfter(20*time.Millisecond), func(c *Config) { c.Steps = raise.Fixed(10) })
		var wg sync.WaitGroup
		for g := range uint64(8) {
			wg.Go(func() {
				next := map[uint64]ids.Seq{}
				for i := range uint64(600) {
					u := g<<16 | i*i%13
					res, err := a.AllocOne(context.Background(), uid(u), 1+uint32(i%3), nil)
					if err != nil || res.First != next[u]+1 || res.HoleTo != 0 {
						t.Errorf("uid %d: %+v, %v after %d", u, res, err, next[u])
						return
					}
					next[u] = res.First + ids.Seq(res.Count) - 1
					time.Sleep(time.Duration(i%29) * time.Millisecond)
				}
			})
		}
		wg.Wait()
		if st := a.Stats(); st.Evicted < 100 {
			t.Errorf("%d evictions", st.Evicted)
		}
	})
}

// Request ids outlive the counters of their keys.
func TestEvictionKeepsRequestIDs(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1", idleAfter(2*time.Second))
		id := [requestIDBytes]byte{1}
		first, err := a.AllocOne(context.Background(), uid(1), 3, &id)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if a.holds(uid(1)) {
			t.Fatal("still held")
		}
		again, err := a.AllocOne(context.Background(), uid(1), 3, &id)
		if err != nil || again.First != first.First || !again.Replayed {
			t.Errorf("%+v, %v; want %+v again", again, err, first)
		}
		a.wantNext(t, uid(1), 4)
	})
}

// A return that contradicts the record keeps the key closed, and others served.
func TestAKeyThatTheStoreContradictsStaysClosed(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1", idleAfter(2*time.Second))
		a.take(t, uid(1), 5)
		r.store.Put(uid(1), state.Record{Floor: 50, Bound: 60, Epoch: r.store.Record(uid(1)).Epoch})
		time.Sleep(6 * time.Second)
		a.wantFailure(t, uid(1), seqpb.Code_CODE_UNAVAILABLE)
		a.wantNext(t, uid(2), 1)
		if st := a.Stats(); st.Evicted != 0 {
			t.Errorf("%+v", st)
		}
	})
}
