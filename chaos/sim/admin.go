package sim

import (
	"context"
	"time"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
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

func (a adminConn) undrain(ctx context.Context, req *seqpb.DrainRequest) (*seqpb.UndrainReply, error) {
	return call(a.net, ctx, a.from, a.addr, "Undrain", req, func(p *process) func(context.Context, *seqpb.DrainRequest) (*seqpb.UndrainReply, error) {
		if p.services.admin == nil {
			return nil
		}
		return p.services.admin.Undrain
	})
}

// operatorPatience bounds how long an operator's command is repeated.
const operatorPatience = 10 * time.Second

// drain moves everything off a node, as an operator would: at whoever leads,
// again when that fails. It gives up when stop is closed or nobody answers.
func (c *Cluster) drain(node string, stop <-chan struct{}) {
	c.operate(stop, func(ctx context.Context, a adminConn) bool {
		s, err := a.drain(ctx, &seqpb.DrainRequest{Node: node})
		if err != nil {
			return false
		}
		defer func() { _ = s.CloseSend() }()
		for {
			p, err := s.Recv()
			if err != nil || p.Refusal != nil && p.Refusal.Code != seqpb.RefusalCode_REFUSAL_NONE {
				return false
			}
			if p.Done {
				return true
			}
		}
	})
}

func (c *Cluster) undrain(node string) {
	c.operate(nil, func(ctx context.Context, a adminConn) bool {
		rep, err := a.undrain(ctx, &seqpb.DrainRequest{Node: node})
		return err == nil && (rep.Refusal == nil || rep.Refusal.Code == seqpb.RefusalCode_REFUSAL_NONE)
	})
}

func (c *Cluster) operate(stop <-chan struct{}, try func(context.Context, adminConn) bool) {
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
		if l := c.leader(); l != "" && try(ctx, adminConn{c.net, op, rpcAddr(l)}) {
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
