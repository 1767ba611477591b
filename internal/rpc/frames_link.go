package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/internal/rpc/frame"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// noFramesFor is how long a server that did not answer to lean frames is called
// by gRPC before it is asked again: it may have been replaced by a newer one.
const noFramesFor = 30 * time.Second

// errNoFrames: the server closed the connection when it was asked for lean
// frames, as one does that does not know them. Nothing was sent to it.
var errNoFrames = errors.New("the server does not speak lean frames")

// framesLink is one address with one connection of lean frames, opened by the
// first call and reopened by later ones.
type framesLink struct {
	addr string
	dial func() (net.Conn, error)

	mu      sync.Mutex // guards what is below
	closed  bool
	conn    *framesClient // nil while there is none
	dialing *framesDial   // nil while none is being opened
	// noFrames: until then the server is not asked for lean frames.
	noFrames time.Time
	wg       sync.WaitGroup // the goroutines that dial and those of the connections
}

// framesDial is a connection being opened, for all calls that wait for it.
type framesDial struct {
	done chan struct{} // closed when the others are set
	conn *framesClient
	err  error
}

func newFramesLink(addr string) *framesLink {
	return &framesLink{addr: addr, dial: func() (net.Conn, error) { return net.DialTimeout("tcp", addr, connectTimeout) }}
}

// get is the connection, opened if there is none. After an error nothing was
// sent; errNoFrames says to use gRPC.
func (l *framesLink) get(ctx context.Context) (*framesClient, error) {
	l.mu.Lock()
	if c := l.conn; c != nil && c.usable.Load() {
		l.mu.Unlock()
		return c, nil
	}
	d := l.dialing
	switch {
	case l.closed:
		l.mu.Unlock()
		return nil, errLinkClosed
	case d == nil && time.Now().Before(l.noFrames):
		l.mu.Unlock()
		return nil, errNoFrames
	case d == nil:
		d = &framesDial{done: make(chan struct{})}
		l.dialing = d
		l.wg.Go(func() { l.open(d) })
	}
	l.mu.Unlock()
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *framesLink) open(d *framesDial) {
	defer close(d.done)
	c, err := l.greet()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dialing = nil
	switch {
	case err == nil && l.closed:
		c.Close()
		d.err = errLinkClosed
	case err == nil:
		d.conn = startFramesClient(c, &l.wg)
		l.conn = d.conn
	default:
		if errors.Is(err, errNoFrames) {
			l.noFrames = time.Now().Add(noFramesFor)
		}
		d.err = err
	}
}

// greet dials and agrees on lean frames.
func (l *framesLink) greet() (net.Conn, error) {
	c, err := l.dial()
	if err != nil {
		return nil, err
	}
	if err := greetOn(c); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func greetOn(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(connectTimeout)); err != nil {
		return err
	}
	_, err := io.WriteString(c, frame.Preface)
	var hello [len(frame.Hello)]byte
	if err == nil {
		_, err = io.ReadFull(c, hello[:])
	}
	var ne net.Error
	switch {
	case errors.As(err, &ne) && ne.Timeout():
		return err // it hangs; that says nothing of what it knows
	case err != nil || string(hello[:]) != frame.Hello:
		return errNoFrames
	}
	return c.SetDeadline(time.Time{})
}

// close ends the connection; no call is under way.
func (l *framesLink) close() {
	l.mu.Lock()
	l.closed = true
	if l.conn != nil {
		l.conn.close()
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// call makes one call over lean frames. It returns errNoFrames if gRPC is to be used.
func (l *framesLink) call(ctx context.Context, method string, q *framesRequest) error {
	for {
		c, err := l.get(ctx)
		if errors.Is(err, errNoFrames) {
			return err
		}
		if err != nil {
			return &Error{Method: method, Addr: l.addr, Code: seqpb.Code_CODE_UNAVAILABLE, NotSent: true, Text: err.Error(), err: err}
		}
		err = c.call(ctx, q)
		if errors.Is(err, errFramesOver) {
			continue // and nothing was sent; it is not usable any more
		}
		if err == nil {
			return nil
		}
		return l.errorOf(method, err)
	}
}

// errorOf gives what a connection says of a call its form.
func (l *framesLink) errorOf(method string, err error) error {
	e := &Error{Method: method, Addr: l.addr, Code: seqpb.Code_CODE_UNKNOWN_RESULT, Text: err.Error(), err: err}
	var st *statusError
	var ns *notSentError
	switch {
	case errors.As(err, &st):
		e.Text, e.err = st.st.Message(), st.st.Err()
		e.answer(st.st)
	case errors.As(err, &ns):
		e.NotSent, e.Code, e.err = true, seqpb.Code_CODE_UNAVAILABLE, ns.err
	}
	return e
}

// up is the connection if there is one that takes calls; nil otherwise.
func (l *framesLink) up() *framesClient {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil || !l.conn.usable.Load() {
		return nil
	}
	return l.conn
}
