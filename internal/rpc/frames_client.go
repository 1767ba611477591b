package rpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/codes"
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/status"

	"github.com/seqsvr/seqsvr/internal/rpc/frame"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

const (
	// replyBytesMax bounds a reply. It is more than a server takes, since the
	// failures of many keys are longer than the keys.
	replyBytesMax = 64 << 20
	// unwrittenBytesMax is how much may wait to be written before calls wait for that.
	unwrittenBytesMax = 4 << 20
	// stuckWrite is how long a peer may take nothing before the connection is given up.
	stuckWrite = clientKeepalive + clientKeepaliveTimeout
	// drainAfterWriteError is how long the last answers are waited for when the
	// server takes no more.
	drainAfterWriteError = time.Second
)

var (
	// errFramesOver: the connection takes no calls any more; this one was not sent.
	errFramesOver = errors.New("the connection is over")
	// errPeerSilent: not even a ping was answered.
	errPeerSilent = errors.New("the peer has fallen silent")
)

// statusError is the server's answer to a call that failed.
type statusError struct{ st *status.Status }

func (e *statusError) Error() string { return e.st.Message() }

// notSentError: the call was surely not executed.
type notSentError struct{ err error }

func (e *notSentError) Error() string { return e.err.Error() }

// framesRequest is a call: the two of its kind are set.
type framesRequest struct {
	kind       frame.Kind
	alloc      *seqpb.AllocRequest
	allocRep   *seqpb.AllocReply
	current    *seqpb.CurrentRequest
	currentRep *seqpb.CurrentReply
}

// framesWaiter is a call that waits for its reply.
type framesWaiter struct {
	*framesRequest
	// done gets the outcome, once, from whoever took the waiter out of waiters.
	done chan error
	// told is called with it instead, if nobody waits.
	told func(error)
}

func (w *framesWaiter) end(err error) {
	if w.told != nil {
		w.told(err)
		return
	}
	w.done <- err
}

var framesWaiters = sync.Pool{New: func() any { return &framesWaiter{done: make(chan error, 1)} }}

// framesClient is the client's end of one connection. Callers write, for each
// other too, and never wait for the peer to take what they write: what the
// kernel has no room for, a goroutine writes. Another one reads.
type framesClient struct {
	c      net.Conn
	raw    syscall.RawConn // nil if c cannot be written without waiting
	usable atomic.Bool     // false: calls need another connection
	wg     *sync.WaitGroup

	mu      sync.Mutex // guards what is below
	over    bool       // no call is taken any more
	silent  bool       // because the peer has fallen silent
	number  uint64     // of the last request
	waiters map[uint64]*framesWaiter
	// out waits to be written; somebody writes if writing.
	out     []byte
	writing bool
	room    chan struct{} // closed when out has been taken; nil if nobody waits

	spare []byte // the writer's: memory for the next out
	// The writer's, of one attempt to write without waiting.
	attempt    []byte
	attempted  int
	attemptErr error
	tryWrite   func(fd uintptr) bool // attemptOn, bound once

	heard atomic.Uint64 // frames read
	alive *time.Timer
	// checked is what heard was at the last check; pinged: an answer to a ping is due.
	checked uint64
	pinged  bool
}

func startFramesClient(c net.Conn, wg *sync.WaitGroup) *framesClient {
	f := &framesClient{c: c, wg: wg, waiters: make(map[uint64]*framesWaiter)}
	f.tryWrite = f.attemptOn
	if sc, ok := c.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			f.raw = raw
		}
	}
	f.usable.Store(true)
	f.mu.Lock() // alive is set before it is used
	f.alive = time.AfterFunc(clientKeepalive, f.check)
	f.mu.Unlock()
	wg.Go(f.read)
	return f
}

// close ends the connection; the calls on it end with an unknown outcome.
func (f *framesClient) close() { f.c.Close() }

// call sends a request and waits for its reply. With errFramesOver or a
// *notSentError it was surely not executed; a *statusError is the server's
// answer; with any other error nobody knows.
func (f *framesClient) call(ctx context.Context, q *framesRequest) error {
	w := framesWaiters.Get().(*framesWaiter)
	w.framesRequest = q
	number, err := f.send(ctx, w)
	if err != nil {
		return err
	}
	select {
	case err = <-w.done:
	case <-ctx.Done():
		if err = f.abandon(number, ctx.Err()); err == nil {
			err = <-w.done // it is being answered
		}
	}
	w.framesRequest = nil
	framesWaiters.Put(w)
	return err
}

func (f *framesClient) send(ctx context.Context, w *framesWaiter) (number uint64, err error) {
	arg, err := leftMillis(ctx)
	if err != nil {
		return 0, &notSentError{err}
	}
	f.mu.Lock()
	for len(f.out) > unwrittenBytesMax && !f.over {
		if err := f.awaitRoomLocked(ctx); err != nil {
			f.mu.Unlock()
			return 0, &notSentError{err}
		}
	}
	if f.over {
		f.mu.Unlock()
		return 0, errFramesOver
	}
	number = f.sendLocked(w, arg)
	f.mu.Unlock()
	return number, nil
}

// start sends a request that nobody waits for: told gets its outcome, from the
// goroutine that reads. false: it would have had to wait, and nothing was sent.
func (f *framesClient) start(deadline time.Time, w *framesWaiter) (number uint64, ok bool) {
	left := time.Until(deadline)
	if left <= 0 {
		return 0, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over || len(f.out) > unwrittenBytesMax {
		return 0, false
	}
	return f.sendLocked(w, millis(left)), true
}

func (f *framesClient) sendLocked(w *framesWaiter, arg uint32) (number uint64) {
	f.number++
	number = f.number
	f.waiters[number] = w
	at := len(f.out)
	f.out = frame.Begin(f.out, w.kind, arg, number)
	if w.kind == frame.Alloc {
		f.out = frame.AppendAllocRequest(f.out, w.alloc)
	} else {
		f.out = frame.AppendCurrentRequest(f.out, w.current)
	}
	frame.Finish(f.out, at)
	f.writeLocked()
	return number
}

// leftMillis is what travels of a context's deadline; 0 if it has none.
func leftMillis(ctx context.Context) (uint32, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	d, ok := ctx.Deadline()
	if !ok {
		return 0, nil
	}
	left := time.Until(d)
	if left <= 0 {
		return 0, context.DeadlineExceeded
	}
	return millis(left), nil
}

func millis(left time.Duration) uint32 {
	return uint32(min(max(left.Milliseconds(), 1), math.MaxUint32))
}

func (f *framesClient) awaitRoomLocked(ctx context.Context) error {
	if f.room == nil {
		f.room = make(chan struct{})
	}
	room := f.room
	f.mu.Unlock()
	defer f.mu.Lock()
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// abandon takes a call back, and has the server know; nil if its answer is here already.
func (f *framesClient) abandon(number uint64, why error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.waiters[number]; !ok {
		return nil
	}
	delete(f.waiters, number)
	// A peer that takes nothing is told nothing either: what waits stays bounded.
	if !f.over && len(f.out) <= unwrittenBytesMax {
		f.out = frame.Append(f.out, frame.Cancel, number)
		f.writeLocked()
	}
	return why
}

// writeLocked has out written: by this goroutine as far as that needs no wait, and
// by the one that writes already, if there is one.
func (f *framesClient) writeLocked() {
	if f.writing {
		return
	}
	f.writing = true
	for len(f.out) > 0 {
		b := f.takeLocked()
		f.mu.Unlock()
		rest, err := f.writeNow(b)
		f.mu.Lock()
		if err != nil {
			f.writeFailedLocked()
			return
		}
		if f.over {
			return
		}
		if len(rest) > 0 {
			f.wg.Go(func() { f.writeRest(b, rest) }) // wg has the reader too, since it is not over
			return
		}
		f.wroteLocked(b)
	}
	f.writing = false
}

// takeLocked takes what is to be written.
func (f *framesClient) takeLocked() []byte {
	b := f.out
	f.out, f.spare = f.spare[:0], nil
	if f.room != nil {
		close(f.room)
		f.room = nil
	}
	return b
}

func (f *framesClient) wroteLocked(b []byte) {
	if cap(b) <= 2*flushBytes {
		f.spare = b
	}
}

// writeRest writes what the kernel had no room for, and what has gathered since.
func (f *framesClient) writeRest(b, rest []byte) {
	for {
		_ = f.c.SetWriteDeadline(time.Now().Add(stuckWrite))
		_, err := f.c.Write(rest)
		f.mu.Lock()
		if err != nil {
			f.writeFailedLocked()
			f.mu.Unlock()
			return
		}
		f.wroteLocked(b)
		if len(f.out) == 0 {
			f.writing = false
			f.mu.Unlock()
			return
		}
		b = f.takeLocked()
		rest = b
		f.mu.Unlock()
	}
}

// writeFailedLocked takes no more calls. What the server may have said before it
// closed is still read.
func (f *framesClient) writeFailedLocked() {
	f.overLocked()
	_ = f.c.SetReadDeadline(time.Now().Add(drainAfterWriteError))
}

func (f *framesClient) overLocked() {
	f.over = true
	f.usable.Store(false)
	if f.room != nil {
		close(f.room)
		f.room = nil
	}
}

// writeNow writes what the kernel takes at once, and returns the rest.
func (f *framesClient) writeNow(b []byte) (rest []byte, err error) {
	if f.raw == nil {
		return b, nil
	}
	f.attempt, f.attempted, f.attemptErr = b, 0, nil
	if err := f.raw.Write(f.tryWrite); err != nil {
		return nil, err
	}
	f.attempt = nil
	return b[f.attempted:], f.attemptErr
}

func (f *framesClient) attemptOn(fd uintptr) bool {
	for f.attempted < len(f.attempt) {
		n, err := syscall.Write(int(fd), f.attempt[f.attempted:])
		switch {
		case n > 0:
			f.attempted += n
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return true
		default:
			f.attemptErr = err
			if err == nil {
				f.attemptErr = errors.New("nothing was written")
			}
			return true
		}
	}
	return true
}

// read hands out the answers, until the connection is over.
func (f *framesClient) read() {
	r := frame.Reader{Src: f.c, Max: replyBytesMax}
	err := f.readFrom(&r)
	f.alive.Stop()
	f.mu.Lock()
	f.overLocked()
	if f.silent {
		err = errPeerSilent
	}
	waiters := f.waiters
	f.waiters = nil
	f.mu.Unlock()
	f.c.Close()
	for _, w := range waiters {
		w.end(err)
	}
}

// readFrom returns why there will be no more answers.
func (f *framesClient) readFrom(r *frame.Reader) error {
	for {
		h, body, err := r.Next()
		if err != nil {
			return fmt.Errorf("connection lost: %w", err)
		}
		f.heard.Store(f.heard.Load() + 1) // this goroutine alone writes it
		switch h.Kind {
		case frame.Reply, frame.Status, frame.Unprocessed:
			f.mu.Lock()
			w := f.waiters[h.Number]
			delete(f.waiters, h.Number)
			if h.Kind == frame.Unprocessed {
				f.overLocked() // the server is stopping; what is under way will be answered
			}
			f.mu.Unlock()
			if w != nil {
				w.end(w.outcome(h, body))
			}
		case frame.Pong:
		case frame.End:
			return &notSentError{errStoppedBefore}
		default:
			return &frame.MalformedError{Reason: fmt.Sprintf("a server sent a frame of kind %#x", h.Kind)}
		}
	}
}

var errStoppedBefore = errors.New("the server stopped before it began with the call")

var errAbandoned = errors.New("nobody waits for the answer any more")

// outcome of a call by the frame that answers it.
func (w *framesWaiter) outcome(h frame.Head, body []byte) error {
	switch h.Kind {
	case frame.Unprocessed:
		return &notSentError{errStoppedBefore}
	case frame.Status:
		if codes.Code(h.Arg) == codes.OK {
			return &frame.MalformedError{Reason: "a failure with status OK"}
		}
		return &statusError{status.New(codes.Code(h.Arg), string(body))}
	}
	var err error
	if w.kind == frame.Alloc {
		err = frame.ParseAllocReply(body, w.allocRep)
	} else {
		err = frame.ParseCurrentReply(body, w.currentRep)
	}
	if err != nil {
		return &frame.MalformedError{Reason: "the reply is not its message: " + err.Error()}
	}
	return nil
}

// check notices a peer that vanished without a word. It runs on the timer.
func (f *framesClient) check() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return
	}
	heard := f.heard.Load()
	switch {
	case heard != f.checked:
		f.checked, f.pinged = heard, false
		f.alive.Reset(clientKeepalive)
	case !f.pinged:
		f.pinged = true
		f.out = frame.Append(f.out, frame.Ping, 0)
		f.writeLocked()
		f.alive.Reset(clientKeepaliveTimeout)
	default:
		f.overLocked()
		f.silent = true
		f.c.Close() // the reader tells the calls
	}
}
