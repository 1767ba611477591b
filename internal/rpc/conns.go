package rpc

import (
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

// conn is out of the books when it is closed.
type conn struct {
	net.Conn
	of *conns
}

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
	k := &conn{c, s}
	s.open[k] = struct{}{}
	return k, nil
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
