package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	kitex "github.com/cloudwego/kitex/client"
	"github.com/cloudwego/kitex/pkg/discovery"
	"github.com/cloudwego/kitex/pkg/proxy"
	"github.com/cloudwego/kitex/pkg/remote"
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2"
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/grpc"
	"github.com/cloudwego/kitex/pkg/rpcinfo"
	"github.com/cloudwego/kitex/pkg/rpcinfo/remoteinfo"
	kitextransport "github.com/cloudwego/kitex/transport"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

const (
	connectTimeout = time.Second
	// clientKeepalive notices a peer that vanished without a word; Kitex allows no less.
	clientKeepalive        = 10 * time.Second
	clientKeepaliveTimeout = 3 * time.Second
)

// link is one address with one connection, opened by the first call and
// reopened by later ones; all services' clients are built on it.
type link struct {
	addr  string
	pool  remote.LongConnPool
	conns conns
	opts  []kitex.Option

	// base ends with Close, and every stream with it.
	base   context.Context
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

// errLinkClosed is wrapped by calls after Close.
var errLinkClosed = errors.New("the connection was closed by this process")

func newLink(addr string) (*link, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, &Error{Method: "dial", Addr: addr, Code: seqpb.Code_CODE_INVALID_ARGUMENT, NotSent: true, Text: err.Error(), err: err}
	}
	l := &link{addr: addr}
	l.base, l.cancel = context.WithCancel(context.Background())
	l.pool = nphttp2.NewConnPool("seqsvr", 1, grpc.ConnectOptions{
		InitialWindowSize:     streamWindowBytes,
		InitialConnWindowSize: connWindowBytes,
		KeepaliveParams:       grpc.ClientKeepalive{Time: clientKeepalive, Timeout: clientKeepaliveTimeout},
	})
	l.opts = []kitex.Option{
		// By itself Kitex chooses gRPC only for a service with streams.
		kitex.WithTransportProtocol(kitextransport.GRPC),
		kitex.WithProxy(fixedAddr{discovery.NewInstance("tcp", addr, discovery.DefaultWeight, nil)}),
		kitex.WithConnPool(l.pool),
		kitex.WithDialer(&l.conns),
		kitex.WithConnectTimeout(connectTimeout),
		kitex.WithErrorHandler(func(_ context.Context, err error) error { return err }),
	}
	return l, nil
}

// Close ends the streams, waits for the calls to end (their contexts bound
// that) and closes the connection.
func (l *link) Close() error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.calls.Wait()
	if !first {
		return nil
	}
	defer l.conns.close()
	return l.pool.Close()
}

func (l *link) begin(method string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return &Error{Method: method, Addr: l.addr, Code: seqpb.Code_CODE_UNAVAILABLE, NotSent: true, Text: errLinkClosed.Error(), err: errLinkClosed}
	}
	l.calls.Add(1)
	return nil
}

// unary runs one call over the link.
func unary[Q, R any](ctx context.Context, l *link, method string, call func(context.Context, Q) (R, error), req Q) (R, error) {
	var none R
	if err := l.begin(method); err != nil {
		return none, err
	}
	defer l.calls.Done()
	resp, err := call(ctx, req)
	if err != nil {
		return none, classify(method, l.addr, err, ctx.Err())
	}
	return resp, nil
}

// openStream opens a stream whose context ends with ctx, with the link, or by
// the cancel it answers.
func openStream[S any](ctx context.Context, l *link, method string, open func(context.Context) (S, error)) (S, *lifetime, error) {
	var none S
	if err := l.begin(method); err != nil {
		return none, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(l.base, cancel)
	s, err := open(ctx)
	if err != nil {
		defer l.calls.Done()
		unhook()
		err = classify(method, l.addr, err, ctx.Err())
		cancel()
		return none, nil, err
	}
	return s, &lifetime{link: l, method: method, ctx: ctx, cancel: func() { unhook(); cancel() }}, nil
}

// lifetime ends a stream properly.
type lifetime struct {
	*link
	method string
	ctx    context.Context
	cancel context.CancelFunc
	// recving is held by whoever receives: Kitex allows one at a time.
	recving sync.Mutex
}

// resetWhenDone makes the end of the context reach the server. Kitex resets a
// cancelled stream only from within a receive, or seconds later.
func (f *lifetime) resetWhenDone(recv func() error) {
	context.AfterFunc(f.ctx, func() {
		defer f.calls.Done()
		f.recving.Lock()
		defer f.recving.Unlock()
		for recv() == nil {
		}
	})
}

// receive runs one receive and gives its error its form.
func (f *lifetime) receive(recv func() error) error {
	f.recving.Lock()
	defer f.recving.Unlock()
	err := recv()
	if err == nil {
		return nil
	}
	ctxErr := f.ctx.Err()
	f.cancel()
	if errors.Is(err, io.EOF) {
		return err
	}
	return classify(f.method, f.addr, err, ctxErr)
}

// fixedAddr is a Kitex proxy that only says where to connect, instead of a
// resolver with a balancer, their cache and their goroutines.
type fixedAddr struct{ instance discovery.Instance }

func (fixedAddr) Configure(*proxy.Config) error { return nil }

func (f fixedAddr) ResolveProxyInstance(ctx context.Context) error {
	remoteinfo.AsRemoteInfo(rpcinfo.GetRPCInfo(ctx).To()).SetInstance(f.instance)
	return nil
}
