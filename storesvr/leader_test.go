package storesvr

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/internal/clock"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

func simulate(t *testing.T, nodes int, tune func(*Config), play func(t *testing.T, g *group)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, nodes, tune)
		// Raft leaves goroutines behind that end with their timers.
		defer time.Sleep(30 * time.Second)
		defer g.stop()
		play(t, g)
	})
}

func TestARegisteredAllocSvrGetsAllSections(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		defer a.crash()
		if a.welcome == nil || a.welcome.TtlMs != 2000 || a.welcome.MarginMs != 200 || a.welcome.HeartbeatMs != 400 ||
			a.welcome.Sections != 16 || len(a.welcome.Spaces) != 2 || a.welcome.Session != 1 || a.welcome.Incarnation != 1 {
			t.Fatalf("welcome %+v, refusal %+v", a.welcome, a.refusal)
		}
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		eventually(t, time.Second, "an acknowledgement", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.acked > 0 })
		r := a.extend(uid(42), 100)
		if r.Floor != 0 || r.Bound != 100 {
			t.Fatalf("%+v", r)
		}
		eventually(t, time.Second, "routes", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.routes != nil })
	})
}

func TestRoutesAreAWholeTableAndThenDeltas(t *testing.T) {
	simulate(t, 1, nil, func(t *testing.T, g *group) {
		p := dialSession(g.leader())
		p.up <- &seqpb.SessionUp{Hello: hello("a1")}
		table := &router.Table{}
		got := func() bool {
			s := table.Set(testSet)
			if s == nil || len(s.Sections) != 16 {
				return false
			}
			for _, sec := range s.Sections {
				if sec.Owner == 0 {
					return false
				}
			}
			return true
		}
		messages := 0
		for m := range p.down {
			if m.Routes == nil {
				continue
			}
			d, err := wire.ParseRoutes(m.Routes)
			if err != nil {
				t.Fatal(err)
			}
			if messages == 0 && len(d.Spaces) == 0 || messages > 0 && d.Sets[0].Since == 0 {
				t.Fatalf("message %d: %+v", messages, d)
			}
			messages++
			if table, err = table.Merge(d); err != nil {
				t.Fatal(err)
			}
			if got() {
				break
			}
		}
		if n := table.Set(testSet).Node(1); n == nil || n.Addr != "a1:7000" {
			t.Fatalf("%+v", n)
		}
		if s := table.Set(testSet).Stores; len(s) != 1 || s[0] != rpcAddr("n1") {
			t.Fatalf("stores %v", s)
		}
		p.cancel()
		<-p.err
	})
}

func TestSectionsOfASilentAllocSvrMoveAfterItsLease(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		b := attach(t, g.leader, hello("a2"))
		defer b.crash()
		eventually(t, 5*time.Second, "balance", func() bool { return a.owned() == 8 && b.owned() == 8 })
		time.Sleep(5 * time.Second) // wait out a new leader's patience
		k := a.anyKey()
		a.extend(k, 100)
		sec := k.Section(16)
		epoch := a.epoch(sec)
		a.mu.Lock()
		a.quiet = true
		a.mu.Unlock()
		took := eventually(t, 10*time.Second, "take-over", func() bool { return b.owned() == 16 })
		if took < testTTL-testTTL/5 || took > testTTL+500*time.Millisecond {
			t.Errorf("taken over after %v, the lease is %v", took, testTTL)
		}
		if e := b.epoch(sec); e != epoch+1 {
			t.Errorf("epoch %d after %d", e, epoch)
		}
		<-a.done
		if a.refusal.GetCode() != seqpb.RefusalCode_REFUSAL_SESSION_EXPIRED {
			t.Errorf("the silent one was told %v", a.refusal)
		}
		// What the dead owner may have issued is a declared hole.
		r := b.extend(k, 10)
		if r.HoleFrom != 1 || r.HoleTo != 100 || r.Floor != 100 {
			t.Errorf("first touch after the loss: %+v", r)
		}
	})
}

func TestUncleanEpochsAreSettled(t *testing.T) {
	simulate(t, 1, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		for i := range uint64(100) {
			a.extend(uid(i*256), 100)
		}
		a.crash()
		n := g.leader()
		eventually(t, 10*time.Second, "settling", func() bool {
			m := metaOf(t, n)
			for _, s := range m.Sections {
				if s.Owner != 0 || len(s.Unclean) > 0 || s.Epoch == 0 {
					return false
				}
			}
			return true
		})
		if err := n.fsm.read(func(st *state.State) {
			for i := range uint64(100) {
				if r, _ := st.Keys.Get(uid(i * 256)); r.Floor != 100 || r.Bound != 100 {
					t.Errorf("key %d: %+v", i*256, r)
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestALeaderChangeCostsNoOwnerItsSections(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		a.extend(uid(7), 100)
		for round := range 5 {
			old := g.leader()
			g.kill(old.cfg.ID)
			<-a.done
			// It comes back late, but within its lease and the new leader's patience.
			time.Sleep(testTTL / 2)
			h := hello("a1")
			h.ResumeSession, h.ResumeIncarnation, h.ClusterId = a.welcome.Session, a.welcome.Incarnation, a.welcome.ClusterId
			a.open(h)
			if !a.welcome.Resumed || a.welcome.Session != 1 || a.welcome.Incarnation != uint32(round+2) {
				t.Fatalf("round %d: welcome %+v refusal %+v", round, a.welcome, a.refusal)
			}
			g.start(old.cfg.ID)
			eventually(t, time.Second, "directive", func() bool { return a.owned() == 16 })
			if e := a.epoch(3); e != 1 {
				t.Fatalf("round %d: epoch %d", round, e)
			}
			if r := a.extend(uid(7), 100); r.Refusal != state.OK || r.HoleTo != 0 {
				t.Fatalf("round %d: %+v", round, r)
			}
			time.Sleep(time.Second)
		}
		a.crash()
	})
}

func TestANewLeaderExpiresWhoNeverComesAfterItsWait(t *testing.T) {
	for _, bug := range []bool{false, true} {
		simulate(t, 3, func(c *Config) { c.Bugs.SkipLeaderWait = bug }, func(t *testing.T, g *group) {
			a := attach(t, g.leader, hello("a1"))
			eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
			old := g.leader()
			g.kill(old.cfg.ID)
			<-a.done
			n := g.leader()
			took := eventually(t, 10*time.Second, "expiry", func() bool { return len(metaOf(t, n).Sessions) == 0 })
			if early := took < testTTL; early != bug {
				t.Errorf("bug %v: the new leader expired the session after %v", bug, took)
			}
			g.start(old.cfg.ID)
		})
	}
}

func TestADeposedLeaderAcknowledgesNothing(t *testing.T) {
	for _, bug := range []bool{false, true} {
		simulate(t, 3, func(c *Config) { c.Bugs.SkipVerifyLeader = bug }, func(t *testing.T, g *group) {
			a := attach(t, g.leader, hello("a1"))
			eventually(t, time.Second, "an acknowledgement", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.acked > 0 })
			n := g.leader()
			a.mu.Lock()
			a.quiet = true
			a.mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			g.setCut(n.cfg.ID, true)
			a.pipe.up <- &seqpb.SessionUp{Heartbeat: &seqpb.Heartbeat{Number: 1000}}
			<-a.done // the cut leader notices and ends the stream
			a.mu.Lock()
			if acked := a.acked == 1000; acked != bug {
				t.Errorf("bug %v: acknowledged %v", bug, a.acked)
			}
			if a.refusal.GetCode() != seqpb.RefusalCode_REFUSAL_NOT_LEADER {
				t.Errorf("told %v", a.refusal)
			}
			a.mu.Unlock()
			g.setCut(n.cfg.ID, false)
		})
	}
}

func TestAProcessThatResumesKeepsItsEpochsAndKillsItsPredecessorsBatches(t *testing.T) {
	simulate(t, 1, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		a.extend(uid(1), 100)
		old := state.Batch{Session: 1, Incarnation: 1, Seq: a.seq + 1, Ops: []state.Op{{Kind: state.OpReturn, Key: uid(1), Epoch: 1, Cur: 57}}}
		a.crash()
		h := hello("a1")
		h.ResumeSession, h.ResumeIncarnation = 1, 1
		a.open(h)
		defer a.crash()
		if !a.welcome.Resumed || a.welcome.Incarnation != 2 {
			t.Fatalf("%+v %+v", a.welcome, a.refusal)
		}
		rep, err := executeBatch(g.leader(), a.welcome.ClusterId, old)
		if err != nil || rep.Refusal != state.RefusedIncarnation {
			t.Fatalf("the dead process's hand-back: %+v %v", rep, err)
		}
	})
}

func TestLostWelcomesDoNotCostTheSession(t *testing.T) {
	simulate(t, 1, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		a.crash()
		h := hello("a1")
		h.ResumeSession, h.ResumeIncarnation = 1, 1
		for range 3 { // each resumes, and its welcome is lost
			p := dialSession(g.leader())
			p.up <- &seqpb.SessionUp{Hello: h}
			<-p.down
			p.cancel()
			<-p.err
		}
		a.acked = 0
		a.open(h)
		if !a.welcome.Resumed || a.welcome.Incarnation != 5 {
			t.Fatalf("%+v %+v", a.welcome, a.refusal)
		}
		eventually(t, time.Second, "an acknowledgement", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.acked > 0 })
		a.crash()
		// Incarnation 5 has acted: whoever only knows 1 has a stale arena.
		b := attach(t, g.leader, h)
		defer b.crash()
		if b.welcome.GetResumed() || b.welcome.GetNotResumed() == "" || b.welcome.Session == 1 {
			t.Fatalf("a stale arena was resumed: %+v %+v", b.welcome, b.refusal)
		}
	})
}

func TestASecondAllocSvrOfTheSameNameIsRefused(t *testing.T) {
	simulate(t, 1, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		defer a.crash()
		b := attach(t, g.leader, hello("a1"))
		<-b.done
		if b.refusal.GetCode() != seqpb.RefusalCode_REFUSAL_NODE_IN_USE {
			t.Fatalf("%v", b.refusal)
		}
	})
}

func TestHellosThatDoNotBelongAreRefused(t *testing.T) {
	simulate(t, 1, nil, func(t *testing.T, g *group) {
		for name, c := range map[string]struct {
			spoil func(*seqpb.Hello)
			code  seqpb.RefusalCode
		}{
			"protocol":   {func(h *seqpb.Hello) { h.Protocol = 9 }, seqpb.RefusalCode_REFUSAL_WRONG_VERSION},
			"cluster":    {func(h *seqpb.Hello) { h.Cluster = "x" }, seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER},
			"cluster id": {func(h *seqpb.Hello) { h.ClusterId = "x" }, seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER},
			"no node":    {func(h *seqpb.Hello) { h.Node = "" }, seqpb.RefusalCode_REFUSAL_INVALID},
			"no address": {func(h *seqpb.Hello) { h.Addr = "" }, seqpb.RefusalCode_REFUSAL_INVALID},
			"huge text":  {func(h *seqpb.Hello) { h.Version = string(make([]byte, 1000)) }, seqpb.RefusalCode_REFUSAL_INVALID},
		} {
			h := hello("a1")
			c.spoil(h)
			a := attach(t, g.leader, h)
			<-a.done
			if a.refusal.GetCode() != c.code || a.refusal.GetMessage() == "" {
				t.Errorf("%s: %v", name, a.refusal)
			}
		}
		p := dialSession(g.leader())
		p.up <- &seqpb.SessionUp{Heartbeat: &seqpb.Heartbeat{Number: 1}}
		if err := <-p.err; err == nil {
			t.Error("a stream without a hello was served")
		}
		p = dialSession(g.leader()) // never says anything
		if err := <-p.err; err == nil {
			t.Error("a silent stream was served")
		}
	})
}

func TestAFollowerNamesTheLeader(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		lead := g.leader()
		time.Sleep(time.Second)
		f := g.follower()
		a := attach(t, func() *Node { return f }, hello("a1"))
		<-a.done
		if a.refusal.GetCode() != seqpb.RefusalCode_REFUSAL_NOT_LEADER || a.refusal.Leader != lead.cfg.RPCAddr {
			t.Fatalf("%v", a.refusal)
		}
		rep, err := f.Execute(t.Context(), &seqpb.ExecuteRequest{})
		if err != nil || rep.Refusal.GetLeader() != lead.cfg.RPCAddr {
			t.Fatalf("%v %v", rep, err)
		}
		read, err := f.Read(t.Context(), &seqpb.ReadRequest{})
		if err != nil || read.Refusal.GetLeader() != lead.cfg.RPCAddr {
			t.Fatalf("%v %v", read, err)
		}
	})
}

func TestLeavingHandsEverythingOnWithoutAHole(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		b := attach(t, g.leader, hello("a2"))
		defer b.crash()
		eventually(t, 5*time.Second, "balance", func() bool { return a.owned() == 8 && b.owned() == 8 })
		k := a.anyKey()
		a.extend(k, 100)
		a.holds[k] = 57
		a.pipe.up <- &seqpb.SessionUp{Leaving: &seqpb.Leaving{Reason: "test"}}
		<-a.done
		if !a.goodbye {
			t.Fatalf("no goodbye: %v", a.refusal)
		}
		if b.owned() != 16 {
			t.Fatalf("%d sections with the other", b.owned())
		}
		if r := b.extend(k, 10); r.Floor != 57 || r.HoleTo != 0 {
			t.Fatalf("%+v", r)
		}
		for id := range metaOf(t, g.leader()).Sessions {
			if id == 1 {
				t.Error("the session is still there")
			}
		}
	})
}

func TestTheLastOneMayLeaveToo(t *testing.T) {
	simulate(t, 1, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		a.extend(uid(5), 100)
		a.holds[uid(5)] = 3
		a.pipe.up <- &seqpb.SessionUp{Leaving: &seqpb.Leaving{}}
		<-a.done
		if !a.goodbye {
			t.Fatalf("no goodbye: %v", a.refusal)
		}
		b := attach(t, g.leader, hello("a1"))
		defer b.crash()
		eventually(t, time.Second, "all sections", func() bool { return b.owned() == 16 })
		if r := b.extend(uid(5), 10); r.Floor != 3 || r.HoleTo != 0 {
			t.Fatalf("%+v", r)
		}
	})
}

func TestReadIsLinearizableAndAcquiresNothing(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		defer a.crash()
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		a.extend(uid(5), 100)
		if _, err := a.execute(state.Op{Kind: state.OpReturn, Key: uid(5), Epoch: 1, Cur: 9}); err != nil {
			t.Fatal(err)
		}
		rep, err := g.leader().Read(t.Context(), &seqpb.ReadRequest{ClusterId: a.welcome.ClusterId, Keys: []*seqpb.KeyRef{{Space: 1, Hi: 5}, {Space: 1, Hi: 6}}})
		if err != nil || rep.Refusal != nil || rep.Value[0] != 9 || rep.Value[1] != 0 {
			t.Fatalf("%v %v", rep, err)
		}
		gaps, err := g.leader().ReadGaps(t.Context(), &seqpb.ReadGapsRequest{Key: &seqpb.KeyRef{Space: 1, Hi: 5}})
		if err != nil || gaps.Refusal != nil || len(gaps.Gaps) != 0 {
			t.Fatalf("%v %v", gaps, err)
		}
		if rep, err := g.leader().Read(t.Context(), &seqpb.ReadRequest{ClusterId: "x"}); err != nil || rep.Refusal.GetCode() != seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER {
			t.Fatalf("%v %v", rep, err)
		}
		if _, err := g.leader().ReadGaps(t.Context(), &seqpb.ReadGapsRequest{}); err == nil {
			t.Fatal("no key, no error")
		}
	})
}

// eagerKeys tells of each lookup.
type eagerKeys struct {
	Backend
	got func()
}

func (e eagerKeys) Get(k ids.Key) (state.Record, bool) {
	e.got()
	return e.Backend.Get(k)
}

// Each lookup may be a read of the disk, and nothing is applied and no lease
// renewed meanwhile.
func TestALongReadLetsOthersHaveTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := emptyGroup(t, 1, nil)
		st := MemoryStorage()
		var got func()
		st.Keys = eagerKeys{st.Keys, func() {
			if got != nil {
				got()
			}
		}}
		g.disks["n1"] = st
		g.startAll()
		defer time.Sleep(30 * time.Second)
		defer g.stop()
		n := g.leader()
		time.Sleep(time.Second)
		q := &seqpb.ReadRequest{ClusterId: metaOf(t, n).Genesis.ClusterID}
		for i := range uint64(4 * readAtOnce) {
			q.Keys = append(q.Keys, &seqpb.KeyRef{Space: 1, Hi: i})
		}
		applied := n.fsm.appliedIndex()
		lookups, waited := 0, 0
		proposed := make(chan error, 1)
		got = func() { // with the state locked for reading
			if lookups++; lookups == 1 {
				go func() {
					_, err := n.propose(context.Background(), state.SetDraining{Node: "a1", Draining: true})
					proposed <- err
				}()
				for n.fsm.mu.TryRLock() { // until somebody waits to apply
					n.fsm.mu.RUnlock()
					runtime.Gosched()
				}
			}
			if n.fsm.applied == applied {
				waited++
			}
		}
		if rep, err := n.Read(t.Context(), q); err != nil || len(rep.Value) != len(q.Keys) {
			t.Fatalf("%v %v", rep, err)
		}
		if err := <-proposed; err != nil {
			t.Fatal(err)
		}
		if waited > readAtOnce {
			t.Errorf("applying waited for %d lookups", waited)
		}
	})
}

func TestBadBatchesAreRefused(t *testing.T) {
	simulate(t, 1, nil, func(t *testing.T, g *group) {
		n := g.leader()
		id := metaOf(t, n).Genesis.ClusterID
		many := state.Batch{Session: 1, Incarnation: 1, Seq: 1, Ops: make([]state.Op, batchOpsMax+1)}
		for i := range many.Ops {
			many.Ops[i] = state.Op{Kind: state.OpExtend, Key: uid(1), Epoch: 1, Step: 1}
		}
		for name, q := range map[string]*seqpb.ExecuteRequest{
			"cluster":     {ClusterId: "x", Batch: state.EncodeCommand(nil, state.Batch{Session: 1, Incarnation: 1, Seq: 1})},
			"garbage":     {ClusterId: id, Batch: []byte("garbage")},
			"empty":       {ClusterId: id},
			"not a batch": {ClusterId: id, Batch: state.EncodeCommand(nil, state.Expire{Session: 1, Incarnation: 1})},
			"too many":    {ClusterId: id, Batch: state.EncodeCommand(nil, many)},
			"too long":    {ClusterId: id, Batch: make([]byte, batchBytesMax+1)},
		} {
			rep, err := n.Execute(t.Context(), q)
			if err != nil || rep.Refusal == nil || rep.Outcome != nil {
				t.Errorf("%s: %v %v", name, rep, err)
			}
		}
	})
}

func TestATimedOutBatchIsOfUnknownOutcome(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		n := g.leader()
		g.setCut(n.cfg.ID, true)
		_, err := executeBatch(n, a.welcome.ClusterId, state.Batch{Session: 1, Incarnation: 1, Seq: 100,
			Ops: []state.Op{{Kind: state.OpExtend, Key: uid(1), Epoch: 1, Step: 10}}})
		if wire.CodeOf(err) != seqpb.Code_CODE_UNKNOWN_RESULT || err == nil {
			t.Fatalf("%v", err)
		}
		g.setCut(n.cfg.ID, false)
		a.crash()
	})
}

// jumpy is a clock that can be set forward, as a suspended machine's is.
type jumpy struct {
	clock.Clock
	ahead atomic.Int64
}

func (j *jumpy) Now() time.Duration { return j.Clock.Now() + time.Duration(j.ahead.Load()) }

func TestALeaderThatWasSuspendedExpiresNobodyForIt(t *testing.T) {
	j := &jumpy{}
	simulate(t, 1, func(c *Config) { j.Clock = c.Clock; c.Clock = j }, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		defer a.crash()
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		time.Sleep(5 * time.Second)
		j.ahead.Store(int64(time.Hour))
		time.Sleep(5 * time.Second)
		if a.refusal != nil || a.owned() != 16 || a.epoch(3) != 1 {
			t.Fatalf("told %v, %d sections, epoch %d", a.refusal, a.owned(), a.epoch(3))
		}
		a.mu.Lock()
		a.quiet = true
		a.mu.Unlock()
		eventually(t, 2*testTTL, "a real silence still ends the lease", func() bool { return len(metaOf(t, g.leader()).Sessions) == 0 })
	})
}
