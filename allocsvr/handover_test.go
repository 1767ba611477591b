package allocsvr

import (
	"context"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// two boots a1, which owns everything, and b1, which owns nothing.
func two(r *rig) (a, b *node) {
	a = r.boot("a1")
	r.store.Assign("a1")
	b = r.boot("b1")
	settle()
	return a, b
}

var allSections = []ids.Section{0, 1, 2, 3, 4, 5, 6, 7}

// uidsPerSection has one key of each section of the rig's store.
func spread() []ids.Key {
	var ks []ids.Key
	for i := range uint64(8) {
		ks = append(ks, uid(i<<ids.BlockShift))
	}
	return ks
}

func TestDrainHandsBackTheExactLastNumbers(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b := two(r)
		for i, k := range spread() {
			a.take(t, k, uint32(i+1))
		}
		r.store.Move("b1", allSections...)
		settle()
		for i, k := range spread() {
			want := state.Record{Floor: ids.Seq(i + 1), Bound: ids.Seq(i + 1)}
			if got := r.store.Record(k); got != want {
				t.Errorf("record of %v is %+v, want %+v", k, got, want)
			}
			if f := a.wantFailure(t, k, seqpb.Code_CODE_NOT_OWNER); f.Owner != "b1:1" || f.Epoch != 2 {
				t.Errorf("hint %+v, want b1 at epoch 2", f)
			}
			b.wantCurrent(t, k, ids.Seq(i+1))
			b.wantNext(t, k, ids.Seq(i+2))
		}
		if st := a.Stats(); st.Keys != 0 || st.Serving != 0 || st.Closing != 0 || st.Released != 8 {
			t.Errorf("the old owner still has %+v", st)
		}
	})
}

// A caller that comes while the section moves is told the new owner, not sent to search.
func TestACallerDuringAMoveIsToldTheNewOwner(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		a.wantNext(t, uid(1), 1)
		a.net.SetDelay(20 * time.Millisecond)
		r.store.Move("b1", allSections...)
		time.Sleep(25 * time.Millisecond) // closing by now, the returns are on their way
		start := time.Now()
		if f := a.wantFailure(t, uid(1), seqpb.Code_CODE_NOT_OWNER); f.Owner != "b1:1" {
			t.Errorf("hint %+v", f)
		}
		if took := time.Since(start); took < 10*time.Millisecond || took > handOverWait {
			t.Errorf("answered after %v", took)
		}
	})
}

func TestNoCallFailsWhileSectionsMoveBackAndForth(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b := two(r)
		stop := make(chan struct{})
		done := make(chan ids.Seq)
		ks := spread()
		for _, k := range ks {
			go func() {
				at, last := a, ids.Seq(0)
				for {
					select {
					case <-stop:
						done <- last
						return
					default:
					}
					res, err := at.AllocOne(context.Background(), k, 1, nil)
					if f := failureOf(err); f.Code == seqpb.Code_CODE_NOT_OWNER && f.Owner != "" {
						at = map[string]*node{"a1:1": a, "b1:1": b}[f.Owner]
						continue
					}
					if err != nil || res.First != last+1 || res.HoleTo != 0 {
						t.Errorf("after %d: %+v, %v", last, res, err)
					}
					last = max(last, res.First)
					time.Sleep(300 * time.Microsecond)
				}
			}()
		}
		for range 20 {
			r.store.Move("b1", allSections...)
			settle()
			r.store.Move("a1", allSections...)
			settle()
		}
		close(stop)
		for range ks {
			if last := <-done; last < 1000 {
				t.Errorf("only %d numbers", last)
			}
		}
	})
}

// Closing is one-way.
func TestASectionThatIsNoLongerRevokedStaysClosed(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		a.take(t, uid(1), 57)
		a.net.Fates(storetest.LoseRequest)
		r.store.Move("b1", 0)
		time.Sleep(4 * time.Millisecond)
		r.store.Keep(0)
		settle()
		a.wantFailure(t, uid(1), seqpb.Code_CODE_NOT_OWNER)
		if node, e := r.store.Owner(0); node != "" || e != 1 {
			t.Errorf("owner %q at epoch %d, want nobody after epoch 1", node, e)
		}
		r.store.Assign("a1", 0)
		settle()
		a.wantNext(t, uid(1), 58)
	})
}

// A delayed copy of a return must not lower a bound.
func TestADelayedCopyOfAReturnIsFenced(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		a.take(t, uid(1), 57)
		a.net.Fates(storetest.Hold)
		r.store.Move("", 0)
		settle()
		r.store.Assign("a1", 0)
		settle()
		a.wantNext(t, uid(1), 58)
		a.take(t, uid(1), 20)
		for _, rep := range r.store.Redeliver(a.net) {
			out, err := state.DecodeReply(rep.Outcome)
			if err != nil || out.Refusal != state.RefusedOldBatch {
				t.Errorf("late copy: %+v, %v", out, err)
			}
		}
		a.Kill()
		r.store.Expire("a1")
		r.store.Assign("b1", 0)
		settle()
		if res := r.nodes["b1"].take(t, uid(1), 1); res.First <= 78 {
			t.Fatalf("issued again: %+v", res)
		}
	})
}

func TestAResumedProcessContinuesAtTheNextNumber(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		for i, k := range spread() {
			a.take(t, k, uint32(i+1))
		}
		a.Kill()
		start := time.Now()
		a = r.boot("a1")
		for i, k := range spread() {
			a.wantNext(t, k, ids.Seq(i+2))
		}
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("back after %v", took)
		}
		if _, e := r.store.Owner(0); e != 1 {
			t.Errorf("epoch %d was spent", e)
		}
	})
}

func TestAProcessWithoutItsMemoryWaitsForItsOldLeaseAndStartsEmpty(t *testing.T) {
	inRig(t, storetest.Config{Auto: true}, func(r *rig) {
		a := r.boot("a1")
		a.take(t, uid(1), 57)
		a.Kill()
		time.Sleep(time.Second)
		a.memory = arena.NewHeap("a1", 0)
		a = r.boot("a1")
		if f := a.wantFailure(t, uid(1), seqpb.Code_CODE_NOT_OWNER); f.Owner != "" {
			t.Errorf("sent to where it already is: %+v", f)
		}
		time.Sleep(1500 * time.Millisecond)
		if res := a.take(t, uid(1), 1); res.First != 101 || res.HoleFrom != 58 && res.HoleFrom != 1 || res.HoleTo != 100 {
			t.Fatalf("%+v, want 101 after a hole up to 100", res)
		}
	})
}

// The returns of a dead process's release may be on their way, or applied; its
// successor must not serve what they hand back.
func TestAResumedProcessFinishesAHalfDoneRelease(t *testing.T) {
	for name, c := range map[string]struct {
		keys  int
		fates []storetest.Fate
	}{
		"everything on its way":             {1, []storetest.Fate{storetest.Hold, storetest.LoseRequest}},
		"one batch applied, one on its way": {5000, []storetest.Fate{storetest.Deliver, storetest.Hold, storetest.LoseRequest}},
		"answer lost":                       {5000, []storetest.Fate{storetest.LoseReply, storetest.LoseRequest, storetest.LoseRequest}},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, storetest.Config{}, func(r *rig) {
				a, b := two(r)
				var ks []ids.Key
				req := &seqpb.AllocRequest{Space: "uid"}
				for i := range uint64(c.keys) {
					u := i/256*8*256 + i%256 // all of section 0
					req.Uids, ks = append(req.Uids, u), append(ks, uid(u))
				}
				if rep, err := a.Alloc(context.Background(), req); err != nil || len(rep.Failures) > 0 {
					t.Fatal(rep, err)
				}
				a.net.Fates(c.fates...)
				r.store.Move("b1", 0)
				time.Sleep(8 * time.Millisecond)
				a.Kill()
				returned := 0
				for _, k := range ks {
					if r.store.Record(k).Epoch == 0 {
						returned++
					}
				}
				if node, _ := r.store.Owner(0); node != "a1" || returned == len(ks) || c.keys > 1 && returned == 0 {
					t.Fatalf("owner %q, %d keys returned: the test is not where it wants to be", node, returned)
				}
				a = r.boot("a1")
				settle()
				r.store.Redeliver(a.net)
				if f := a.wantFailure(t, uid(1), seqpb.Code_CODE_NOT_OWNER); f.Owner != "b1:1" {
					t.Errorf("hint %+v", f)
				}
				for i, k := range ks {
					if i%50 == 0 {
						b.wantNext(t, k, 2)
					}
				}
			})
		})
	}
}

func TestAnExpiredSessionDropsAllAndStartsAnew(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b := two(r)
		a.take(t, uid(1), 57)
		old := r.store.SessionOf("a1")
		r.store.Expire("a1")
		r.store.Assign("b1")
		settle()
		a.wantFailure(t, uid(1), seqpb.Code_CODE_NOT_OWNER)
		if res := b.take(t, uid(1), 1); res.First != 101 || res.HoleTo != 100 {
			t.Errorf("new owner: %+v", res)
		}
		if now := r.store.SessionOf("a1"); now <= old {
			t.Errorf("session %d after %d", now, old)
		}
		if st := a.Stats(); st.Keys != 0 {
			t.Errorf("%d keys of the lost session are held", st.Keys)
		}
		r.store.Move("a1", 0)
		settle()
		a.wantNext(t, uid(1), 102)
	})
}

func TestAReconnectLosesNothing(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		want := ids.Seq(1)
		for i := range 20 {
			a.net.Break()
			for range 30 {
				a.wantNext(t, uid(1), want)
				want++
			}
			time.Sleep(time.Duration(i) * time.Millisecond)
		}
		if _, e := r.store.Owner(0); e != 1 {
			t.Errorf("epoch %d", e)
		}
	})
}

// A raise whose answer was lost leaves a key that its owner never knew.
func TestADrainAfterALostAnswerCostsNoStep(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b := two(r)
		a.net.Fates(storetest.LoseReply)
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Millisecond)
		defer cancel()
		_, _ = a.AllocOne(ctx, uid(1), 1, nil)
		r.store.Move("b1", allSections...)
		settle()
		b.wantNext(t, uid(1), 1)
	})
}

func TestAHoleThatNobodyWasToldOfTravelsWithTheSection(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b := two(r)
		a.take(t, uid(1), 57)
		a.Kill()
		r.store.Expire("a1")
		r.store.Assign("b1", 0)
		settle()
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		_, _ = b.AllocOne(ctx, uid(1), 1, nil)
		settle()
		if got := r.store.Record(uid(1)); got.Floor != 100 {
			t.Fatalf("not acquired: %+v", got)
		}
		c := r.boot("c1")
		r.store.Move("c1", 0)
		settle()
		if res := c.take(t, uid(1), 1); res.First != 101 || res.HoleTo != 100 {
			t.Errorf("%+v, want 101 with the hole before it", res)
		}
	})
}

func TestStopHandsEverythingBackAndSaysWhereToGo(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b := two(r)
		a.take(t, uid(1), 57)
		done := make(chan error)
		go func() { done <- a.Stop(context.Background()) }()
		time.Sleep(100 * time.Millisecond)
		if f := a.wantFailure(t, uid(1), seqpb.Code_CODE_NOT_OWNER); f.Owner != "b1:1" {
			t.Errorf("while lingering: %+v", f)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		b.wantNext(t, uid(1), 58)
		if r.store.SessionOf("a1") != 0 {
			t.Error("the session is still there")
		}
		if a.memory.Size() != 0 {
			t.Error("the arena is still there")
		}
	})
}

func TestStopWithoutLeaderKeepsTheArena(t *testing.T) {
	inRig(t, storetest.Config{TTL: time.Minute}, func(r *rig) {
		a, _ := two(r)
		a.take(t, uid(1), 57)
		a.net.Cut(true)
		start := time.Now()
		if err := a.Stop(context.Background()); err == nil {
			t.Error("stopped without a word about what it could not hand back")
		}
		if took := time.Since(start); took != DefaultStopTimeout {
			t.Errorf("took %v", took)
		}
		a.net.Cut(false)
		a = r.boot("a1")
		a.wantNext(t, uid(1), 58)
	})
}

func TestTheLastNodeStopsAndStartsWithoutALoss(t *testing.T) {
	inRig(t, storetest.Config{Auto: true}, func(r *rig) {
		a := r.boot("a1")
		for i := range 5 {
			a.wantNext(t, uid(1), ids.Seq(i+1))
			if err := a.Stop(context.Background()); err != nil {
				t.Fatal(err)
			}
			a = r.boot("a1")
		}
	})
}

func TestANodeThatIsRefusedSaysWhy(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		r.store.Refuse("this is cluster other")
		a := r.boot("a1")
		select {
		case err := <-a.Failed():
			t.Log(err)
		default:
			t.Error("nothing was reported")
		}
		r.store.Refuse("")
		time.Sleep(time.Second)
		if err := a.Ready(); err != nil {
			t.Errorf("after the refusal was lifted: %v", err)
		}
	})
}

// A record that contradicts the arena must not end an epoch cleanly. The release is
// tried again; when that does not help, the session is given up: nothing stays closed.
func TestASectionThatCannotBeReleasedIsGivenUpWithItsSession(t *testing.T) {
	inRig(t, storetest.Config{Auto: true}, func(r *rig) {
		a, _ := two(r)
		k := uid(1)
		a.wantNext(t, k, 1)
		a.take(t, k, 56)
		sec := k.Section(8)
		node, epoch := r.store.Owner(sec)
		if node != "a1" {
			t.Fatalf("section %d is %s's", sec, node)
		}
		// Nobody does this: a hand-back in the owner's name that it never sent.
		seq := ids.BatchSeq(0)
		for _, b := range r.store.Executed() {
			if b.Session == r.store.SessionOf("a1") {
				seq = max(seq, b.Seq)
			}
		}
		rep := r.store.Apply(state.Batch{
			Session: r.store.SessionOf("a1"), Incarnation: 1, Seq: seq + 1,
			Ops: []state.Op{{Kind: state.OpReturn, Key: k, Epoch: epoch, Cur: 40}},
		})
		if rep.Refusal != state.OK || rep.Results[0].Refusal != state.OK {
			t.Fatalf("%+v", rep)
		}
		before := r.store.SessionOf("a1")
		r.store.Move("b1", sec)
		time.Sleep(doubtTries*doubtPause + 10*time.Second)
		if after := r.store.SessionOf("a1"); after == before || after == 0 {
			t.Errorf("session %d, then %d: not given up", before, after)
		}
		if err := a.Ready(); err != nil {
			t.Errorf("the node does not serve under a new session: %v", err)
		}
		if node, _ := r.store.Owner(sec); node == "" {
			t.Error("the section is nobody's")
		}
	})
}

// A store that refuses a node which serves, since another has its lease renewed, is
// no reason to end it; it is one when the lease has run out.
func TestARefusalEndsOnlyANodeThatDoesNotServe(t *testing.T) {
	inRig(t, storetest.Config{Auto: true}, func(r *rig) {
		a := r.boot("a1")
		a.wantNext(t, uid(1), 1)
		r.store.Refuse("this is cluster other")
		a.net.Break()
		settle()
		select {
		case err := <-a.Failed():
			t.Errorf("a serving node was ended: %v", err)
		default:
		}
		time.Sleep(3 * time.Second)
		select {
		case <-a.Failed():
		default:
			t.Error("nothing was reported once the lease had run out")
		}
	})
}
