package client

import (
	"context"
	"errors"
	"time"

	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// rpcTransport is the default: lean frames for Alloc and Current, gRPC by Kitex for
// the rest, and for all of it with a server that does not know lean frames.
type rpcTransport struct{}

func (rpcTransport) Dial(addr string) (Conn, error) {
	c, err := rpc.DialSeq(addr)
	if err != nil {
		return nil, err
	}
	return rpcConn{c}, nil
}

type rpcConn struct{ *rpc.SeqConn }

func (c rpcConn) Alloc(ctx context.Context, req *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
	rep, err := c.SeqConn.Alloc(ctx, req)
	return rep, plain(err)
}

func (c rpcConn) Current(ctx context.Context, req *seqpb.CurrentRequest) (*seqpb.CurrentReply, error) {
	rep, err := c.SeqConn.Current(ctx, req)
	return rep, plain(err)
}

func (c rpcConn) StartAlloc(deadline time.Time, req *seqpb.AllocRequest, told func(*seqpb.AllocReply, error)) Started {
	s := c.SeqConn.StartAlloc(deadline, req, func(rep *seqpb.AllocReply, err error) { told(rep, plain(err)) })
	if s == nil {
		return nil // and no interface of a nil
	}
	return s
}

func (c rpcConn) StartCurrent(deadline time.Time, req *seqpb.CurrentRequest, told func(*seqpb.CurrentReply, error)) Started {
	s := c.SeqConn.StartCurrent(deadline, req, func(rep *seqpb.CurrentReply, err error) { told(rep, plain(err)) })
	if s == nil {
		return nil
	}
	return s
}

func (c rpcConn) Gaps(ctx context.Context, req *seqpb.GapsRequest) (*seqpb.GapsReply, error) {
	rep, err := c.SeqConn.Gaps(ctx, req)
	return rep, plain(err)
}

func (c rpcConn) WatchRoutes(ctx context.Context, req *seqpb.RoutesRequest) (RouteStream, error) {
	s, err := c.SeqConn.WatchRoutes(ctx, req)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (c rpcConn) WatchKeys(ctx context.Context, req *seqpb.WatchKeysRequest) (KeyStream, error) {
	s, err := c.SeqConn.WatchKeys(ctx, req)
	if err != nil {
		return nil, plain(err)
	}
	return s, nil
}

// plain drops from an error what Error says again: the method, the address and
// the code. rpc's errors follow Conn's rule already.
func plain(err error) error {
	var e *rpc.Error
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &e):
		return err
	case e.Answered:
		return &wire.Refused{Code: e.Code, Message: e.Text}
	case e.NotSent:
		return &NotSent{Err: errors.New(e.Text)}
	}
	return err
}
