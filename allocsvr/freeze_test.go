package allocsvr

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// leaving has the first four of spread's keys, and their neighbours.
var leaving = sets.Range{Space: 1, Lo: 0, Last: 4<<ids.BlockShift - 1}

func wantHandedBack(t *testing.T, r *rig, k ids.Key, cur ids.Seq) {
	t.Helper()
	if got := r.store.Record(k); got != (state.Record{Floor: cur, Bound: cur}) {
		t.Errorf("record of %v is %+v, want everything handed back at %d", k, got, cur)
	}
}

func TestAFrozenRangeIsHandedBackExactlyAndTheRestServes(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b := two(r)
		for i, k := range spread() {
			a.take(t, k, uint32(i+1))
		}
		p := r.store.Freeze(leaving)
		if p.Seal() != state.RefusedWaiting {
			t.Error("sealed before anybody had vacated")
		}
		settle()
		if n := p.Waiting(); n != 0 {
			t.Fatalf("%d sessions are waited for", n)
		}
		for i, k := range spread() {
			if i < 4 {
				wantHandedBack(t, r, k, ids.Seq(i+1))
				if _, held := a.arena.Find(k); held {
					t.Errorf("%v is still held", k)
				}
			} else {
				a.wantNext(t, k, ids.Seq(i+2))
			}
		}
		if got := p.Seal(); got != state.OK {
			t.Fatal(got)
		}
		p.Commit(false)
		settle()
		for i, k := range spread()[:4] {
			if f := a.wantFailure(t, k, seqpb.Code_CODE_NOT_OWNER); !strings.Contains(f.Message, storetest.OtherSet) || !strings.Contains(f.Message, storetest.OtherStores[0]) {
				t.Errorf("%v: %+v", k, f)
			}
			b.wantFailure(t, k, seqpb.Code_CODE_NOT_OWNER)
			if got := r.store.Record(k); got.Bound != ids.Seq(i+1) {
				t.Errorf("%v: %+v after the drop", k, got)
			}
		}
		rep, err := a.Alloc(context.Background(), &seqpb.AllocRequest{Space: "uid", Uids: []uint64{0}, MapVersion: 1, SetVersion: 1 << 40})
		if err != nil || rep.Routes == nil || rep.Routes.MapVersion < 2 || len(rep.Routes.Sets) != 2 {
			t.Errorf("a refused caller learns no map: %+v, %v", rep, err)
		}
		var refused *wire.Refused
		if _, err := a.Gaps(context.Background(), &seqpb.GapsRequest{Space: "uid", Uid: 1}); !errors.As(err, &refused) || refused.Code != seqpb.Code_CODE_NOT_OWNER {
			t.Errorf("gaps of a key that left: %v", err)
		}
	})
}

func TestCallersWaitForAFreezeToEnd(t *testing.T) {
	for _, thaw := range []bool{true, false} {
		inRig(t, storetest.Config{}, func(r *rig) {
			a, _ := two(r)
			a.take(t, uid(1), 57)
			a.take(t, uid(2), 1)
			p := r.store.Freeze(leaving)
			settle()
			start := time.Now()
			var wg sync.WaitGroup
			wg.Go(func() {
				if thaw {
					a.wantNext(t, uid(1), 58)
				} else {
					a.wantFailure(t, uid(1), seqpb.Code_CODE_NOT_OWNER)
				}
				if took := time.Since(start); took < 100*time.Millisecond || took > 110*time.Millisecond {
					t.Errorf("answered after %v", took)
				}
			})
			wg.Go(func() {
				cur, err := a.CurrentOne(context.Background(), uid(2))
				if thaw && (cur != 1 || err != nil) || !thaw && failureOf(err).Code != seqpb.Code_CODE_NOT_OWNER {
					t.Errorf("current %d, %v", cur, err)
				}
			})
			wg.Go(func() { a.wantNext(t, uid(5<<ids.BlockShift), 1) })
			time.Sleep(100 * time.Millisecond)
			if thaw {
				p.Thaw()
			} else {
				p.Seal()
				p.Commit(false)
			}
			wg.Wait()
			if thaw {
				a.wantNext(t, uid(1), 59)
				if p.Again(); r.store.Record(uid(1)).Epoch == 0 {
					t.Error("the key is not acquired anew")
				}
				settle()
				wantHandedBack(t, r, uid(1), 59)
			}
		})
	}
}

// A batch's other keys are answered in their own time, though one has to wait.
func TestKeysBesideAFrozenOneAreServed(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		r.store.Freeze(leaving)
		settle()
		rep, err := a.Alloc(context.Background(), &seqpb.AllocRequest{Space: "uid", Uids: []uint64{1, 5 << 8}, TimeoutMs: 200})
		if err != nil || rep.First[1] != 1 || len(rep.Failures) != 1 || rep.Failures[0].Index != 0 || rep.Failures[0].Code != seqpb.Code_CODE_NOT_READY {
			t.Errorf("%+v, %v", rep, err)
		}
	})
}

// What this node believes of the map may be wrong in both directions; the store's ranges decide.
func TestTheStoreKnowsTheRangesBetter(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		a.take(t, uid(1), 57)
		p := r.store.Freeze(leaving)
		settle()
		p.Seal()
		p.Commit(false)
		settle()
		rec := r.store.Export(uid(1))
		rec.Floor, rec.Bound = 67, 67 // the other Set issued ten
		activate := r.store.Back(leaving, true, rec)
		settle()
		short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if _, err := a.AllocOne(short, uid(1), 1, nil); failureOf(err).Code != seqpb.Code_CODE_NOT_READY {
			t.Errorf("before activation: %v", err)
		}
		short, cancel = context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if cur, err := a.CurrentOne(short, uid(1)); failureOf(err).Code != seqpb.Code_CODE_NOT_READY {
			t.Errorf("read before activation: %d, %v", cur, err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { a.wantNext(t, uid(1), 68) })
		time.Sleep(100 * time.Millisecond)
		activate()
		wg.Wait()
		a.wantCurrent(t, uid(1), 68)
	})
}

func TestAKeyWithAnUndeclaredHoleLeavesWithIt(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b := two(r)
		a.take(t, uid(1), 7)
		a.Kill()
		r.store.Expire("a1")
		r.store.Assign("b1")
		settle()
		b.net.SetDelay(20 * time.Millisecond)
		gone, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		if _, err := b.AllocOne(gone, uid(1), 1, nil); err == nil {
			t.Fatal("answered too soon for this test")
		}
		settle()
		p := r.store.Freeze(leaving)
		time.Sleep(200 * time.Millisecond)
		if p.Waiting() != 0 {
			t.Fatal("not vacated")
		}
		if got := r.store.Record(uid(1)); got != (state.Record{Floor: 100, Bound: 100, HoleAtFloor: true}) {
			t.Errorf("record %+v, want the hole at its floor still", got)
		}
		p.Thaw()
		if res := b.take(t, uid(1), 1); res.First != 101 || res.HoleFrom != 1 || res.HoleTo != 100 {
			t.Errorf("%+v", res)
		}
	})
}

// A raise that is applied before the freeze, and answered after the shut, is not
// issued from, and costs nothing.
func TestARaiseUnderWayWhenTheRangeFreezes(t *testing.T) {
	for _, fate := range []storetest.Fate{storetest.Deliver, storetest.LoseReply, storetest.LoseRequest} {
		inRig(t, storetest.Config{}, func(r *rig) {
			a, _ := two(r)
			a.take(t, uid(1), 40)
			settle()
			a.net.SetDelay(20 * time.Millisecond)
			a.net.Fates(fate)
			a.take(t, uid(1), 20) // raises ahead
			var waiting sync.WaitGroup
			waiting.Go(func() { _, _ = a.AllocOne(context.Background(), uid(2), 1, nil) })
			time.Sleep(22 * time.Millisecond) // applied by now, if it arrives at all
			a.net.SetDelay(time.Millisecond)
			p := r.store.Freeze(leaving)
			time.Sleep(300 * time.Millisecond)
			if p.Waiting() != 0 {
				t.Fatal("not vacated")
			}
			wantHandedBack(t, r, uid(1), 60)
			if e := r.store.Export(uid(2)); e.Floor != 0 {
				t.Errorf("fate %d: a key that issued nothing leaves at %d", fate, e.Floor)
			}
			p.Thaw()
			a.wantNext(t, uid(1), 61)
			waiting.Wait()
			a.wantNext(t, uid(2), 2)
		})
	}
}

func TestAProcessThatDiesInAFreezeVacatesWhenItIsBack(t *testing.T) {
	for _, at := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond, 5 * time.Millisecond, 8 * time.Millisecond, 50 * time.Millisecond} {
		for _, fates := range [][]storetest.Fate{nil, {storetest.LoseReply, storetest.LoseReply}, {storetest.Hold, storetest.Hold}} {
			inRig(t, storetest.Config{}, func(r *rig) {
				a, _ := two(r)
				a.take(t, uid(1), 57)
				a.net.Fates(fates...)
				p := r.store.Freeze(leaving)
				time.Sleep(at)
				a.Kill()
				a = r.boot("a1")
				settle()
				if p.Waiting() != 0 {
					t.Fatalf("died after %v: not vacated", at)
				}
				r.store.Redeliver(a.net)
				wantHandedBack(t, r, uid(1), 57)
				p.Thaw()
				a.wantNext(t, uid(1), 58)
			})
		}
	}
}

// It dies with keys closed, and the range has thawed when it is back: nobody tells
// it of the freeze any more.
func TestClosedKeysOfAFreezeThatIsOverAreHandedBackAtTheNextCall(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		a.take(t, uid(1), 57)
		a.net.Fates(storetest.Hold, storetest.Hold, storetest.Hold)
		p := r.store.Freeze(leaving)
		time.Sleep(3 * time.Millisecond) // closed by now
		a.Kill()
		p.Thaw()
		a = r.boot("a1")
		if cell, ok := a.arena.Find(uid(1)); ok {
			if _, _, closed := cell.Load(); !closed {
				t.Fatal("the scenario does not close the key")
			}
		}
		a.wantCurrent(t, uid(1), 57)
		a.wantNext(t, uid(1), 58)
		r.store.Redeliver(a.net)
		a.wantNext(t, uid(1), 59)
	})
}

// It dies when its keys were handed back and the range vacated, of which it has not
// heard. The closed keys that its successor finds are another Set's, which is no
// contradiction; and when they are back, what was issued there counts.
func TestClosedKeysOfARangeThatIsGoneAreForgotten(t *testing.T) {
	for _, called := range []bool{false, true} {
		inRig(t, storetest.Config{}, func(r *rig) {
			a, _ := two(r)
			a.take(t, uid(1), 57)
			settle()
			a.net.Fates(storetest.LoseReply, storetest.LoseRequest, storetest.LoseRequest)
			p := r.store.Freeze(leaving)
			for range 20 {
				if time.Sleep(time.Millisecond); p.Waiting() == 0 {
					break
				}
			}
			a.Kill()
			if got := p.Seal(); got != state.OK {
				t.Fatalf("the first batch does not vacate the range: %v", got)
			}
			p.Commit(false)
			a = r.boot("a1")
			cell, ok := a.arena.Find(uid(1))
			if !ok {
				t.Fatal("the scenario keeps no key")
			}
			if _, _, closed := cell.Load(); !closed {
				t.Fatal("the scenario does not close the key")
			}
			if called {
				a.wantFailure(t, uid(1), seqpb.Code_CODE_NOT_OWNER)
			} else {
				time.Sleep(time.Minute) // a lap
				if _, held := a.arena.Find(uid(1)); held {
					t.Error("the key of another Set is still held")
				}
			}
			rec := r.store.Export(uid(1))
			rec.Floor, rec.Bound = 67, 67 // the other Set issued ten
			r.store.Back(leaving, false, rec)
			settle()
			a.wantNext(t, uid(1), 68)
		})
	}
}

func TestADrainAndAFreezeAtOnce(t *testing.T) {
	for _, first := range []string{"drain", "freeze"} {
		inRig(t, storetest.Config{}, func(r *rig) {
			a, b := two(r)
			for i, k := range spread() {
				a.take(t, k, uint32(i+1))
			}
			var p storetest.Part
			if first == "freeze" {
				p = r.store.Freeze(leaving)
				time.Sleep(time.Millisecond)
			}
			r.store.Move("b1", allSections...)
			if first == "drain" {
				time.Sleep(time.Millisecond)
				p = r.store.Freeze(leaving)
			}
			settle()
			if p.Waiting() != 0 {
				t.Fatalf("%s first: not vacated", first)
			}
			for i, k := range spread() {
				wantHandedBack(t, r, k, ids.Seq(i+1))
			}
			p.Thaw()
			for i, k := range spread() {
				b.wantNext(t, k, ids.Seq(i+2))
			}
		})
	}
}

// The returns that a vacation rests on wait for their batch, and the section is
// released meanwhile, which takes its keys along: the vacation does not go ahead of them.
func TestAVacationDoesNotOvertakeTheReturnsOfARelease(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b := two(r)
		a.take(t, uid(1), 57)
		settle()
		a.take(t, uid(1), 3) // of which the store's record says nothing
		a.net.SetDelay(20 * time.Millisecond)
		var waiting sync.WaitGroup
		waiting.Go(func() { _, _ = a.AllocOne(context.Background(), uid(5<<ids.BlockShift), 1, nil) })
		time.Sleep(time.Millisecond) // its batch is under way
		a.net.SetDelay(time.Millisecond)
		p := r.store.Freeze(leaving)
		time.Sleep(3 * time.Millisecond)
		r.store.Move("b1", allSections...)
		settle()
		waiting.Wait()
		if p.Waiting() != 0 {
			t.Error("not vacated")
		}
		wantHandedBack(t, r, uid(1), 60)
		p.Thaw()
		b.wantNext(t, uid(1), 61)
	})
}

// Loss of the machine in a freeze: it is not waited for any more, and what it may
// have issued is declared.
func TestAMachineLostInAFreeze(t *testing.T) {
	inRig(t, storetest.Config{Auto: true}, func(r *rig) {
		a := r.boot("a1")
		a.take(t, uid(1), 7)
		a.net.Cut(true)
		p := r.store.Freeze(leaving)
		time.Sleep(time.Second)
		if p.Waiting() != 1 || p.Seal() != state.RefusedWaiting {
			t.Fatal("sealed under an owner that may still serve")
		}
		time.Sleep(2 * time.Second)
		if p.Waiting() != 0 {
			t.Fatal("a session that is over is waited for")
		}
		if e := r.store.Export(uid(1)); e.Floor != 100 || len(e.Gaps) != 1 || e.Gaps[0].To != 100 {
			t.Errorf("leaves as %+v, want a hole up to 100", e)
		}
	})
}

// A hand-back that cannot be right keeps the range here, loudly.
func TestARangeWithAContradictedKeyIsNotVacated(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		a.take(t, uid(1), 57)
		r.store.Apply(state.Batch{
			Session: r.store.SessionOf("a1"), Incarnation: 1, Seq: 1 << 20,
			Ops: []state.Op{{Kind: state.OpReturn, Epoch: 1, Key: uid(1), Cur: 3}},
		})
		p := r.store.Freeze(leaving)
		a.Kill() // with the sequence above it can say nothing any more
		a = r.boot("a1")
		settle()
		if p.Waiting() != 1 {
			t.Error("vacated")
		}
		a.wantNext(t, uid(5<<ids.BlockShift), 1)
	})
}

func TestNoCallFailsWhileRangesFreezeAndThaw(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b := two(r)
		nodes := []*node{a, b}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for _, k := range spread()[:5] {
			wg.Go(func() {
				want := ids.Seq(1)
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					res, err := nodes[i%2].AllocOne(context.Background(), k, 3, nil)
					if failureOf(err).Code == seqpb.Code_CODE_NOT_OWNER {
						continue
					}
					if err != nil || res.First != want || res.HoleTo != 0 {
						t.Errorf("%v: %+v, %v; want %d", k, res, err, want)
						return
					}
					want += 3
					time.Sleep(300 * time.Microsecond)
				}
			})
		}
		p := r.store.Freeze(leaving)
		for i := range 30 {
			time.Sleep(time.Duration(i) * time.Millisecond)
			if i%7 == 3 {
				r.store.Move([]string{"a1", "b1"}[i%2], allSections...)
			}
			p.Thaw()
			time.Sleep(time.Duration(30-i) * 300 * time.Microsecond)
			p = p.Again()
		}
		p.Thaw()
		settle()
		close(stop)
		wg.Wait()
	})
}

// Where keys come into a Set, it does not claim to know all request ids of the past.
func TestTheWindowBeginsAnewWhenKeysComeIn(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		id := make([]byte, 16)
		id[0] = 1
		since := func(u uint64, x byte) uint64 {
			t.Helper()
			id := append([]byte{x}, id[1:]...)
			rep, err := a.Alloc(context.Background(), &seqpb.AllocRequest{Space: "uid", Uids: []uint64{u}, RequestIds: [][]byte{id}})
			if err != nil || len(rep.Failures) > 0 {
				t.Fatal(rep, err)
			}
			return rep.WindowSinceMs
		}
		begin, far := since(1, 1), since(5<<8, 1)
		p := r.store.Freeze(leaving)
		settle()
		p.Thaw()
		if got := since(1, 2); got != begin {
			t.Errorf("a thaw moved the window from %d to %d", begin, got)
		}
		p = p.Again()
		settle()
		p.Seal()
		p.Commit(false)
		time.Sleep(time.Second)
		r.store.Back(leaving, false, r.store.Export(uid(1)))
		settle()
		if got, now := since(1, 3), uint64(time.Now().UnixMilli()); got < now-100 {
			t.Errorf("claims to know all since %d, %d ms ago", got, now-got)
		}
		if got := since(5<<8, 2); got != far {
			t.Errorf("the window of a section that nothing came into moved from %d to %d", far, got)
		}
	})
}
