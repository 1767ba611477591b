package storesvr

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// announceEvery is how often a member with new addresses tries to make them known.
const announceEvery = time.Second

// announce makes this node's addresses known when they differ from those on
// record, as after a restart elsewhere. A leader does so itself when it begins.
func (n *Node) announce() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	t := time.NewTicker(announceEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-n.closing:
			return
		case <-n.failure.c:
			return
		}
		via, changed := n.newAddress()
		if !changed || n.leads() != nil {
			continue
		}
		for _, addr := range via {
			if n.announceTo(ctx, addr) {
				n.log.Info("new addresses announced", zap.String("rpc", n.cfg.RPCAddr), zap.String("raft", n.cfg.RaftAddr))
				break
			}
		}
	}
}

// newAddress answers whom to tell, the leader first, if this node is on record with other addresses.
func (n *Node) newAddress() (via []string, changed bool) {
	leader := n.leaderRPC()
	_ = n.fsm.read(func(st *state.State) {
		on, member := st.Meta.Stores[n.cfg.ID]
		changed = member && (on.RPCAddr != n.cfg.RPCAddr || on.RaftAddr != n.cfg.RaftAddr)
		if leader != "" {
			via = append(via, leader)
		}
		for _, id := range sortedKeys(st.Meta.Stores) {
			if a := st.Meta.Stores[id].RPCAddr; id != n.cfg.ID && a != "" && a != leader {
				via = append(via, a)
			}
		}
	})
	return via, changed
}

// announceTo asks first whether we are still a member: one that was removed must
// not add itself again.
func (n *Node) announceTo(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	done := false
	_ = n.await(ctx, func() error {
		c, err := n.cfg.DialAdmin(addr)
		if err != nil {
			return err
		}
		defer c.Close()
		rep, err := c.Status(ctx, &seqpb.StatusRequest{})
		if err != nil || !listsStore(rep, n.cfg.ID) {
			return err
		}
		r, err := c.AddStore(ctx, &seqpb.AddStoreRequest{Id: n.cfg.ID, RaftAddr: n.cfg.RaftAddr, Addr: n.cfg.RPCAddr})
		done = err == nil && r.Refusal == nil
		return err
	})
	return done
}

func listsStore(rep *seqpb.StatusReply, id string) bool {
	for _, set := range rep.Sets {
		for _, s := range set.Stores {
			if s.Id == id {
				return true
			}
		}
	}
	return false
}
