package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/cloudwego/kitex/pkg/endpoint"
	"github.com/cloudwego/kitex/pkg/remote"
	_ "github.com/cloudwego/kitex/pkg/remote/codec/protobuf/encoding/gzip" // grpc-go clients ask for it
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2"
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/codes"
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/status"
	"github.com/cloudwego/kitex/pkg/rpcinfo"
	"github.com/cloudwego/kitex/pkg/serviceinfo"
	"github.com/cloudwego/kitex/pkg/streaming"
	kitex "github.com/cloudwego/kitex/server"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb/admin"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb/peer"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb/seq"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb/setadmin"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb/sets"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb/store"
)

// Services are what a server offers; nil ones are unknown to callers.
type Services struct {
	Seq      seqpb.Seq
	Store    seqpb.Store
	Admin    seqpb.Admin
	Peer     seqpb.Peer
	Sets     seqpb.Sets
	SetAdmin seqpb.SetAdmin
}

// Options of a server; the zero value has the defaults.
type Options struct {
	// MaxMessageBytes bounds one received message; 0: DefaultMaxMessageBytes.
	MaxMessageBytes int
	// MaxConns bounds the open connections; one more is closed at once. 0: 10 000.
	MaxConns int
	// HandshakeTimeout is how long a new connection may take to show what it speaks. 0: 10 s.
	HandshakeTimeout time.Duration
	Logger           *zap.Logger
	// noFrames: as a server that does not know lean frames.
	noFrames bool
}

// Server serves until Stop.
type Server struct {
	addr  net.Addr
	trans *transport
	log   *zap.Logger

	exit chan error    // ends Kitex's Run
	ran  chan struct{} // closed when Run has returned

	// streams is cancelled first in a stop: a stream has no end of its own.
	streams     context.Context
	stopStreams context.CancelCauseFunc
	calls       sync.WaitGroup
	callsMu     sync.RWMutex
	callsClosed bool
	once        sync.Once
	stopErr     error
}

// ErrStopping is the cause of the end of a stream's context when the server stops.
var ErrStopping = Errorf(seqpb.Code_CODE_UNAVAILABLE, "this node is stopping")

// Listen opens addr and serves on it.
func Listen(addr string, svc Services, o Options) (*Server, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for rpc: %w", err)
	}
	s, err := Serve(ln, svc, o)
	if err != nil {
		ln.Close()
	}
	return s, err
}

// Serve runs the services on ln, which it owns from now on.
func Serve(ln net.Listener, svc Services, o Options) (*Server, error) {
	if o.MaxMessageBytes == 0 {
		o.MaxMessageBytes = DefaultMaxMessageBytes
	}
	if o.MaxConns == 0 {
		o.MaxConns = 10_000
	}
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = 10 * time.Second
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	s := &Server{
		addr: ln.Addr(), log: o.Logger,
		trans: newTransport(o.MaxConns, o.HandshakeTimeout, o.Logger),
		exit:  make(chan error, 1), ran: make(chan struct{}),
	}
	s.streams, s.stopStreams = context.WithCancelCause(context.Background())
	lim := &limits{maxMessage: o.MaxMessageBytes}
	if svc.Seq != nil && !o.noFrames {
		s.trans.frames = newFramesService(svc.Seq, lim, o.HandshakeTimeout, o.Logger)
	}
	k := kitex.NewServer(
		kitex.WithListener(ln),
		kitex.WithTransHandlerFactory(s.trans),
		kitex.WithTransServerFactory(s.trans),
		kitex.WithCodec(newProtobufOnly(o.MaxMessageBytes)),
		kitex.WithExitSignal(func() <-chan error { return s.exit }),
		kitex.WithExitWaitTime(time.Millisecond),
		kitex.WithMiddleware(s.middleware(lim)),
		kitex.WithGRPCUnknownServiceHandler(s.unregistered(newReflection(svc))),
		kitex.WithGRPCMaxConcurrentStreams(maxStreamsPerConn),
		kitex.WithGRPCInitialWindowSize(streamWindowBytes),
		kitex.WithGRPCInitialConnWindowSize(connWindowBytes),
		kitex.WithGRPCMaxHeaderListSize(maxHeaderBytes),
	)
	if err := svc.register(k); err != nil {
		return nil, err
	}
	var runErr error
	go func() {
		runErr = k.Run()
		close(s.ran)
	}()
	select {
	case <-s.trans.booted:
		return s, nil
	case <-s.ran:
		return nil, fmt.Errorf("start rpc server: %w", runErr)
	}
}

// register offers the services that there are.
func (svc *Services) register(k kitex.Server) error {
	if *svc == (Services{}) {
		return errors.New("rpc server without a service")
	}
	var errs []error
	if svc.Seq != nil {
		errs = append(errs, seq.RegisterService(k, svc.Seq))
	}
	if svc.Store != nil {
		errs = append(errs, store.RegisterService(k, svc.Store))
	}
	if svc.Admin != nil {
		errs = append(errs, admin.RegisterService(k, svc.Admin))
	}
	if svc.Peer != nil {
		errs = append(errs, peer.RegisterService(k, svc.Peer))
	}
	if svc.Sets != nil {
		errs = append(errs, sets.RegisterService(k, svc.Sets))
	}
	if svc.SetAdmin != nil {
		errs = append(errs, setadmin.RegisterService(k, svc.SetAdmin))
	}
	return errors.Join(errs...)
}

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.addr }

// Stop takes no new connections, ends the streams, waits for the calls in
// flight and tells clients to go elsewhere. If ctx ends first, connections are
// closed and handlers' contexts end; Stop then says how it went.
func (s *Server) Stop(ctx context.Context) error {
	s.once.Do(func() { s.stopErr = s.stop(ctx) })
	return s.stopErr
}

func (s *Server) stop(ctx context.Context) error {
	s.stopStreams(ErrStopping)
	clean := s.trans.stop(ctx)
	s.exit <- nil
	<-s.ran
	s.callsMu.Lock()
	s.callsClosed = true
	s.callsMu.Unlock()
	s.calls.Wait()
	if !clean {
		return fmt.Errorf("rpc server stopped with calls in flight: %w", cmp.Or(context.Cause(ctx), context.DeadlineExceeded))
	}
	return nil
}

func (s *Server) beginCall() bool {
	s.callsMu.RLock()
	defer s.callsMu.RUnlock()
	if s.callsClosed {
		return false
	}
	s.calls.Add(1)
	return true
}

// middleware puts the limits around receiving, ends streams when the server
// stops, and gives errors their form.
func (s *Server) middleware(lim *limits) endpoint.Middleware {
	return func(next endpoint.Endpoint) endpoint.Endpoint {
		return func(ctx context.Context, req, resp any) error {
			if !s.beginCall() {
				return encodeStatus(ErrStopping).Err()
			}
			defer s.calls.Done()
			ri := rpcinfo.GetRPCInfo(ctx)
			args, isStream := req.(*streaming.Args)
			if !isStream {
				requestRead(ctx)
			} else {
				conn, err := nphttp2.GetServerConn(args.Stream) //nolint:staticcheck // nothing else gives the status of a stream
				if err != nil {
					return encodeStatus(err).Err()
				}
				answerInKind(ri)
				args.Stream = &limitedStream{Stream: args.Stream, conn: conn, ri: ri, limits: lim}
				switch ri.Invocation().MethodInfo().StreamingMode() {
				case serviceinfo.StreamingUnary, serviceinfo.StreamingNone:
				default:
					c, cancel := context.WithCancelCause(ctx)
					unhook := context.AfterFunc(s.streams, func() { cancel(context.Cause(s.streams)) })
					defer cancel(nil)
					defer unhook()
					ctx = c
				}
			}
			err := next(ctx, req, resp)
			if err == nil {
				return nil
			}
			if isStream && errors.Is(context.Cause(ctx), ErrStopping) {
				err = ErrStopping
			}
			s.logFailure(ri, err)
			st := encodeStatus(err)
			if isStream {
				return st.Err()
			}
			return remote.NewTransErrorWithMsg(remote.InternalError, st.Message())
		}
	}
}

// answerInKind compresses a reply only if the request was: Kitex would
// compress for every client that merely could unpack it.
func answerInKind(ri rpcinfo.RPCInfo) {
	if remote.GetRecvCompressor(ri) == "" {
		if ink, ok := ri.Invocation().(rpcinfo.InvocationSetter); ok {
			ink.SetExtra("send-compressor", "")
		}
	}
}

// unregistered handles what no generated code is for.
func (s *Server) unregistered(r *reflection) func(context.Context, string, streaming.Stream) error {
	lim := &limits{maxMessage: reflectionRequestMax}
	return func(ctx context.Context, method string, stream streaming.Stream) error {
		if method != reflectionMethod {
			return unknownMethod(ctx, method, stream)
		}
		if !s.beginCall() {
			return encodeStatus(ErrStopping).Err()
		}
		defer s.calls.Done()
		conn, err := nphttp2.GetServerConn(stream) //nolint:staticcheck // as above
		if err != nil {
			return encodeStatus(err).Err()
		}
		ri := rpcinfo.GetRPCInfo(ctx)
		answerInKind(ri)
		return r.serve(ctx, s.streams, &limitedStream{Stream: stream, conn: conn, ri: ri, limits: lim})
	}
}

// unknownMethod answers as gRPC wants it; Kitex would answer CANCELLED.
func unknownMethod(_ context.Context, method string, _ streaming.Stream) error {
	return status.Errorf(codes.Unimplemented, "this port does not serve %s: see proto/ for what it does; clients talk to an AllocSvr", method)
}

// logFailure logs what a caller cannot be told: a handler's panic.
func (s *Server) logFailure(ri rpcinfo.RPCInfo, err error) {
	if panicked, v := ri.Stats().Panicked(); panicked {
		s.log.Error("rpc handler panicked", zap.String("method", ri.Invocation().MethodName()), zap.Any("panic", v), zap.Error(err))
	}
}
