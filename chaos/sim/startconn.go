package sim

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// startingConn starts calls that nobody waits for, as connections of lean frames
// do: once a call has got through, until one does not.
type startingConn struct {
	clientConn
	up atomic.Bool
}

func (c *startingConn) Alloc(ctx context.Context, req *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
	rep, err := c.clientConn.Alloc(ctx, req)
	c.up.Store(err == nil)
	return rep, err
}

func (c *startingConn) Current(ctx context.Context, req *seqpb.CurrentRequest) (*seqpb.CurrentReply, error) {
	rep, err := c.clientConn.Current(ctx, req)
	c.up.Store(err == nil)
	return rep, err
}

func (c *startingConn) StartAlloc(deadline time.Time, req *seqpb.AllocRequest, told func(*seqpb.AllocReply, error)) client.Started {
	return startCall(c, deadline, req, c.Alloc, told)
}

func (c *startingConn) StartCurrent(deadline time.Time, req *seqpb.CurrentRequest, told func(*seqpb.CurrentReply, error)) client.Started {
	return startCall(c, deadline, req, c.Current, told)
}

func startCall[Q, R any](c *startingConn, deadline time.Time, req Q, call func(context.Context, Q) (R, error), told func(R, error)) client.Started {
	if !c.up.Load() {
		return nil
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	s := &startedCall{cancel: cancel}
	flies := c.net.fly(func() {
		defer cancel()
		rep, err := call(ctx, req)
		if s.over.CompareAndSwap(false, true) {
			told(rep, err)
		}
	})
	if !flies {
		cancel()
		return nil
	}
	return s
}

type startedCall struct {
	cancel context.CancelFunc
	over   atomic.Bool
}

func (s *startedCall) Abandon() bool {
	s.cancel()
	return s.over.CompareAndSwap(false, true)
}
