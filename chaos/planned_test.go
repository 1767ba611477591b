package chaos

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/chaos/check"
	"github.com/seqsvr/seqsvr/internal/cluster"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// Everything that operators do to a running cluster, one after the other under
// load: no number is lost and no call fails.
func TestPlannedOperationsCostNoNumberAndNoCall(t *testing.T) {
	f := startFleet(t, fleetOptions{stores: 3, allocs: 3})
	c := clients{targets: f.targets(t, 8), keys: 100, rate: 100, timeout: 10 * time.Second}
	h := f.underLoad(t, c, func(s *stage) {
		during(1, func(int) {
			// First: what has just moved is not moved again so soon for balance.
			added := s.scaleOut()
			a1 := f.p.Allocs[0].ID
			s.planned("drain", a1, func() { s.drain(a1) })
			s.planned("undrain", a1, func() { must(t, f.Undrain(s.ctx, a1)) })
			s.planned("rebalance", "", s.rebalance)
			pause(t, calm)
			s.rollingRestart()
			s.planned("scale-in", added.ID, func() {
				must(t, added.Term(s.ctx))
				s.until("nothing is left with it", func(set *seqpb.SetStatus) bool { return share(set, added.ID) == 0 && set.Unowned == 0 })
			})
		})
	})
	lossless(t, judge(t, h, check.Options{}))
	logLatencies(t, h)
}

func (s *stage) scaleOut() (added *cluster.Process) {
	s.planned("scale-out", "", func() {
		var err error
		added, err = s.f.p.AddAlloc(s.ctx)
		must(s.t, err)
		s.until("the new node has a share", func(set *seqpb.SetStatus) bool { return share(set, added.ID) >= set.Sections/6 && set.Moving == 0 })
	})
	pause(s.t, calm)
	return added
}

// rollingRestart stops each node in turn with SIGTERM and starts it again.
func (s *stage) rollingRestart() {
	t, f := s.t, s.f
	for _, tier := range [][]*cluster.Process{f.p.Stores, f.p.Allocs} {
		for _, p := range tier {
			if !p.Running() { // scaled in
				continue
			}
			s.planned("restart-"+p.Program, p.ID, func() {
				must(t, p.Term(s.ctx))
				must(t, p.StartReady(s.ctx))
			})
			s.until("every section has an owner", func(set *seqpb.SetStatus) bool { return set.Unowned == 0 })
		}
	}
}

func share(set *seqpb.SetStatus, node string) (sections uint32) {
	for _, a := range set.Allocs {
		if a.Id == node {
			sections += a.Sections
		}
	}
	return sections
}

// until waits for the cluster to be as it should.
func (s *stage) until(what string, is func(*seqpb.SetStatus) bool) { s.f.until(s.t, what, is) }

func (f *fleet) until(t *testing.T, what string, is func(*seqpb.SetStatus) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		rep, err := f.p.Status(ctx)
		if err == nil && is(rep.Sets[0]) {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("waited in vain for: %s; %v, %v", what, rep, err)
		}
		pause(t, 20*time.Millisecond)
	}
}

// drain moves everything off a node, and answers what the cluster says of it.
func (s *stage) drain(node string) *seqpb.DrainProgress { return s.f.drain(s.t, node) }

func (f *fleet) drain(t *testing.T, node string) (last *seqpb.DrainProgress) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	f.admin(t, func(c *rpc.AdminConn) error {
		progress, err := c.Drain(ctx, &seqpb.DrainRequest{Node: node})
		if err != nil {
			return err
		}
		defer progress.Close()
		for {
			if last, err = progress.Recv(); err != nil {
				return err
			}
			if r := last.Refusal; r.GetCode() != seqpb.RefusalCode_REFUSAL_NONE {
				return fmt.Errorf("refused: %s", r.Message)
			}
			if last.Done {
				return nil
			}
		}
	})
	if last.Lost != 0 {
		t.Errorf("drain of %s lost %d sections", node, last.Lost)
	}
	return last
}

func (s *stage) rebalance() {
	t := s.t
	s.f.admin(t, func(c *rpc.AdminConn) error {
		rep, err := c.Rebalance(s.ctx, &seqpb.RebalanceRequest{})
		if err != nil {
			return err
		}
		t.Logf("rebalancing moves %d sections", rep.Moves)
		return nil
	})
	s.until("no section moves", func(set *seqpb.SetStatus) bool { return set.Moving == 0 && set.Unowned == 0 })
}

// admin asks a running store.
func (f *fleet) admin(t *testing.T, ask func(*rpc.AdminConn) error) {
	t.Helper()
	must(t, f.tryAdmin(ask))
}

func (f *fleet) tryAdmin(ask func(*rpc.AdminConn) error) error {
	for _, p := range f.p.Stores {
		if !p.Running() {
			continue
		}
		c, err := rpc.DialAdmin(p.RPCAddr)
		if err != nil {
			return err
		}
		defer c.Close()
		return ask(c)
	}
	return fmt.Errorf("no store runs")
}
