package client

import (
	"context"
	"time"

	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// Transport connects to AllocSvrs. The default speaks lean frames and gRPC.
type Transport interface {
	// Dial makes a connection without waiting for it to be up.
	Dial(addr string) (Conn, error)
}

// Conn is one connection, used by many goroutines at once. It comes up, and
// again after a loss, by itself.
//
// What decides whether a call is repeated is its error:
//   - with a method SeqCode() seqpb.Code (NotSent, wire.Refused): the call was
//     not executed, unless the code is CODE_UNKNOWN_RESULT;
//   - without one: it may have been executed. When in doubt, have no code.
type Conn interface {
	Alloc(context.Context, *seqpb.AllocRequest) (*seqpb.AllocReply, error)
	Current(context.Context, *seqpb.CurrentRequest) (*seqpb.CurrentReply, error)
	Gaps(context.Context, *seqpb.GapsRequest) (*seqpb.GapsReply, error)
	GetRoutes(context.Context, *seqpb.RoutesRequest) (*seqpb.RouteTable, error)
	WatchRoutes(context.Context, *seqpb.RoutesRequest) (RouteStream, error)
	WatchKeys(context.Context, *seqpb.WatchKeysRequest) (KeyStream, error)
	// Close is called once no call is in flight.
	Close() error
}

// StartingConn is a Conn that can make a call without a goroutine that waits for
// the answer.
type StartingConn interface {
	Conn
	// StartAlloc sends a request if that needs no waiting; otherwise it sends
	// nothing, and returns nil. told gets the outcome, once and by the rule of
	// Conn's errors, perhaps before StartAlloc returns. It does not wait.
	StartAlloc(deadline time.Time, req *seqpb.AllocRequest, told func(*seqpb.AllocReply, error)) Started
	StartCurrent(deadline time.Time, req *seqpb.CurrentRequest, told func(*seqpb.CurrentReply, error)) Started
}

// Started is a call under way that nobody waits for.
type Started interface {
	// Abandon takes it back. true: told is not called any more, and what becomes
	// of the call is unknown.
	Abandon() bool
}

// RouteStream is a subscription; it ends with its context, with Close, or by the server.
type RouteStream interface {
	Recv() (*seqpb.RouteTable, error)
	Close() error
}

// KeyStream is a subscription to keys; see RouteStream.
type KeyStream interface {
	Recv() (*seqpb.KeyValues, error)
	Close() error
}

// NotSent wraps the error of a call that surely reached no server: the dial
// failed, or the server said that it took nothing.
type NotSent = wire.NotSent
