package client

import (
	"context"

	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// kitexTransport is the default: gRPC by Kitex. Its errors follow Conn's rule already.
type kitexTransport struct{}

func (kitexTransport) Dial(addr string) (Conn, error) {
	c, err := rpc.DialSeq(addr)
	if err != nil {
		return nil, err
	}
	return kitexConn{c}, nil
}

type kitexConn struct{ *rpc.SeqConn }

func (c kitexConn) WatchRoutes(ctx context.Context, req *seqpb.RoutesRequest) (RouteStream, error) {
	s, err := c.SeqConn.WatchRoutes(ctx, req)
	if err != nil {
		return nil, err
	}
	return s, nil
}
