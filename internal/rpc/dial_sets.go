package rpc

import (
	"context"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb/setadmin"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb/sets"
)

// SetsConn calls the Sets service of one StoreSvr.
type SetsConn struct {
	*link
	c sets.Client
}

// DialSets prepares a connection; the first call opens it.
func DialSets(addr string) (*SetsConn, error) {
	l, err := newLink(addr)
	if err != nil {
		return nil, err
	}
	c, err := sets.NewClient(destination, l.opts...)
	if err != nil {
		return nil, err
	}
	return &SetsConn{l, c}, nil
}

func (c *SetsConn) Directory(ctx context.Context, q *seqpb.DirectoryRequest) (*seqpb.DirectoryReply, error) {
	return unary(ctx, c.link, "Directory", func(ctx context.Context, q *seqpb.DirectoryRequest) (*seqpb.DirectoryReply, error) {
		return c.c.Directory(ctx, q)
	}, q)
}

func (c *SetsConn) Command(ctx context.Context, q *seqpb.SetCommandRequest) (*seqpb.SetCommandReply, error) {
	return unary(ctx, c.link, "Command", func(ctx context.Context, q *seqpb.SetCommandRequest) (*seqpb.SetCommandReply, error) {
		return c.c.Command(ctx, q)
	}, q)
}

func (c *SetsConn) Export(ctx context.Context, q *seqpb.ExportRequest) (*seqpb.ExportReply, error) {
	return unary(ctx, c.link, "Export", func(ctx context.Context, q *seqpb.ExportRequest) (*seqpb.ExportReply, error) {
		return c.c.Export(ctx, q)
	}, q)
}

func (c *SetsConn) PartState(ctx context.Context, q *seqpb.PartStateRequest) (*seqpb.PartStateReply, error) {
	return unary(ctx, c.link, "PartState", func(ctx context.Context, q *seqpb.PartStateRequest) (*seqpb.PartStateReply, error) {
		return c.c.PartState(ctx, q)
	}, q)
}

func (c *SetsConn) Verdict(ctx context.Context, q *seqpb.VerdictRequest) (*seqpb.VerdictReply, error) {
	return unary(ctx, c.link, "Verdict", func(ctx context.Context, q *seqpb.VerdictRequest) (*seqpb.VerdictReply, error) {
		return c.c.Verdict(ctx, q)
	}, q)
}

// SetAdminConn calls the SetAdmin service of any node.
type SetAdminConn struct {
	*link
	c setadmin.Client
}

// DialSetAdmin prepares a connection; the first call opens it.
func DialSetAdmin(addr string) (*SetAdminConn, error) {
	l, err := newLink(addr)
	if err != nil {
		return nil, err
	}
	c, err := setadmin.NewClient(destination, l.opts...)
	if err != nil {
		return nil, err
	}
	return &SetAdminConn{l, c}, nil
}

func (c *SetAdminConn) SetList(ctx context.Context, q *seqpb.SetListRequest) (*seqpb.SetListReply, error) {
	return unary(ctx, c.link, "SetList", func(ctx context.Context, q *seqpb.SetListRequest) (*seqpb.SetListReply, error) {
		return c.c.SetList(ctx, q)
	}, q)
}

func (c *SetAdminConn) SetCreate(ctx context.Context, q *seqpb.SetCreateRequest) (*seqpb.SetChangeReply, error) {
	return unary(ctx, c.link, "SetCreate", func(ctx context.Context, q *seqpb.SetCreateRequest) (*seqpb.SetChangeReply, error) {
		return c.c.SetCreate(ctx, q)
	}, q)
}

func (c *SetAdminConn) SetRetire(ctx context.Context, q *seqpb.SetRetireRequest) (*seqpb.SetChangeReply, error) {
	return unary(ctx, c.link, "SetRetire", func(ctx context.Context, q *seqpb.SetRetireRequest) (*seqpb.SetChangeReply, error) {
		return c.c.SetRetire(ctx, q)
	}, q)
}

func (c *SetAdminConn) SetMove(ctx context.Context, q *seqpb.SetMoveRequest) (*seqpb.SetMoveReply, error) {
	return unary(ctx, c.link, "SetMove", func(ctx context.Context, q *seqpb.SetMoveRequest) (*seqpb.SetMoveReply, error) {
		return c.c.SetMove(ctx, q)
	}, q)
}

func (c *SetAdminConn) SetMoves(ctx context.Context, q *seqpb.SetMovesRequest) (*seqpb.SetMovesReply, error) {
	return unary(ctx, c.link, "SetMoves", func(ctx context.Context, q *seqpb.SetMovesRequest) (*seqpb.SetMovesReply, error) {
		return c.c.SetMoves(ctx, q)
	}, q)
}

func (c *SetAdminConn) SetAbort(ctx context.Context, q *seqpb.SetAbortRequest) (*seqpb.SetMoveReply, error) {
	return unary(ctx, c.link, "SetAbort", func(ctx context.Context, q *seqpb.SetAbortRequest) (*seqpb.SetMoveReply, error) {
		return c.c.SetAbort(ctx, q)
	}, q)
}
