package storesvr

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// atNth calls f, once, before the n-th time of a step, and answers whether f has returned.
func (w *realm) atNth(step string, n int32, f func()) *atomic.Bool {
	var seen atomic.Int32
	var done atomic.Bool
	w.mu.Lock()
	defer w.mu.Unlock()
	w.atStep = func(s string) {
		if s == step && seen.Add(1) == n {
			f()
			done.Store(true)
		}
	}
	return &done
}

// Whoever leads one of the three Sets dies before each step of a move's second
// part: the move gets to its end by itself, and nothing is lost.
func TestAMoveSurvivesTheLossOfAnyLeaderAtEachStep(t *testing.T) {
	// A second part is opened by the end of the first one, as a rule.
	steps := map[string]int32{"OpenPart": 1, "Import": 2, "Preload": 2, "Freeze": 2, "Seal": 2, "CommitPart": 2, "Activate": 2, "Drop": 2, "EndPart": 2}
	for step, nth := range steps {
		for _, who := range []string{"s1", "s2", "s3"} {
			t.Run(step+"/"+who, func(t *testing.T) {
				simulateSets(t, map[string]int{"s1": 3, "s2": 3, "s3": 3}, nil, func(t *testing.T, w *realm) {
					a := w.owner("s1")
					a.fill(60)
					w.await(w.move("s1", "s2", uids(0, 599)), time.Minute, "done")
					b, c := w.owner("s2"), w.owner("s3")
					b.goesOn(60, 57)
					var victim string
					died := w.atNth(step, nth, func() {
						n := w.of[who].leader()
						victim = n.cfg.ID
						go w.of[who].kill(victim)
						time.Sleep(50 * time.Millisecond)
					})
					id := w.move("s2", "s3", uids(0, 599))
					eventually(t, 10*time.Second, "a death", func() bool { return died.Load() })
					time.Sleep(time.Second)
					w.of[who].start(victim)
					for _, o := range []*alloc{a, b, c} {
						o.back(t)
					}
					m := w.await(id, time.Minute, "done")
					if m.Keys != 60 {
						t.Errorf("%+v", m)
					}
					for i := range uint64(60) {
						if got := w.owning(uid(i * 10)); len(got) != 1 || got[0] != "s3" {
							t.Fatalf("key %d owned by %v", i*10, got)
						}
					}
					c.goesOn(60, 57)
					for _, o := range []*alloc{a, b, c} {
						o.back(t)
						o.crash()
					}
				})
			})
		}
	}
}

// Records that went ahead of their part are leftovers like others, and may be swept:
// then they come with the part, late but whole.
func TestWhatIsSweptAfterItWentAheadComesWithItsPart(t *testing.T) {
	simulateSets(t, map[string]int{"s1": 3, "s2": 1}, nil, func(t *testing.T, w *realm) {
		a := w.owner("s1")
		defer a.crash()
		a.fill(60)
		// Back from where nobody has touched them, so that no part has anything new to bring.
		w.await(w.move("s1", "s2", uids(0, 599)), time.Minute, "done")
		var swept atomic.Int32
		sweep := func() {
			n := w.of["s1"].leader()
			var ahead []ids.Key
			_ = n.fsm.read(func(st *state.State) {
				for i := range uint64(60) {
					if k := uid(i * 10); !st.Owns(k) {
						if _, ok := st.Keys.Get(k); ok {
							ahead = append(ahead, k)
						}
					}
				}
			})
			if rep, err := n.propose(t.Context(), state.Sweep{Keys: ahead}); err != nil || rep.Refusal != state.OK {
				t.Errorf("sweep of %d keys that went ahead: %v %v", len(ahead), rep.Refusal, err)
			}
			swept.Add(int32(len(ahead)))
		}
		w.mu.Lock()
		w.atStep = func(s string) {
			if s == "OpenPart" || s == "EndPart" {
				sweep()
			}
		}
		w.mu.Unlock()
		m := w.await(w.move("s2", "s1", uids(0, 599)), time.Minute, "done")
		if aborted := w.of["s1"].leader().counts.partsAborted.Load(); swept.Load() == 0 || m.Keys != 60 || aborted != 0 {
			t.Errorf("%d keys swept, %d parts aborted: %+v", swept.Load(), aborted, m)
		}
		a.goesOn(60, 57)
	})
}

func TestARangeThatIsNotVacatedInTimeIsServedAgain(t *testing.T) {
	simulateSets(t, map[string]int{"s1": 3, "s2": 1}, nil, func(t *testing.T, w *realm) {
		a := w.owner("s1")
		defer a.crash()
		a.fill(20)
		a.mu.Lock()
		a.keep = true
		a.mu.Unlock()
		id := w.move("s1", "s2", uids(0, 199))
		n := w.of["s1"].leader()
		frozen := func() bool { return len(metaOf(t, n).Out) == 1 && metaOf(t, n).Out[1].Phase == state.OutFrozen }
		eventually(t, time.Second, "a freeze", frozen)
		if r := a.extend(uid(0), 200); r.Refusal != state.RefusedFrozen {
			t.Fatalf("raised while frozen: %+v", r)
		}
		took := eventually(t, 10*time.Second, "a thaw", func() bool { return !frozen() })
		if took < 2*time.Second || took > 4*time.Second {
			t.Errorf("thawed after %v, the limit is %v", took, sets.FreezeTimeoutDefault)
		}
		eventually(t, time.Second, "service", func() bool { return a.extend(uid(0), 200).Refusal == state.OK })
		eventually(t, time.Second, "the reason", func() bool {
			m := w.status(id)
			return m.State != "done" && strings.Contains(m.Reason, "vacate")
		})
		// It is tried again until the owner does its part.
		a.mu.Lock()
		a.keep = false
		a.mu.Unlock()
		m := w.await(id, time.Minute, "done")
		if m.Keys != 20 {
			t.Errorf("%+v", m)
		}
	})
}

func TestASealedRangeWaitsForTheDirectory(t *testing.T) {
	simulateSets(t, map[string]int{"s1": 1, "s2": 1, "s3": 1}, nil, func(t *testing.T, w *realm) {
		a := w.owner("s1")
		defer a.crash()
		a.fill(20)
		w.await(w.move("s1", "s2", uids(0, 199)), time.Minute, "done")
		b, c := w.owner("s2"), w.owner("s3")
		defer b.crash()
		defer c.crash()
		sealed := w.atNth("CommitPart", 1, func() {
			time.Sleep(time.Millisecond) // whoever started the move has the answer
			go w.of["s1"].kill("n1")
			time.Sleep(50 * time.Millisecond)
		})
		id := w.move("s2", "s3", uids(0, 199))
		eventually(t, 10*time.Second, "the seal", sealed.Load)
		time.Sleep(time.Minute)
		n := w.of["s2"].leader()
		if o := metaOf(t, n).Out[2]; o == nil || o.Phase != state.OutSealed {
			t.Fatalf("without the directory a sealed part became %+v", o)
		}
		rep, err := n.Read(t.Context(), &seqpb.ReadRequest{ClusterId: b.welcome.ClusterId, Keys: []*seqpb.KeyRef{{Space: 1, Hi: 10}}})
		if err != nil || len(rep.Elsewhere) != 1 {
			t.Errorf("a sealed key was read: %v %v", rep, err)
		}
		w.of["s1"].start("n1")
		w.await(id, time.Minute, "done")
		c.goesOn(20, 57)
	})
}

// What is sealed cannot thaw by itself: when its target cannot be compared for longer than
// a freeze may last, the directory gives the part up, and the source serves on without it.
func TestASealedRangeIsServedAgainWhenItsTargetStaysAway(t *testing.T) {
	simulateSets(t, map[string]int{"s1": 3, "s2": 1}, nil, func(t *testing.T, w *realm) {
		a := w.owner("s1")
		defer a.crash()
		a.fill(20)
		cut := w.atNth("Freeze", 1, func() { w.setDown("s2", true) })
		id := w.move("s1", "s2", uids(0, 199))
		eventually(t, 10*time.Second, "the loss", cut.Load)
		n := w.of["s1"].leader()
		phase := func() (p state.OutPhase) {
			if o := metaOf(t, n).Out[sets.MoveID(id)]; o != nil {
				p = o.Phase
			}
			return p
		}
		eventually(t, time.Second, "a seal", func() bool { return phase() == state.OutSealed })
		if r := a.extend(uid(0), 200); r.Refusal != state.RefusedFrozen {
			t.Fatalf("raised while sealed: %+v", r)
		}
		took := eventually(t, time.Minute, "a thaw", func() bool { return phase() != state.OutSealed })
		if phase() != state.OutThawed || took < sets.FreezeTimeoutDefault || took > 3*sets.FreezeTimeoutDefault {
			t.Errorf("%v after %v, the limit of a freeze is %v", phase(), took, sets.FreezeTimeoutDefault)
		}
		if r := a.extend(uid(0), 200); r.Refusal != state.OK || r.HoleTo != 0 {
			t.Errorf("after the thaw: %+v", r)
		}
		if m := w.status(id); m.State == "done" || m.Parts != 0 || !strings.Contains(m.Reason, "s2") {
			t.Errorf("%+v", m)
		}
		w.setDown("s2", false)
		if m := w.await(id, time.Minute, "done"); m.Keys != 20 {
			t.Errorf("%+v", m)
		}
	})
}

// A part whose mover is gone for good, and whose directory answers, ends by the
// word of the directory alone.
func TestAnAbortedMoveLeavesTheRestWhereItWas(t *testing.T) {
	simulateSets(t, map[string]int{"s1": 1, "s2": 1}, nil, func(t *testing.T, w *realm) {
		a, b := w.owner("s1"), w.owner("s2")
		defer a.crash()
		defer b.crash()
		a.fill(60)
		w.atNth("Seal", 2, func() {
			rep, err := w.of["s1"].leader().SetAbort(t.Context(), &seqpb.SetAbortRequest{Id: 1})
			if err != nil || rep.Refusal != nil || rep.Move.State != "aborting" {
				t.Errorf("abort: %v %v", rep, err)
			}
		})
		m := w.await(w.move("s1", "s2", uids(0, 599)), time.Minute, "aborted")
		if m.Parts != 1 || m.Keys == 0 || m.Keys >= 60 || len(m.Moved) != 1 {
			t.Errorf("%+v", m)
		}
		b.goesOn(int(m.Keys), 57)
		for i := range uint64(60) {
			want := "s1"
			if i < m.Keys {
				want = "s2"
			}
			if got := w.owning(uid(i * 10)); len(got) != 1 || got[0] != want {
				t.Fatalf("key %d owned by %v", i*10, got)
			}
		}
		for i := int(m.Keys); i < 60; i++ {
			if r := a.extend(uid(uint64(i)*10), 200); r.Refusal != state.OK || r.HoleTo != 0 {
				t.Fatalf("key %d: %+v", i*10, r)
			}
		}
	})
}

func TestMovesThatCannotBeAreRefusedEachWithItsReason(t *testing.T) {
	simulateSets(t, map[string]int{"s1": 1, "s2": 1, "s3": 1}, nil, func(t *testing.T, w *realm) {
		a := w.owner("s1")
		defer a.crash()
		a.fill(40)
		n := w.of["s1"].leader()
		ask := func(q *seqpb.SetMoveRequest) string {
			rep, err := n.SetMove(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			return rep.GetRefusal().GetMessage()
		}
		for want, q := range map[string]*seqpb.SetMoveRequest{
			"to itself":              {From: "s1", To: "s1"},
			`no set "s9"`:            {From: "s1", To: "s9"},
			"owns nothing":           {From: "s2", To: "s1"},
			"uid:0-10 is not wholly": {From: "s2", To: "s1", Ranges: []*seqpb.Range{uids(0, 9)}},
			"outside":                {From: "s1", To: "s2", Ranges: []*seqpb.Range{uids(0, 1<<40)}},
			"is empty":               {From: "s1", To: "s2", Ranges: []*seqpb.Range{uids(9, 3)}},
			"name every position":    {From: "s1", To: "s2", Ranges: []*seqpb.Range{uids(0, 9), uids(9, 20)}},
			"without a valid space":  {From: "s1", To: "s2", Ranges: []*seqpb.Range{{Space: 1 << 20}}},
		} {
			if got := ask(q); !strings.Contains(got, want) {
				t.Errorf("%v: %q, want %q", q, got, want)
			}
		}
		w.mu.Lock()
		w.down["s3"] = true
		w.mu.Unlock()
		if got := ask(&seqpb.SetMoveRequest{From: "s1", To: "s3", Ranges: []*seqpb.Range{uids(0, 9)}}); !strings.Contains(got, `set "s3" has no leader`) {
			t.Errorf("%q", got)
		}
		list, err := n.SetList(t.Context(), &seqpb.SetListRequest{})
		if err != nil || len(list.Sets) != 3 || list.Sets[0].Health != "ok" || list.Sets[1].Health != "no allocsvr" || list.Sets[2].Health != "unreachable" {
			t.Errorf("%v %v", list, err)
		}
		// Dry: what it would move, and nothing else.
		dry, err := n.SetMove(t.Context(), &seqpb.SetMoveRequest{From: "s1", To: "s2", Ranges: []*seqpb.Range{uids(0, 199)}, DryRun: true})
		if err != nil || dry.Refusal != nil || dry.Move.KeysTotal != 20 || dry.Move.Parts != 2 {
			t.Errorf("%v %v", dry, err)
		}
		// Two operators at once, the second through another Set.
		a.mu.Lock()
		a.keep = true
		a.mu.Unlock()
		w.move("s1", "s2", uids(0, 199))
		second, err := w.of["s2"].leader().SetMove(t.Context(), &seqpb.SetMoveRequest{From: "s1", To: "s2", Ranges: []*seqpb.Range{uids(100, 300)}})
		if err != nil || !strings.Contains(second.GetRefusal().GetMessage(), "move 1, which is under way") {
			t.Errorf("%v %v", second, err)
		}
	})
}

func TestASetTakesTheClusterFromItsDirectoryAndWaitsForIt(t *testing.T) {
	simulateSets(t, map[string]int{"s1": 1, "s2": 1}, nil, func(t *testing.T, w *realm) {
		one, two := metaOf(t, w.of["s1"].leader()), metaOf(t, w.of["s2"].leader())
		if one.Genesis.ClusterID != two.Genesis.ClusterID || len(two.Genesis.Spaces) != len(one.Genesis.Spaces) || len(two.Ranges) != 0 || two.Directory != nil {
			t.Errorf("%+v", two.Genesis)
		}
		eventually(t, time.Minute, "the map", func() bool {
			m := metaOf(t, w.of["s2"].leader())
			return m.Published.Map.Version == metaOf(t, w.of["s1"].leader()).Published.Map.Version && m.Published.Map.Has("s2")
		})
		g := emptyGroup(t, 1, func(c *Config) {
			w.configure("s2", c)
			c.Cluster = "another"
		})
		n := g.start("n1")
		time.Sleep(20 * time.Second)
		if ok, _ := n.Leading(); ok || metaOf(t, n).Genesis.ClusterID != "" {
			t.Error("a set of another cluster founded itself")
		}
		g.stop()
	})
}
