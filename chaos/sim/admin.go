package sim

import (
	"context"
	"time"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr"
)

// adminConn is an operator's connection to a StoreSvr.
type adminConn struct {
	net  *Network
	from *process
	addr string
}

type drainClient = clientSide[seqpb.DrainRequest, seqpb.DrainProgress, *seqpb.DrainRequest, *seqpb.DrainProgress]
type drainServer = serverSide[seqpb.DrainRequest, seqpb.DrainProgress, *seqpb.DrainRequest, *seqpb.DrainProgress]

func (a adminConn) drain(ctx context.Context, req *seqpb.DrainRequest) (*drainClient, error) {
	s, err := open(a.net, ctx, a.from, a.addr, "Drain", func(p *process) func(*drainServer) error {
		if p.services.admin == nil {
			return nil
		}
		return func(s *drainServer) error {
			req, err := s.Recv()
			if err != nil {
				return err
			}
			return p.services.admin.Drain(req, s)
		}
	})
	if err != nil {
		return nil, err
	}
	return s, s.Send(req)
}

func inAdmin[Q, R any](of func(seqpb.Admin) func(context.Context, Q) (R, error)) func(*process) func(context.Context, Q) (R, error) {
	return func(p *process) func(context.Context, Q) (R, error) {
		if p.services.admin == nil {
			return nil
		}
		return of(p.services.admin)
	}
}

func (a adminConn) Status(ctx context.Context, q *seqpb.StatusRequest) (*seqpb.StatusReply, error) {
	return call(a.net, ctx, a.from, a.addr, "Status", q, inAdmin(func(s seqpb.Admin) func(context.Context, *seqpb.StatusRequest) (*seqpb.StatusReply, error) {
		return s.Status
	}))
}

func (a adminConn) Drain(ctx context.Context, q *seqpb.DrainRequest) (storesvr.DrainStream, error) {
	s, err := a.drain(ctx, q)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (a adminConn) Undrain(ctx context.Context, q *seqpb.DrainRequest) (*seqpb.UndrainReply, error) {
	return call(a.net, ctx, a.from, a.addr, "Undrain", q, inAdmin(func(s seqpb.Admin) func(context.Context, *seqpb.DrainRequest) (*seqpb.UndrainReply, error) {
		return s.Undrain
	}))
}

func (a adminConn) Rebalance(ctx context.Context, q *seqpb.RebalanceRequest) (*seqpb.RebalanceReply, error) {
	return call(a.net, ctx, a.from, a.addr, "Rebalance", q, inAdmin(func(s seqpb.Admin) func(context.Context, *seqpb.RebalanceRequest) (*seqpb.RebalanceReply, error) {
		return s.Rebalance
	}))
}

func (a adminConn) AddStore(ctx context.Context, q *seqpb.AddStoreRequest) (*seqpb.StoreChangeReply, error) {
	return call(a.net, ctx, a.from, a.addr, "AddStore", q, inAdmin(func(s seqpb.Admin) func(context.Context, *seqpb.AddStoreRequest) (*seqpb.StoreChangeReply, error) {
		return s.AddStore
	}))
}

func (a adminConn) RemoveStore(ctx context.Context, q *seqpb.RemoveStoreRequest) (*seqpb.StoreChangeReply, error) {
	return call(a.net, ctx, a.from, a.addr, "RemoveStore", q, inAdmin(func(s seqpb.Admin) func(context.Context, *seqpb.RemoveStoreRequest) (*seqpb.StoreChangeReply, error) {
		return s.RemoveStore
	}))
}

func (a adminConn) Close() error { return nil }

// operatorPatience bounds how long an operator's command is repeated.
const operatorPatience = 10 * time.Second

// drain moves everything off a node, as an operator would: at whoever leads,
// again when that fails. It gives up when stop is closed or nobody answers.
func (c *Cluster) drain(node string, stop <-chan struct{}) {
	c.operateAt(c.setOf(node), stop, func(ctx context.Context, addr string, op *process) bool {
		s, err := adminConn{c.net, op, addr}.drain(ctx, &seqpb.DrainRequest{Node: node})
		if err != nil {
			return false
		}
		defer func() { _ = s.CloseSend() }()
		for {
			p, err := s.Recv()
			if err != nil || refused(p.Refusal) {
				return false
			}
			if p.Done {
				return true
			}
		}
	})
}

func (c *Cluster) undrain(node string) {
	c.operateAt(c.setOf(node), nil, func(ctx context.Context, addr string, op *process) bool {
		rep, err := adminConn{c.net, op, addr}.Undrain(ctx, &seqpb.DrainRequest{Node: node})
		return err == nil && !refused(rep.Refusal)
	})
}

func refused(r *seqpb.Refusal) bool { return r.GetCode() != seqpb.RefusalCode_REFUSAL_NONE }

// operateAt tries something at whoever leads a Set until it succeeds.
func (c *Cluster) operateAt(set *simSet, stop <-chan struct{}, try func(ctx context.Context, addr string, op *process) bool) {
	ctx, cancel := context.WithTimeout(context.Background(), operatorPatience)
	defer cancel()
	op := c.net.start("op")
	go func() {
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	for ctx.Err() == nil {
		if l := c.leaderOf(set); l != "" && try(ctx, rpcAddr(l), op) {
			return
		}
		pause := time.NewTimer(100 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
}
