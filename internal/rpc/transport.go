package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloudwego/gopkg/bufiox"
	"github.com/cloudwego/kitex/pkg/endpoint"
	"github.com/cloudwego/kitex/pkg/remote"
	"github.com/cloudwego/kitex/pkg/remote/trans/gonet"
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2"
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/grpc"
	"github.com/cloudwego/kitex/pkg/utils"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/rpc/frame"
)

// transport accepts Go connections, tells gRPC, TTHeader and lean frames apart by
// their first bytes and runs Kitex's handler of that protocol or ours, one
// goroutine a connection. It is Kitex's TransServer, the factory of it, and the
// handler in one.
type transport struct {
	maxConns         int
	handshakeTimeout time.Duration
	log              *zap.Logger

	grpc, tt remote.ServerTransHandler
	// frames is nil if nothing is served on lean frames.
	frames *framesService
	// booted is closed when the accept loop has begun.
	booted chan struct{}
	// stopped is closed when a stop begins, finished when it is over.
	stopped, finished chan struct{}

	mu       sync.Mutex
	stopping bool
	stopCtx  context.Context // of the stop
	ln       net.Listener
	// conns has each open connection and whether it may be closed at any time
	// in a stop: those that wait for a TTHeader request.
	conns map[net.Conn]*connState
	// activating counts connections that have not said yet what they speak.
	serving    sync.WaitGroup
	activating sync.WaitGroup
	count      atomic.Int64
	// drains are the ends of connections of lean frames. One begins in stop, or
	// while its connection is serving.
	drains sync.WaitGroup
}

type connState struct {
	idle   bool
	frames *framesConn // nil for other protocols
}

func newTransport(maxConns int, handshakeTimeout time.Duration, log *zap.Logger) *transport {
	return &transport{
		maxConns: maxConns, handshakeTimeout: handshakeTimeout, log: log,
		booted: make(chan struct{}), stopped: make(chan struct{}), finished: make(chan struct{}), conns: map[net.Conn]*connState{},
	}
}

// NewTransHandler builds both protocols' handlers.
func (t *transport) NewTransHandler(opt *remote.ServerOption) (remote.ServerTransHandler, error) {
	var err error
	if t.grpc, err = nphttp2.NewSvrTransHandlerFactory().NewTransHandler(opt); err != nil {
		return nil, err
	}
	if t.tt, err = gonet.NewSvrTransHandlerFactory().NewTransHandler(opt); err != nil {
		return nil, err
	}
	return (*ttHandler)(t), nil
}

// ttHandler is what Kitex's pipeline sees: the TTHeader handler, since gRPC
// streams do not pass through a pipeline.
type ttHandler transport

func (h *ttHandler) Write(ctx context.Context, c net.Conn, m remote.Message) (context.Context, error) {
	return h.tt.Write(ctx, c, m)
}

func (h *ttHandler) Read(ctx context.Context, c net.Conn, m remote.Message) (context.Context, error) {
	return h.tt.Read(ctx, c, m)
}
func (h *ttHandler) OnRead(ctx context.Context, c net.Conn) error { return h.tt.OnRead(ctx, c) }
func (h *ttHandler) OnInactive(ctx context.Context, c net.Conn)   { h.tt.OnInactive(ctx, c) }
func (h *ttHandler) OnError(ctx context.Context, err error, c net.Conn) {
	h.tt.OnError(ctx, err, c)
}

func (h *ttHandler) OnMessage(ctx context.Context, args, result remote.Message) (context.Context, error) {
	return h.tt.OnMessage(ctx, args, result)
}

func (h *ttHandler) OnActive(ctx context.Context, c net.Conn) (context.Context, error) {
	return h.tt.OnActive(ctx, c)
}
func (h *ttHandler) SetPipeline(p *remote.TransPipeline) { h.tt.SetPipeline(p) }
func (h *ttHandler) SetInvokeHandleFunc(e endpoint.Endpoint) {
	h.tt.(remote.InvokeHandleFuncSetter).SetInvokeHandleFunc(e)
	h.grpc.(remote.InvokeHandleFuncSetter).SetInvokeHandleFunc(e)
}

// NewTransServer is called once, after NewTransHandler.
func (t *transport) NewTransServer(*remote.ServerOption, remote.ServerTransHandler) remote.TransServer {
	return t
}

func (t *transport) CreateListener(a net.Addr) (net.Listener, error) {
	return net.Listen(a.Network(), a.String())
}

func (t *transport) ConnCount() utils.AtomicInt { return utils.AtomicInt(t.count.Load()) }

// BootstrapServer accepts until the listener is closed. It returns only when
// the stop is over: Kitex would end everything at once if it returned before.
func (t *transport) BootstrapServer(ln net.Listener) error {
	t.accept(ln)
	<-t.finished
	return nil
}

func (t *transport) accept(ln net.Listener) {
	t.mu.Lock()
	t.ln = ln
	t.mu.Unlock()
	close(t.booted)
	for {
		c, err := ln.Accept()
		if err != nil {
			t.mu.Lock()
			stopping := t.stopping
			t.mu.Unlock()
			if stopping || errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of file descriptors or the like: it passes, or is seen in the log until it does.
			t.log.Warn("cannot accept an rpc connection", zap.Error(err))
			select {
			case <-time.After(acceptBackoff):
			case <-t.stopped:
				return
			}
			continue
		}
		if !t.admit(c) {
			c.Close()
			continue
		}
		go t.serve(c)
	}
}

const acceptBackoff = 50 * time.Millisecond

func (t *transport) admit(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopping {
		return false
	}
	if len(t.conns) >= t.maxConns {
		t.log.Warn("rpc connection refused: too many are open", zap.Int("connections", len(t.conns)))
		return false
	}
	t.conns[c] = &connState{}
	t.serving.Add(1)
	t.activating.Add(1)
	t.count.Add(1)
	return true
}

func (t *transport) serve(c net.Conn) {
	activated := false
	activate := func() {
		if !activated {
			activated = true
			t.activating.Done()
		}
	}
	defer func() {
		activate()
		c.Close()
		t.mu.Lock()
		delete(t.conns, c)
		t.mu.Unlock()
		t.count.Add(-1)
		t.serving.Done()
	}()
	// A timer and not a deadline, as Kitex's handler sets deadlines of its own.
	slow := time.AfterFunc(t.handshakeTimeout, func() { c.Close() })
	defer slow.Stop()
	head := make([]byte, 8)
	if _, err := io.ReadFull(c, head); err != nil {
		return
	}
	if string(head) == frame.Preface && t.frames != nil {
		t.serveFrames(c, slow, activate)
		return
	}
	pc := &prefixedConn{Conn: c, head: head}
	if bytes.HasPrefix(grpc.ClientPreface, head) {
		t.serveGRPC(pc, slow, activate)
		return
	}
	t.serveTT(c, pc, slow, activate)
}

func (t *transport) serveGRPC(c net.Conn, slow *time.Timer, activate func()) {
	ctx, err := t.grpc.OnActive(context.Background(), c)
	if err != nil {
		return
	}
	slow.Stop()
	activate()
	defer t.grpc.OnInactive(ctx, c)
	_ = t.grpc.OnRead(ctx, c) // until the connection ends
}

func (t *transport) serveFrames(c net.Conn, slow *time.Timer, activate func()) {
	fc := t.frames.conn(c)
	t.mu.Lock()
	t.conns[c].frames = fc
	if t.stopping {
		t.drainLocked(fc)
	}
	t.mu.Unlock()
	slow.Stop()
	activate()
	fc.serve()
}

func (t *transport) drainLocked(fc *framesConn) {
	t.drains.Go(func() { fc.drain(t.stopCtx) })
}

func (t *transport) serveTT(raw net.Conn, c net.Conn, slow *time.Timer, activate func()) {
	bc := &bufferedConn{Conn: c, r: bufiox.NewDefaultReader(c), w: bufiox.NewDefaultWriter(c)}
	defer func() { _ = bc.r.Release(nil) }()
	ctx, err := t.tt.OnActive(context.WithValue(context.Background(), slowKey{}, slow), bc)
	if err != nil {
		return
	}
	defer t.tt.OnInactive(ctx, bc)
	activate()
	for {
		slow.Stop()
		if !t.setIdle(raw, bc.r.Buffered() == 0) {
			return
		}
		if _, err := bc.r.Peek(1); err != nil {
			return
		}
		if !t.setIdle(raw, false) {
			return
		}
		slow.Reset(t.handshakeTimeout)
		if err := t.tt.OnRead(ctx, bc); err != nil {
			t.tt.OnError(ctx, err, bc)
			return
		}
	}
}

// slowKey finds, in a TTHeader call's context, the timer that closes the
// connection of a peer that is slow to send its request.
type slowKey struct{}

// requestRead stops that timer: from here on the time is the handler's.
func requestRead(ctx context.Context) {
	if slow, ok := ctx.Value(slowKey{}).(*time.Timer); ok {
		slow.Stop()
	}
}

// setIdle marks a connection as waiting for a request; false: the server
// stops, and an idle connection must end.
func (t *transport) setIdle(c net.Conn, idle bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.conns[c]; s != nil {
		s.idle = idle
	}
	return !t.stopping || !idle
}

// Shutdown is Kitex's way to stop, reached after stop has done the work.
func (t *transport) Shutdown() error { return nil }

// stop is called once. It ends the server: no new connections, GOAWAY to the open ones, a wait
// for their calls. When ctx ends first, the connections are closed; false then.
func (t *transport) stop(ctx context.Context) bool {
	t.mu.Lock()
	t.stopping, t.stopCtx = true, ctx
	close(t.stopped)
	if t.ln != nil {
		t.ln.Close()
	}
	for c, s := range t.conns {
		if s.idle {
			c.Close()
		}
		if s.frames != nil {
			t.drainLocked(s.frames)
		}
	}
	t.mu.Unlock()
	// A connection in its handshake has a client with a call in hand.
	if waitFor(ctx, &t.activating) {
		// Polls till no handler runs, or until ctx's deadline; then closes all.
		if g, ok := t.grpc.(remote.GracefulShutdown); ok {
			_ = g.GracefulShutdown(ctx)
		}
	}
	clean := waitFor(ctx, &t.serving)
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		clean = false // Kitex has closed the connections itself
	}
	if !clean {
		t.mu.Lock()
		for c, s := range t.conns {
			c.Close()
			if s.frames != nil {
				s.frames.kill()
			}
		}
		t.mu.Unlock()
		t.serving.Wait()
	}
	t.drains.Wait()
	close(t.finished)
	return clean
}

func waitFor(ctx context.Context, wg *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// prefixedConn gives back the bytes that were read to tell the protocol.
type prefixedConn struct {
	net.Conn
	head []byte
}

func (c *prefixedConn) Read(b []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(b, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// bufferedConn is what Kitex's Go-net handler reads and writes.
type bufferedConn struct {
	net.Conn
	r *bufiox.DefaultReader
	w *bufiox.DefaultWriter
}

func (c *bufferedConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// Reader and Writer are Kitex's bufioxReadWriter.
func (c *bufferedConn) Reader() *bufiox.DefaultReader { return c.r }
func (c *bufferedConn) Writer() *bufiox.DefaultWriter { return c.w }
