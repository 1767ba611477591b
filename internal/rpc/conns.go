package rpc

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// conns are the open connections of a link. Kitex closes one that it was told to
// close only when it thinks that no stream is left on it, which for one that was
// cancelled it may never do; so the link closes them itself.
type conns struct {
	mu     sync.Mutex
	open   map[*conn]struct{}
	closed bool
}

// conn is out of the books when it is closed. Of HTTP/2 it writes no more than
// the client's preface before the server has said something, as one that serves
// the connection does at once. One that is stopping does not: it closes it, or
// its kernel resets it unaccepted. Kitex would have requests on their way by then,
// of which nobody could say any more that they were not executed; this way the
// connection counts as never opened.
type conn struct {
	net.Conn
	of *conns
	// begun: the preface is written. Kitex writes from one goroutine at a time.
	begun bool
	// heard is closed after the first read; ended is its error.
	first sync.Once
	heard chan struct{}
	ended error
	// patience is how long to wait for that.
	patience time.Duration
}

var errNotServed = errors.New("the server did not serve the connection")

// DialTimeout opens a plain Go connection.
func (s *conns) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	c, err := net.DialTimeout(network, address, timeout)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return nil, errLinkClosed
	}
	if s.open == nil {
		s.open = make(map[*conn]struct{})
	}
	k := &conn{Conn: c, of: s, heard: make(chan struct{}), patience: timeout}
	s.open[k] = struct{}{}
	return k, nil
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.first.Do(func() {
		c.ended = err
		close(c.heard)
	})
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	if !c.begun {
		c.begun = true
		return c.Conn.Write(b)
	}
	if err := c.served(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// served waits for the server's first bytes.
func (c *conn) served() error {
	select {
	case <-c.heard:
	default:
		t := time.NewTimer(c.patience)
		defer t.Stop()
		select {
		case <-c.heard:
		case <-t.C:
			return fmt.Errorf("%w: it said nothing for %v", errNotServed, c.patience)
		}
	}
	if c.ended != nil {
		return fmt.Errorf("%w: %w", errNotServed, c.ended)
	}
	return nil
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// close closes those that are open; no more can be opened.
func (s *conns) close() {
	s.mu.Lock()
	open := s.open
	s.open, s.closed = nil, true
	s.mu.Unlock()
	for c := range open {
		_ = c.Conn.Close()
	}
}
