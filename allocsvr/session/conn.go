package session

import (
	"context"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// StoreConn is a connection to one StoreSvr.
type StoreConn interface {
	// Session opens the session's stream; ctx is that of the whole stream.
	Session(ctx context.Context) (SessionStream, error)
	Execute(ctx context.Context, req *seqpb.ExecuteRequest) (*seqpb.ExecuteReply, error)
	Read(ctx context.Context, req *seqpb.ReadRequest) (*seqpb.ReadReply, error)
	ReadGaps(ctx context.Context, req *seqpb.ReadGapsRequest) (*seqpb.ReadGapsReply, error)
	Close() error
}

// SessionStream is the client's end of Store.Session. Send and Recv are each
// called from one goroutine.
type SessionStream interface {
	Send(*seqpb.SessionUp) error
	Recv() (*seqpb.SessionDown, error)
	CloseSend() error
}

// DialStore connects to the StoreSvr at addr. It must not block for long.
type DialStore func(addr string) (StoreConn, error)
