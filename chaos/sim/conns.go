package sim

import (
	"context"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// services is what a process answers to.
type services struct {
	seq   seqpb.Seq
	store seqpb.Store
	admin seqpb.Admin
	peer  seqpb.Peer
	raft  *raftTransport
	// sets and setAdmin are served by StoreSvrs.
	sets     seqpb.Sets
	setAdmin seqpb.SetAdmin
}

// storeConn is a process's connection to a StoreSvr.
type storeConn struct {
	net  *Network
	from *process
	addr string
}

type sessionClient = clientSide[seqpb.SessionUp, seqpb.SessionDown, *seqpb.SessionUp, *seqpb.SessionDown]
type sessionServer = serverSide[seqpb.SessionUp, seqpb.SessionDown, *seqpb.SessionUp, *seqpb.SessionDown]

func (c storeConn) session(ctx context.Context) (*sessionClient, error) {
	return open(c.net, ctx, c.from, c.addr, "Session", func(p *process) func(*sessionServer) error {
		if p.services.store == nil {
			return nil
		}
		return func(s *sessionServer) error { return p.services.store.Session(s) }
	})
}

func (c storeConn) Execute(ctx context.Context, req *seqpb.ExecuteRequest) (*seqpb.ExecuteReply, error) {
	return call(c.net, ctx, c.from, c.addr, "Execute", req, func(p *process) func(context.Context, *seqpb.ExecuteRequest) (*seqpb.ExecuteReply, error) {
		if p.services.store == nil {
			return nil
		}
		return p.services.store.Execute
	})
}

func (c storeConn) Read(ctx context.Context, req *seqpb.ReadRequest) (*seqpb.ReadReply, error) {
	return call(c.net, ctx, c.from, c.addr, "Read", req, func(p *process) func(context.Context, *seqpb.ReadRequest) (*seqpb.ReadReply, error) {
		if p.services.store == nil {
			return nil
		}
		return p.services.store.Read
	})
}

func (c storeConn) ReadGaps(ctx context.Context, req *seqpb.ReadGapsRequest) (*seqpb.ReadGapsReply, error) {
	return call(c.net, ctx, c.from, c.addr, "ReadGaps", req, func(p *process) func(context.Context, *seqpb.ReadGapsRequest) (*seqpb.ReadGapsReply, error) {
		if p.services.store == nil {
			return nil
		}
		return p.services.store.ReadGaps
	})
}

func (c storeConn) Close() error { return nil }

// seqConn is a client's connection to an AllocSvr.
type seqConn struct {
	net  *Network
	from *process
	addr string
}

func (c seqConn) Alloc(ctx context.Context, req *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
	return call(c.net, ctx, c.from, c.addr, "Alloc", req, func(p *process) func(context.Context, *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
		if p.services.seq == nil {
			return nil
		}
		return p.services.seq.Alloc
	})
}

func (c seqConn) Current(ctx context.Context, req *seqpb.CurrentRequest) (*seqpb.CurrentReply, error) {
	return call(c.net, ctx, c.from, c.addr, "Current", req, func(p *process) func(context.Context, *seqpb.CurrentRequest) (*seqpb.CurrentReply, error) {
		if p.services.seq == nil {
			return nil
		}
		return p.services.seq.Current
	})
}

func (c seqConn) Gaps(ctx context.Context, req *seqpb.GapsRequest) (*seqpb.GapsReply, error) {
	return call(c.net, ctx, c.from, c.addr, "Gaps", req, func(p *process) func(context.Context, *seqpb.GapsRequest) (*seqpb.GapsReply, error) {
		if p.services.seq == nil {
			return nil
		}
		return p.services.seq.Gaps
	})
}

func (c seqConn) GetRoutes(ctx context.Context, req *seqpb.RoutesRequest) (*seqpb.RouteTable, error) {
	return call(c.net, ctx, c.from, c.addr, "GetRoutes", req, func(p *process) func(context.Context, *seqpb.RoutesRequest) (*seqpb.RouteTable, error) {
		if p.services.seq == nil {
			return nil
		}
		return p.services.seq.GetRoutes
	})
}

type watchClient = clientSide[seqpb.RoutesRequest, seqpb.RouteTable, *seqpb.RoutesRequest, *seqpb.RouteTable]
type watchServer = serverSide[seqpb.RoutesRequest, seqpb.RouteTable, *seqpb.RoutesRequest, *seqpb.RouteTable]

func (c seqConn) watch(ctx context.Context, req *seqpb.RoutesRequest) (*watchClient, error) {
	s, err := open(c.net, ctx, c.from, c.addr, "WatchRoutes", func(p *process) func(*watchServer) error {
		if p.services.seq == nil {
			return nil
		}
		return func(s *watchServer) error {
			req, err := s.Recv()
			if err != nil {
				return err
			}
			return p.services.seq.WatchRoutes(req, s)
		}
	})
	if err != nil {
		return nil, err
	}
	return s, s.Send(req)
}

type (
	keysClient = clientSide[seqpb.WatchKeysRequest, seqpb.KeyValues, *seqpb.WatchKeysRequest, *seqpb.KeyValues]
	keysServer = serverSide[seqpb.WatchKeysRequest, seqpb.KeyValues, *seqpb.WatchKeysRequest, *seqpb.KeyValues]
)

func (c seqConn) watchKeys(ctx context.Context, req *seqpb.WatchKeysRequest) (*keysClient, error) {
	s, err := open(c.net, ctx, c.from, c.addr, "WatchKeys", func(p *process) func(*keysServer) error {
		if p.services.seq == nil {
			return nil
		}
		return func(s *keysServer) error {
			req, err := s.Recv()
			if err != nil {
				return err
			}
			return p.services.seq.WatchKeys(req, s)
		}
	})
	if err != nil {
		return nil, err
	}
	return s, s.Send(req)
}

func (c seqConn) Close() error { return nil }

// peerConn is an AllocSvr's connection to another one.
type peerConn struct {
	net  *Network
	from *process
	addr string
}

func (c peerConn) TakeWindow(ctx context.Context, req *seqpb.TakeWindowRequest) (*seqpb.TakeWindowReply, error) {
	return call(c.net, ctx, c.from, c.addr, "TakeWindow", req, func(p *process) func(context.Context, *seqpb.TakeWindowRequest) (*seqpb.TakeWindowReply, error) {
		if p.services.peer == nil {
			return nil
		}
		return p.services.peer.TakeWindow
	})
}

func (c peerConn) Close() error { return nil }
