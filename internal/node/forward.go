package node

import (
	"context"
	"errors"
	"sync"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr/redis"
	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// forward serves the Redis door's keys that other nodes own, through the SDK.
// The SDK is dialled at the first such key: it learns the routes from this node.
type forward struct {
	addr, cluster string
	log           *zap.Logger
	ctx           context.Context
	cancel        context.CancelFunc

	mu     sync.Mutex
	closed bool
	c      *client.Client
}

func newForward(addr, cluster string, log *zap.Logger) *forward {
	f := &forward{addr: addr, cluster: cluster, log: log}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

func (f *forward) client(ctx context.Context) (*client.Client, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, wire.Refusef(seqpb.Code_CODE_UNAVAILABLE, "this node is stopping")
	}
	if f.c != nil {
		return f.c, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.ctx, cancel)()
	c, err := client.Dial(ctx, []string{f.addr}, client.WithCluster(f.cluster), client.WithLogger(f.log))
	if err != nil {
		return nil, coded(err)
	}
	f.c = c
	return c, nil
}

// Alloc implements redis.Forward.
func (f *forward) Alloc(ctx context.Context, space string, calls []redis.Call) {
	c, err := f.client(ctx)
	var results []client.Result
	if err == nil {
		reqs := make([]client.Request, len(calls))
		for i, k := range calls {
			reqs[i] = client.Request{Key: client.In(space, k.Key), N: int64(k.N)}
		}
		results, err = c.AllocMany(ctx, reqs)
	}
	for i := range calls {
		switch {
		case len(results) != len(calls):
			calls[i].Err = coded(err)
		case results[i].Err != nil:
			calls[i].Err = coded(results[i].Err)
		default:
			calls[i].Value = results[i].Last()
		}
	}
}

// Current implements redis.Forward.
func (f *forward) Current(ctx context.Context, space string, calls []redis.Call) {
	c, err := f.client(ctx)
	var readings []client.Reading
	if err == nil {
		keys := make([]client.Key, len(calls))
		for i, k := range calls {
			keys[i] = client.In(space, k.Key)
		}
		readings, err = c.CurrentMany(ctx, keys)
	}
	for i := range calls {
		switch {
		case len(readings) != len(calls):
			calls[i].Err = coded(err)
		case readings[i].Err != nil:
			calls[i].Err = coded(readings[i].Err)
		default:
			calls[i].Value = readings[i].Current
		}
	}
}

func (f *forward) close() {
	f.cancel()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.c != nil {
		_ = f.c.Close()
		f.c = nil
	}
}

// coded gives the SDK's error the form that servers use.
func coded(err error) error {
	var e *client.Error
	if errors.As(err, &e) {
		return &codedError{code: seqpb.Code(e.Kind), err: err}
	}
	return err
}

type codedError struct {
	code seqpb.Code
	err  error
}

func (e *codedError) Error() string       { return e.err.Error() }
func (e *codedError) Unwrap() error       { return e.err }
func (e *codedError) SeqCode() seqpb.Code { return e.code }
