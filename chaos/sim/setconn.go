package sim

import (
	"context"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr"
)

// setsConn is a StoreSvr's connection to one of another Set.
type setsConn struct {
	net  *Network
	from *process
	addr string
}

// inSets is a method of the Sets service at the process that a call reaches.
func inSets[Q, R any](of func(seqpb.Sets) func(context.Context, Q) (R, error)) func(*process) func(context.Context, Q) (R, error) {
	return func(p *process) func(context.Context, Q) (R, error) {
		if p.services.sets == nil {
			return nil
		}
		return of(p.services.sets)
	}
}

func (c setsConn) Directory(ctx context.Context, q *seqpb.DirectoryRequest) (*seqpb.DirectoryReply, error) {
	return call(c.net, ctx, c.from, c.addr, "Directory", q, inSets(func(s seqpb.Sets) func(context.Context, *seqpb.DirectoryRequest) (*seqpb.DirectoryReply, error) {
		return s.Directory
	}))
}

func (c setsConn) Command(ctx context.Context, q *seqpb.SetCommandRequest) (*seqpb.SetCommandReply, error) {
	return call(c.net, ctx, c.from, c.addr, "Command", q, inSets(func(s seqpb.Sets) func(context.Context, *seqpb.SetCommandRequest) (*seqpb.SetCommandReply, error) {
		return s.Command
	}))
}

func (c setsConn) Export(ctx context.Context, q *seqpb.ExportRequest) (*seqpb.ExportReply, error) {
	return call(c.net, ctx, c.from, c.addr, "Export", q, inSets(func(s seqpb.Sets) func(context.Context, *seqpb.ExportRequest) (*seqpb.ExportReply, error) {
		return s.Export
	}))
}

func (c setsConn) PartState(ctx context.Context, q *seqpb.PartStateRequest) (*seqpb.PartStateReply, error) {
	return call(c.net, ctx, c.from, c.addr, "PartState", q, inSets(func(s seqpb.Sets) func(context.Context, *seqpb.PartStateRequest) (*seqpb.PartStateReply, error) {
		return s.PartState
	}))
}

func (c setsConn) Verdict(ctx context.Context, q *seqpb.VerdictRequest) (*seqpb.VerdictReply, error) {
	return call(c.net, ctx, c.from, c.addr, "Verdict", q, inSets(func(s seqpb.Sets) func(context.Context, *seqpb.VerdictRequest) (*seqpb.VerdictReply, error) {
		return s.Verdict
	}))
}

func (c setsConn) Close() error { return nil }

// setAdminConn is an operator's connection to a StoreSvr, for what concerns Sets.
type setAdminConn struct {
	net  *Network
	from *process
	addr string
}

func inSetAdmin[Q, R any](of func(seqpb.SetAdmin) func(context.Context, Q) (R, error)) func(*process) func(context.Context, Q) (R, error) {
	return func(p *process) func(context.Context, Q) (R, error) {
		if p.services.setAdmin == nil {
			return nil
		}
		return of(p.services.setAdmin)
	}
}

func (c setAdminConn) SetList(ctx context.Context, q *seqpb.SetListRequest) (*seqpb.SetListReply, error) {
	return call(c.net, ctx, c.from, c.addr, "SetList", q, inSetAdmin(func(s seqpb.SetAdmin) func(context.Context, *seqpb.SetListRequest) (*seqpb.SetListReply, error) {
		return s.SetList
	}))
}

func (c setAdminConn) SetCreate(ctx context.Context, q *seqpb.SetCreateRequest) (*seqpb.SetChangeReply, error) {
	return call(c.net, ctx, c.from, c.addr, "SetCreate", q, inSetAdmin(func(s seqpb.SetAdmin) func(context.Context, *seqpb.SetCreateRequest) (*seqpb.SetChangeReply, error) {
		return s.SetCreate
	}))
}

func (c setAdminConn) SetRetire(ctx context.Context, q *seqpb.SetRetireRequest) (*seqpb.SetChangeReply, error) {
	return call(c.net, ctx, c.from, c.addr, "SetRetire", q, inSetAdmin(func(s seqpb.SetAdmin) func(context.Context, *seqpb.SetRetireRequest) (*seqpb.SetChangeReply, error) {
		return s.SetRetire
	}))
}

func (c setAdminConn) SetMove(ctx context.Context, q *seqpb.SetMoveRequest) (*seqpb.SetMoveReply, error) {
	return call(c.net, ctx, c.from, c.addr, "SetMove", q, inSetAdmin(func(s seqpb.SetAdmin) func(context.Context, *seqpb.SetMoveRequest) (*seqpb.SetMoveReply, error) {
		return s.SetMove
	}))
}

func (c setAdminConn) SetMoves(ctx context.Context, q *seqpb.SetMovesRequest) (*seqpb.SetMovesReply, error) {
	return call(c.net, ctx, c.from, c.addr, "SetMoves", q, inSetAdmin(func(s seqpb.SetAdmin) func(context.Context, *seqpb.SetMovesRequest) (*seqpb.SetMovesReply, error) {
		return s.SetMoves
	}))
}

func (c setAdminConn) SetAbort(ctx context.Context, q *seqpb.SetAbortRequest) (*seqpb.SetMoveReply, error) {
	return call(c.net, ctx, c.from, c.addr, "SetAbort", q, inSetAdmin(func(s seqpb.SetAdmin) func(context.Context, *seqpb.SetAbortRequest) (*seqpb.SetMoveReply, error) {
		return s.SetAbort
	}))
}

func (c setAdminConn) Close() error { return nil }

var (
	_ storesvr.SetsConn     = setsConn{}
	_ storesvr.SetAdminConn = setAdminConn{}
	_ storesvr.AdminConn    = adminConn{}
)
