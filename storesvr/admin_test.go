package storesvr

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// drain runs a drain to its end.
func drain(t *testing.T, n *Node, node string) []*seqpb.DrainProgress {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := directAdmin{n}.Drain(ctx, &seqpb.DrainRequest{Node: node})
	if err != nil {
		t.Fatal(err)
	}
	var all []*seqpb.DrainProgress
	for {
		p, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestDrainMovesEverythingAndLosesNothing(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		defer a.crash()
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		b := attach(t, g.leader, hello("a2"))
		defer b.crash()
		eventually(t, 5*time.Second, "balance", func() bool { return a.owned() == 8 && b.owned() == 8 })
		k := a.anyKey()
		a.extend(k, 100)
		a.holds[k] = 57
		// Through a follower, as an operator may happen to ask one.
		progress := drain(t, g.follower(), "a1")
		last := progress[len(progress)-1]
		if !last.Done || last.Moved != 8 || last.Remaining != 0 || last.Lost != 0 || last.Refusal != nil {
			t.Fatalf("%+v", last)
		}
		if r := b.extend(k, 10); r.Floor != 57 || r.HoleTo != 0 {
			t.Fatalf("%+v", r)
		}
		time.Sleep(5 * time.Second)
		if a.owned() != 0 {
			t.Fatalf("a drained node has %d sections", a.owned())
		}
		if rep, err := g.leader().Undrain(t.Context(), &seqpb.DrainRequest{Node: "a1"}); err != nil || rep.Refusal != nil {
			t.Fatalf("%v %v", rep, err)
		}
		eventually(t, time.Minute, "balance again", func() bool { return a.owned() == 8 && b.owned() == 8 })
	})
}

func TestARevocationNamesTheNextOwner(t *testing.T) {
	simulate(t, 1, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		defer a.crash()
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		a.mu.Lock()
		a.keep = true // so that the revocation stays
		a.mu.Unlock()
		b := attach(t, g.leader, hello("a2"))
		defer b.crash()
		revoked := func() *seqpb.Directive {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.directive
		}
		eventually(t, 5*time.Second, "revocation", func() bool { return len(revoked().Revoke) > 0 })
		d := revoked()
		if len(d.NextSession) != len(d.Revoke) || len(d.NextEpoch) != len(d.Revoke) || len(d.Next) != 1 {
			t.Fatalf("%+v", d)
		}
		if to := d.Next[0]; to.Session != b.welcome.Session || to.Addr == "" {
			t.Errorf("next owner %+v, want session %d", to, b.welcome.Session)
		}
		for i := range d.Revoke {
			if d.NextSession[i] != b.welcome.Session || d.NextEpoch[i] != 2 {
				t.Errorf("section %d: to session %d at epoch %d, want %d at 2", d.Revoke[i], d.NextSession[i], d.NextEpoch[i], b.welcome.Session)
			}
		}
		b.crash()
		eventually(t, 10*time.Second, "another plan", func() bool {
			d := revoked()
			return len(d.Revoke) == 0 || d.NextSession[0] == 0
		})
	})
}

func TestDrainCountsWhatACrashTakes(t *testing.T) {
	simulate(t, 1, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		b := attach(t, g.leader, hello("a2"))
		defer b.crash()
		eventually(t, 5*time.Second, "balance", func() bool { return a.owned() == 8 && b.owned() == 8 })
		a.mu.Lock()
		a.keep, a.quiet = true, true // it neither hands back nor lives on
		a.mu.Unlock()
		progress := drain(t, g.leader(), "a1")
		last := progress[len(progress)-1]
		if !last.Done || last.Lost != 8 {
			t.Fatalf("%+v", last)
		}
	})
}

func TestDrainIsRefusedWhenItCannotEnd(t *testing.T) {
	simulate(t, 1, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		defer a.crash()
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		for node, says := range map[string]string{"a1": "only allocsvr", "a9": `no allocsvr "a9"`} {
			p := drain(t, g.leader(), node)
			if len(p) != 1 || !strings.Contains(p[0].Refusal.GetMessage(), says) {
				t.Errorf("%s: %v", node, p)
			}
		}
		if rep, err := g.leader().Undrain(t.Context(), &seqpb.DrainRequest{Node: "a9"}); err != nil || rep.Refusal == nil {
			t.Errorf("%v %v", rep, err)
		}
		if a.owned() != 16 {
			t.Error("a refused drain moved something")
		}
	})
}

func TestDrainEndsWithItsContext(t *testing.T) {
	simulate(t, 1, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		defer a.crash()
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		b := attach(t, g.leader, hello("a2"))
		defer b.crash()
		eventually(t, 5*time.Second, "balance", func() bool { return a.owned() == 8 && b.owned() == 8 })
		a.mu.Lock()
		a.keep = true
		a.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		s := newDrainPipe(ctx)
		if err := g.leader().ServeDrain(&seqpb.DrainRequest{Node: "a1"}, s); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%v", err)
		}
	})
}

func TestRebalanceDryRunOnlyTells(t *testing.T) {
	simulate(t, 1, func(c *Config) { c.Placement.Threshold = 100 }, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		defer a.crash()
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		b := attach(t, g.leader, hello("a2"))
		defer b.crash()
		time.Sleep(3 * time.Second)
		if b.owned() != 0 {
			t.Fatal("balanced below the threshold")
		}
		rep, err := g.leader().Rebalance(t.Context(), &seqpb.RebalanceRequest{DryRun: true})
		if err != nil || rep.Moves != 8 || len(rep.Plan) != 8 {
			t.Fatalf("%v %v", rep, err)
		}
		time.Sleep(3 * time.Second)
		if b.owned() != 0 {
			t.Fatal("a dry run moved sections")
		}
		if rep, err = g.leader().Rebalance(t.Context(), &seqpb.RebalanceRequest{}); err != nil || rep.Moves != 8 {
			t.Fatalf("%v %v", rep, err)
		}
		eventually(t, 5*time.Second, "balance", func() bool { return a.owned() == 8 && b.owned() == 8 })
	})
}

func TestStatusIsTheLeadersFromAnyNode(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		defer a.crash()
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		time.Sleep(time.Second)
		for id, n := range g.nodes {
			rep, err := n.Status(t.Context(), &seqpb.StatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			s := rep.Sets[0]
			if len(s.Stores) != 3 || len(s.Allocs) != 1 || s.Sections != 16 || s.Unowned != 0 ||
				!slices.Equal(s.Ranges, []string{"uid:0-4294967296", "conv:0-18446744073709551616"}) {
				t.Fatalf("%s: %+v", id, s)
			}
			al := s.Allocs[0]
			if al.Id != "a1" || al.State != "serving" || al.Sections != 16 || al.LeaseMs <= 0 || al.LeaseMs > 2000 {
				t.Fatalf("%s: %+v", id, al)
			}
			leaders := 0
			for _, st := range s.Stores {
				if st.Role == "leader" {
					leaders++
				}
				if st.Applied == 0 || !st.Voter {
					t.Errorf("%s: %+v", id, st)
				}
			}
			if leaders != 1 {
				t.Errorf("%s sees %d leaders", id, leaders)
			}
		}
		// Without a majority a node still tells what it knows.
		lead := g.leader().cfg.ID
		for id := range g.nodes {
			if id != lead {
				g.setCut(id, true)
			}
		}
		time.Sleep(2 * time.Second)
		rep, err := g.nodes[lead].Status(t.Context(), &seqpb.StatusRequest{})
		if err != nil || len(rep.Sets[0].Allocs) != 1 {
			t.Fatalf("%v %v", rep, err)
		}
		for id := range g.nodes {
			g.setCut(id, false)
		}
	})
}

func TestMembersCannotGoBelowAWorkingMajority(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		lead := g.leader()
		time.Sleep(time.Second)
		if rep, err := lead.RemoveStore(t.Context(), &seqpb.RemoveStoreRequest{Id: "n9"}); err != nil || rep.Refusal == nil {
			t.Fatalf("an unknown one: %v %v", rep, err)
		}
		var others []string
		for id := range g.nodes {
			if id != lead.cfg.ID {
				others = append(others, id)
			}
		}
		g.setCut(others[0], true)
		time.Sleep(time.Second)
		rep, err := lead.RemoveStore(t.Context(), &seqpb.RemoveStoreRequest{Id: others[1]})
		if err != nil || !strings.Contains(rep.Refusal.GetMessage(), "needed") {
			t.Fatalf("the last one that answers: %v %v", rep, err)
		}
		rep, err = lead.RemoveStore(t.Context(), &seqpb.RemoveStoreRequest{Id: others[0]})
		if err != nil || rep.Refusal != nil || len(rep.Members) != 2 {
			t.Fatalf("the dead one: %v %v", rep, err)
		}
		if _, ok := metaOf(t, lead).Stores[others[0]]; ok {
			t.Error("a removed store is still listed")
		}
	})
}

// deafWire gets no answer, and no error either, from a machine that has gone.
type deafWire struct {
	*raft.InmemTransport
	gone *atomic.Value
}

func (w deafWire) AppendEntries(id raft.ServerID, to raft.ServerAddress, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	if w.gone.Load() == id {
		time.Sleep(raftIOTimeout)
		return os.ErrDeadlineExceeded
	}
	return w.InmemTransport.AppendEntries(id, to, q, r)
}

func (w deafWire) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func TestAMemberThatHasJustGoneDoesNotCountForTheMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone atomic.Value
		g := emptyGroup(t, 3, nil)
		g.wrap = func(tr raft.Transport) raft.Transport { return deafWire{tr.(*raft.InmemTransport), &gone} }
		g.startAll()
		defer time.Sleep(30 * time.Second)
		defer g.stop()
		lead := g.leader()
		time.Sleep(time.Second)
		var others []string
		for id := range g.nodes {
			if id != lead.cfg.ID {
				others = append(others, id)
			}
		}
		gone.Store(raft.ServerID(others[0]))
		g.kill(others[0])
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		rep, err := lead.RemoveStore(ctx, &seqpb.RemoveStoreRequest{Id: others[1]})
		if err != nil || !strings.Contains(rep.GetRefusal().GetMessage(), "needed") {
			t.Errorf("the last one that answers: %v %v", rep, err)
		}
		time.Sleep(10 * time.Second)
		if now := g.leader(); now.Ready() != nil {
			t.Error("there is no leader any more")
		}
	})
}

func TestARemovalThatWasCutShortCanBeRepeated(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		lead := g.leader()
		time.Sleep(time.Second)
		id := g.follower().cfg.ID
		if err := lead.raft.RemoveServer(raft.ServerID(id), 0, 0).Error(); err != nil {
			t.Fatal(err)
		}
		// Here the leader is lost; whoever is asked again sees the same.
		rep, err := lead.RemoveStore(t.Context(), &seqpb.RemoveStoreRequest{Id: id})
		if err != nil || rep.Refusal != nil || len(rep.Members) != 2 {
			t.Fatalf("%v %v", rep, err)
		}
		if _, listed := metaOf(t, lead).Stores[id]; listed {
			t.Error("a store that is no member is still listed")
		}
		if rep, err := lead.RemoveStore(t.Context(), &seqpb.RemoveStoreRequest{Id: id}); err != nil || rep.Refusal == nil {
			t.Errorf("once more: %v %v", rep, err)
		}
	})
}

func TestALeaderThatIsRemovedHandsOnFirst(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		lead := g.leader()
		time.Sleep(time.Second)
		rep, err := lead.RemoveStore(t.Context(), &seqpb.RemoveStoreRequest{Id: lead.cfg.ID})
		if err != nil || rep.Refusal != nil || len(rep.Members) != 2 {
			t.Fatalf("%v %v", rep, err)
		}
		next := g.leader()
		if next == lead {
			t.Fatal("the removed one leads")
		}
		time.Sleep(3 * time.Second)
		if err := next.Ready(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAnAddedStoreCatchesUpAndVotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, 3, nil)
		defer time.Sleep(30 * time.Second)
		defer func() { g.n = 4; g.stop() }()
		lead := g.leader()
		w := newWriter(t, lead)
		w.extend(0, 50, 100)
		g.disks["n4"] = MemoryStorage()
		g.tune = func(c *Config) { c.Bootstrap = false }
		n4 := g.start("n4")
		time.Sleep(time.Second)
		if err := n4.Ready(); err == nil || !strings.Contains(err.Error(), "add-store") {
			t.Errorf("ready before it was let in: %v", err)
		}
		q := &seqpb.AddStoreRequest{Id: "n4", RaftAddr: raftAddr("n4"), Addr: rpcAddr("n4")}
		for what, bad := range map[string]*seqpb.AddStoreRequest{
			"no id":        {RaftAddr: q.RaftAddr, Addr: q.Addr},
			"no address":   {Id: "n4"},
			"used address": {Id: "n4", RaftAddr: raftAddr("n1"), Addr: q.Addr},
		} {
			if rep, err := lead.AddStore(t.Context(), bad); err != nil || rep.Refusal == nil {
				t.Errorf("%s: %v %v", what, rep, err)
			}
		}
		rep, err := g.follower().AddStore(t.Context(), q)
		if err != nil || rep.Refusal != nil || len(rep.Members) != 4 {
			t.Fatalf("%v %v", rep, err)
		}
		sameState(t, lead, n4, 50)
		if !lead.isVoter("n4") {
			t.Fatal("it has no vote")
		}
		if s := metaOf(t, lead).Stores["n4"]; s.RPCAddr != rpcAddr("n4") {
			t.Fatalf("%+v", s)
		}
		// With two of the old ones gone, three of four are not there: with one gone they are.
		for id := range g.nodes {
			if id != lead.cfg.ID && id != "n4" {
				g.kill(id)
				break
			}
		}
		w.extend(100, 110, 100)
		sameState(t, lead, n4, 110)
	})
}

func TestAMemberWithANewAddressMakesItKnown(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		lead := g.leader()
		time.Sleep(2 * time.Second)
		id := g.follower().cfg.ID
		g.kill(id)
		g.tune = func(c *Config) { c.RPCAddr = "elsewhere:1" }
		g.start(id)
		eventually(t, 10*time.Second, "the new address", func() bool { return metaOf(t, lead).Stores[id].RPCAddr == "elsewhere:1" })
	})
}
