package sim

import (
	"context"
	"errors"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// transport is the SDK's way into the simulated network.
type transport struct {
	net  *Network
	from *process
	bugs Bugs
	// starts: its connections can start calls, as those of lean frames can and others cannot.
	starts bool
}

func (t transport) Dial(addr string) (client.Conn, error) {
	c := clientConn{seqConn{t.net, t.from, addr}, t.bugs}
	if t.starts {
		return &startingConn{clientConn: c}, nil
	}
	return c, nil
}

// clientConn tells the SDK which calls were surely not executed.
type clientConn struct {
	seqConn
	bugs Bugs
}

func (c clientConn) notSent(err error) error {
	if errors.Is(err, ErrRefused) || c.bugs.LostIsNotSent && (errors.Is(err, ErrReset) || errors.Is(err, ErrTimeout)) {
		return &wire.NotSent{Err: err}
	}
	return err
}

func (c clientConn) Alloc(ctx context.Context, req *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
	rep, err := c.seqConn.Alloc(ctx, req)
	return rep, c.notSent(err)
}

func (c clientConn) Current(ctx context.Context, req *seqpb.CurrentRequest) (*seqpb.CurrentReply, error) {
	rep, err := c.seqConn.Current(ctx, req)
	return rep, c.notSent(err)
}

func (c clientConn) Gaps(ctx context.Context, req *seqpb.GapsRequest) (*seqpb.GapsReply, error) {
	rep, err := c.seqConn.Gaps(ctx, req)
	return rep, c.notSent(err)
}

func (c clientConn) GetRoutes(ctx context.Context, req *seqpb.RoutesRequest) (*seqpb.RouteTable, error) {
	rep, err := c.seqConn.GetRoutes(ctx, req)
	return rep, c.notSent(err)
}

func (c clientConn) WatchRoutes(ctx context.Context, req *seqpb.RoutesRequest) (client.RouteStream, error) {
	s, err := c.watch(ctx, req)
	if err != nil {
		return nil, c.notSent(err)
	}
	return s, nil
}

func (c clientConn) WatchKeys(ctx context.Context, req *seqpb.WatchKeysRequest) (client.KeyStream, error) {
	s, err := c.watchKeys(ctx, req)
	if err != nil {
		return nil, c.notSent(err)
	}
	return s, nil
}
