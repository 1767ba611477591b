package handover

import (
	"context"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// PeerConn is a connection to another AllocSvr.
type PeerConn interface {
	// TakeWindow returns when ctx ends, at the latest.
	TakeWindow(ctx context.Context, req *seqpb.TakeWindowRequest) (*seqpb.TakeWindowReply, error)
	Close() error
}

// DialPeer connects to the AllocSvr at addr. It must not block for long.
type DialPeer func(addr string) (PeerConn, error)
