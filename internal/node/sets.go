package node

import (
	"context"

	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// setForwarder is an AllocSvr's SetAdmin service: it passes calls to its Set's
// stores, which pass them on to the directory.
type setForwarder struct {
	*storeConns[*rpc.SetAdminConn]
}

var _ seqpb.SetAdmin = (*setForwarder)(nil)

func newSetForwarder(leader func() string, stores []string) *setForwarder {
	return &setForwarder{newStoreConns(leader, stores, rpc.DialSetAdmin)}
}

func (f *setForwarder) SetList(ctx context.Context, q *seqpb.SetListRequest) (*seqpb.SetListReply, error) {
	return forwardTo(ctx, f.storeConns, true, func(ctx context.Context, c *rpc.SetAdminConn) (*seqpb.SetListReply, error) { return c.SetList(ctx, q) })
}

func (f *setForwarder) SetCreate(ctx context.Context, q *seqpb.SetCreateRequest) (*seqpb.SetChangeReply, error) {
	return forwardTo(ctx, f.storeConns, false, func(ctx context.Context, c *rpc.SetAdminConn) (*seqpb.SetChangeReply, error) {
		return c.SetCreate(ctx, q)
	})
}

func (f *setForwarder) SetRetire(ctx context.Context, q *seqpb.SetRetireRequest) (*seqpb.SetChangeReply, error) {
	return forwardTo(ctx, f.storeConns, false, func(ctx context.Context, c *rpc.SetAdminConn) (*seqpb.SetChangeReply, error) {
		return c.SetRetire(ctx, q)
	})
}

func (f *setForwarder) SetMove(ctx context.Context, q *seqpb.SetMoveRequest) (*seqpb.SetMoveReply, error) {
	return forwardTo(ctx, f.storeConns, false, func(ctx context.Context, c *rpc.SetAdminConn) (*seqpb.SetMoveReply, error) { return c.SetMove(ctx, q) })
}

func (f *setForwarder) SetMoves(ctx context.Context, q *seqpb.SetMovesRequest) (*seqpb.SetMovesReply, error) {
	return forwardTo(ctx, f.storeConns, true, func(ctx context.Context, c *rpc.SetAdminConn) (*seqpb.SetMovesReply, error) {
		return c.SetMoves(ctx, q)
	})
}

func (f *setForwarder) SetAbort(ctx context.Context, q *seqpb.SetAbortRequest) (*seqpb.SetMoveReply, error) {
	return forwardTo(ctx, f.storeConns, false, func(ctx context.Context, c *rpc.SetAdminConn) (*seqpb.SetMoveReply, error) { return c.SetAbort(ctx, q) })
}
