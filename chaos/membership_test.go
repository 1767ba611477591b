package chaos

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/chaos/check"
	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/internal/cluster"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// The store group grows, and a dead member is replaced, while clients go on; what
// would cost the quorum is refused.
func TestStoresAreAddedReplacedAndRemovedUnderLoad(t *testing.T) {
	f := startFleet(t, fleetOptions{stores: 3, allocs: 2})
	c := clients{targets: f.targets(t, 4), keys: 50, rate: 100, timeout: 10 * time.Second}
	h := f.underLoad(t, c, func(s *stage) {
		s.planned("add-store", "s4", func() { s.addStore() })
		f.wantMembers(t, "s1", "s2", "s3", "s4")

		dead := f.p.Stores[1]
		s.harm(history.Fault{Name: "kill-store", Node: dead.ID}, func() {
			must(t, f.Kill(dead.ID))
			must(t, dead.RemoveData())
			pause(t, time.Second) // so that the leader has missed it
		})
		s.planned("remove-dead", dead.ID, func() { must(t, f.removeStore(dead.ID)) })
		s.planned("add-store", "s5", func() { s.addStore() })
		f.wantMembers(t, "s1", "s3", "s4", "s5")

		leader, err := f.Leader(s.ctx)
		must(t, err)
		s.planned("remove-leader", leader, func() { must(t, f.removeStore(leader)) })
		must(t, f.process(leader).Term(s.ctx))
		left := slices.DeleteFunc([]string{"s1", "s3", "s4", "s5"}, func(id string) bool { return id == leader })
		f.wantMembers(t, left...)

		// Of three, one is down: to take another one away would leave no majority.
		down, keep := left[0], left[1]
		if l, err := f.Leader(s.ctx); err == nil && l == down {
			down, keep = keep, down
		}
		s.harm(history.Fault{Name: "kill-store", Node: down}, func() {
			must(t, f.Kill(down))
			pause(t, time.Second)
			if err := f.removeStore(keep); err == nil || !strings.Contains(err.Error(), "needed") {
				t.Errorf("removing %s while %s is down: %v", keep, down, err)
			}
			must(t, f.Start(s.ctx, down))
		})
		if err := f.removeStore("s9"); err == nil || !strings.Contains(err.Error(), `no store "s9"`) {
			t.Errorf("removing a stranger: %v", err)
		}
	})
	lossless(t, judge(t, h, check.Options{}))
	logLatencies(t, h)
}

// addStore starts an empty store and makes it a member.
func (s *stage) addStore() *cluster.Process {
	t := s.t
	t.Helper()
	p, err := s.f.p.AddStore()
	must(t, err)
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	must(t, s.f.changeStores(func(c *rpc.AdminConn) (*seqpb.StoreChangeReply, error) {
		return c.AddStore(ctx, &seqpb.AddStoreRequest{Id: p.ID, RaftAddr: p.RaftAddr, Addr: p.RPCAddr})
	}))
	must(t, p.WaitReady(ctx))
	return p
}

func (f *fleet) removeStore(id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return f.changeStores(func(c *rpc.AdminConn) (*seqpb.StoreChangeReply, error) {
		return c.RemoveStore(ctx, &seqpb.RemoveStoreRequest{Id: id})
	})
}

// changeStores asks until a leader answers: while there is none, or it is not
// ready yet, nothing is changed.
func (f *fleet) changeStores(ask func(*rpc.AdminConn) (*seqpb.StoreChangeReply, error)) error {
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		var refusal *seqpb.Refusal
		err := f.tryAdmin(func(c *rpc.AdminConn) error {
			rep, err := ask(c)
			refusal = rep.GetRefusal()
			return err
		})
		if err != nil {
			return err
		}
		switch refusal.GetCode() {
		case seqpb.RefusalCode_REFUSAL_NONE:
			return nil
		case seqpb.RefusalCode_REFUSAL_NOT_LEADER, seqpb.RefusalCode_REFUSAL_NOT_READY:
			if time.Since(begin) < readyWithin {
				continue
			}
		}
		return fmt.Errorf("refused: %s", refusal.Message)
	}
}

// wantMembers waits for these to be all the voters, with one leader among them.
func (f *fleet) wantMembers(t *testing.T, want ...string) {
	t.Helper()
	f.until(t, fmt.Sprintf("the members are %v", want), func(set *seqpb.SetStatus) bool {
		var have []string
		leaders := 0
		for _, s := range set.Stores {
			if s.Role == "leader" {
				leaders++
			}
			if s.Voter {
				have = append(have, s.Id)
			}
		}
		slices.Sort(have)
		return leaders == 1 && slices.Equal(have, want)
	})
}
