package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/codes"
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/status"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/rpc/frame"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// InlineSeq is a Seq whose hot calls say when they are about to wait. Those that
// do not are carried out by the goroutine that reads the connection, without a
// switch of goroutines. A call fills rep, which is empty but for memory to use
// again; both messages are the call's until it returns. wait is to be called
// before anything that may take long; it gives the context to wait with, and the
// same one each time.
type InlineSeq interface {
	AllocInline(req *seqpb.AllocRequest, rep *seqpb.AllocReply, wait func() context.Context) error
	CurrentInline(req *seqpb.CurrentRequest, rep *seqpb.CurrentReply, wait func() context.Context) error
}

// framesService is what connections of lean frames need of their server.
type framesService struct {
	seq    InlineSeq
	limits *limits
	// slow bounds how long a peer may take over a frame that it has begun, and over
	// taking replies.
	slow time.Duration
	log  *zap.Logger
}

func newFramesService(s seqpb.Seq, lim *limits, slow time.Duration, log *zap.Logger) *framesService {
	in, ok := s.(InlineSeq)
	if !ok {
		in = waitingSeq{s}
	}
	return &framesService{seq: in, limits: lim, slow: slow, log: log}
}

// waitingSeq is a Seq of which nobody knows when it waits.
type waitingSeq struct{ seqpb.Seq }

func (s waitingSeq) AllocInline(req *seqpb.AllocRequest, rep *seqpb.AllocReply, wait func() context.Context) error {
	r, err := s.Alloc(wait(), req)
	if err == nil {
		first := append(rep.First, r.First...) // the memory of rep stays its own
		*rep = *r
		rep.First = first
	}
	return err
}

func (s waitingSeq) CurrentInline(req *seqpb.CurrentRequest, rep *seqpb.CurrentReply, wait func() context.Context) error {
	r, err := s.Current(wait(), req)
	if err == nil {
		current := append(rep.Current, r.Current...)
		*rep = *r
		rep.Current = current
	}
	return err
}

const (
	// inlineKeysMax is the most keys of a request that is carried out without
	// another one being read meanwhile.
	inlineKeysMax = 512
	// flushBytes of replies are written even if more requests are at hand.
	flushBytes = 64 << 10
	// keptMessageKeys is how many keys' memory a call keeps for the next one.
	keptMessageKeys = 4096
	// lingerAfterEnd is how long a client may take to close after it was told to.
	lingerAfterEnd = time.Second
)

// framesConn is the server's end of one connection. One goroutine at a time
// reads: it carries out what it reads, and when a call is about to wait, has
// another one read on. Replies that gather while requests are at hand are
// written together.
type framesConn struct {
	*framesService
	c      net.Conn
	ctx    context.Context // of the calls that wait; ends with the connection
	cancel context.CancelFunc
	reader frame.Reader
	timed  bool // the reader's: a read deadline is set
	// waiting has room for the calls that wait. While it is full nothing is read.
	waiting chan struct{}
	wg      sync.WaitGroup

	mu sync.Mutex // guards what is below, and writing
	// out is replies that are not written yet.
	out []byte
	// takenBy is the write deadline that is set.
	takenBy time.Time
	failed  bool // a write failed: nothing is written any more
	running int  // calls that have begun and have no reply in out
	// draining: no call begins any more. idle is closed when none is running either.
	draining bool
	idle     chan struct{}
	ended    bool // End is written
	cancels  map[uint64]context.CancelFunc
}

func (s *framesService) conn(c net.Conn) *framesConn {
	fc := &framesConn{
		framesService: s, c: c,
		waiting: make(chan struct{}, maxStreamsPerConn),
		idle:    make(chan struct{}), cancels: make(map[uint64]context.CancelFunc),
	}
	fc.ctx, fc.cancel = context.WithCancel(context.Background())
	fc.reader = frame.Reader{Src: c, Max: s.limits.maxMessage, BeforeRead: fc.beforeRead, Reserve: s.limits.reserve, Release: s.limits.release}
	return fc
}

// serve returns when the connection is over and no call of it runs.
func (c *framesConn) serve() {
	defer c.cancel()
	if _, err := io.WriteString(c.c, frame.Hello); err != nil {
		return
	}
	c.wg.Go(c.read)
	c.wg.Wait()
}

// kill ends the contexts of the calls, and the connection.
func (c *framesConn) kill() {
	c.cancel()
	c.c.Close()
}

// drain ends the connection well: calls that have begun are answered, others are
// told that they never will be. It returns when the client knows, or with ctx.
func (c *framesConn) drain(ctx context.Context) {
	c.mu.Lock()
	if c.draining {
		c.mu.Unlock()
		return
	}
	c.draining = true
	c.idleLocked()
	c.mu.Unlock()
	select {
	case <-c.idle:
	case <-c.ctx.Done(): // the connection is over
		return
	case <-ctx.Done():
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.out = frame.Append(c.out, frame.End, 0)
	c.flushLocked()
	// Until the client has closed its side, or for a while, what it still sends is
	// read: closing on unread bytes would take the answers away from it.
	_ = c.c.SetReadDeadline(time.Now().Add(lingerAfterEnd))
	if w, ok := c.c.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	}
}

func (c *framesConn) idleLocked() {
	if c.draining && c.running == 0 {
		select {
		case <-c.idle:
		default:
			close(c.idle)
		}
	}
}

// beforeRead writes what has gathered, and has a frame that was begun come to its end in time.
func (c *framesConn) beforeRead(inFrame bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushLocked()
	if inFrame == c.timed || c.ended {
		return nil
	}
	c.timed = inFrame
	if inFrame {
		return c.c.SetReadDeadline(time.Now().Add(c.slow))
	}
	return c.c.SetReadDeadline(time.Time{})
}

// flushLocked writes the replies. A peer that does not take them costs its
// connection after a while.
func (c *framesConn) flushLocked() {
	if len(c.out) == 0 {
		return
	}
	if !c.failed {
		if now := time.Now(); c.takenBy.Sub(now) < c.slow/2 {
			c.takenBy = now.Add(c.slow)
			_ = c.c.SetWriteDeadline(c.takenBy)
		}
		if _, err := c.c.Write(c.out); err != nil {
			c.failed = true
			c.c.Close() // the reader ends by it
		}
	}
	if c.out = c.out[:0]; cap(c.out) > 2*flushBytes {
		c.out = nil
	}
}

// read carries out what comes, until the connection ends or a call that it
// carries out is about to wait: then another goroutine has taken over.
func (c *framesConn) read() {
	call := newFramesCall(c)
	defer call.recycle()
	for {
		h, body, err := c.reader.Next()
		var refused *frame.RefusedError
		switch {
		case errors.As(err, &refused) && !refused.Kind.FromServer():
			c.answerStatus(refused.Number, status.New(codes.ResourceExhausted, err.Error()))
			continue
		case err != nil || h.Kind.FromServer():
			c.over()
			return
		}
		switch h.Kind {
		case frame.Ping:
			c.answer(frame.Pong, h.Number)
		case frame.Cancel:
			c.cancelCall(h.Number)
		default:
			if call.run(h, body); call.waits != nil {
				return
			}
		}
	}
}

// over ends the calls that nobody will hear of.
func (c *framesConn) over() {
	c.mu.Lock()
	c.flushLocked()
	c.mu.Unlock()
	c.cancel()
	c.c.Close()
}

// begin counts a call in; false if the server stops: the caller is told.
func (c *framesConn) begin(number uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.draining {
		c.running++
		return true
	}
	if !c.ended { // else all are told together
		c.out = frame.Append(c.out, frame.Unprocessed, number)
	}
	return false
}

func (c *framesConn) answer(k frame.Kind, number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.out = frame.Append(c.out, k, number)
	}
}

func (c *framesConn) answerStatus(number uint64, st *status.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.out = appendStatus(c.out, number, st)
	}
}

func appendStatus(b []byte, number uint64, st *status.Status) []byte {
	at := len(b)
	b = frame.Begin(b, frame.Status, uint32(st.Code()), number)
	b = append(b, st.Message()...)
	frame.Finish(b, at)
	return b
}

func (c *framesConn) cancelCall(number uint64) {
	c.mu.Lock()
	cancel := c.cancels[number]
	c.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// framesCall is one request under way, and its memory, for the next one too.
type framesCall struct {
	conn   *framesConn
	number uint64
	kind   frame.Kind
	leftMS uint32 // that the caller will wait; 0 for no end

	allocReq   seqpb.AllocRequest
	allocRep   seqpb.AllocReply
	currentReq seqpb.CurrentRequest
	currentRep seqpb.CurrentReply

	// waits is the context of a call that waits, and that so has another goroutine
	// read the connection; nil for one that did not have to.
	waits  context.Context
	cancel context.CancelFunc
	wait   func() context.Context // detach, bound once
}

var framesCalls sync.Pool // of *framesCall

func newFramesCall(c *framesConn) *framesCall {
	k, _ := framesCalls.Get().(*framesCall)
	if k == nil {
		k = &framesCall{}
		k.wait = k.detach
	}
	k.conn = c
	return k
}

// recycle gives the call's memory back, unless it is much.
func (k *framesCall) recycle() {
	k.conn, k.waits, k.cancel = nil, nil, nil
	if max(cap(k.allocReq.Uids), cap(k.allocReq.Counts), cap(k.allocRep.First), cap(k.currentReq.Uids), cap(k.currentRep.Current)) <= keptMessageKeys {
		framesCalls.Put(k)
	}
}

// run carries a request out. The body is not used any more when the call waits.
func (k *framesCall) run(h frame.Head, body []byte) {
	c := k.conn
	k.number, k.kind, k.leftMS = h.Number, h.Kind, h.Arg
	if !c.begin(k.number) {
		return
	}
	var err error
	var keys int
	if k.kind == frame.Alloc {
		err = frame.ParseAllocRequest(body, &k.allocReq)
		keys = len(k.allocReq.Uids) + len(k.allocReq.Names)
	} else {
		err = frame.ParseCurrentRequest(body, &k.currentReq)
		keys = len(k.currentReq.Uids) + len(k.currentReq.Names)
	}
	c.reader.Done()
	if err != nil {
		err = status.Errorf(codes.InvalidArgument, "malformed message: %v", err)
	} else {
		if keys > inlineKeysMax {
			k.wait()
		}
		err = k.execute()
	}
	k.finish(err)
}

func (k *framesCall) execute() (err error) {
	defer func() {
		if p := recover(); p != nil {
			k.conn.log.Error("rpc handler panicked", zap.Uint8("kind", uint8(k.kind)), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			err = status.New(codes.Internal, panicText).Err()
		}
	}()
	if k.kind == frame.Alloc {
		k.allocRep = seqpb.AllocReply{First: k.allocRep.First[:0]}
		return k.conn.seq.AllocInline(&k.allocReq, &k.allocRep, k.wait)
	}
	k.currentRep = seqpb.CurrentReply{Current: k.currentRep.Current[:0]}
	return k.conn.seq.CurrentInline(&k.currentReq, &k.currentRep, k.wait)
}

// detach has another goroutine read on, since this one is about to wait.
func (k *framesCall) detach() context.Context {
	if k.waits != nil {
		return k.waits
	}
	c := k.conn
	c.mu.Lock()
	c.flushLocked()
	if k.leftMS > 0 {
		k.waits, k.cancel = context.WithTimeout(c.ctx, time.Duration(k.leftMS)*time.Millisecond)
	} else {
		k.waits, k.cancel = context.WithCancel(c.ctx)
	}
	c.cancels[k.number] = k.cancel
	c.mu.Unlock()
	select {
	case c.waiting <- struct{}{}:
	case <-c.ctx.Done(): // it will not wait long
		k.cancel()
		c.waiting <- struct{}{}
	}
	c.wg.Go(c.read)
	return k.waits
}

// finish puts the reply on its way.
func (k *framesCall) finish(err error) {
	c := k.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	at := len(c.out)
	if err == nil {
		c.out = frame.Begin(c.out, frame.Reply, 0, k.number)
		if k.kind == frame.Alloc {
			c.out, err = frame.AppendAllocReply(c.out, &k.allocRep)
		} else {
			c.out, err = frame.AppendCurrentReply(c.out, &k.currentRep)
		}
		frame.Finish(c.out, at)
	}
	if err != nil {
		c.out = appendStatus(c.out[:at], k.number, encodeStatus(err))
	}
	c.running--
	if k.waits != nil {
		delete(c.cancels, k.number)
		k.cancel()
		<-c.waiting
	}
	if k.waits != nil || len(c.out) > flushBytes {
		c.flushLocked()
	}
	c.idleLocked()
}
