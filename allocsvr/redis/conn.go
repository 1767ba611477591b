package redis

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/tidwall/redcon"
)

// What a connection does. A stop ends one that is idle at once; another ends
// itself when it would become idle.
const (
	busy int32 = iota
	idle       // it waits for a command
	ended
)

// conn is one client.
type conn struct {
	net.Conn
	s      *Server
	state  atomic.Int32
	r      *reader
	w      *redcon.Writer
	authed bool
	resp   int // 2 or 3
	space  int // index among the spaces
	name   string
	run    run

	// inCommand: part of a command has arrived; readBy: it has a deadline.
	inCommand, readBy bool
	// writeBy is the deadline of writes. It is moved on only now and then.
	writeBy time.Time
}

func newConn(nc net.Conn, s *Server) *conn {
	c := &conn{Conn: nc, s: s, w: redcon.NewWriter(nc), authed: s.cfg.Password == "", resp: 2}
	c.r = newReader(c)
	return c
}

// Read is the connection's for the reader. A client may be silent for as long as
// it likes, but not in the middle of a command.
func (c *conn) Read(b []byte) (int, error) {
	if c.inCommand && !c.readBy {
		c.readBy = true
		_ = c.SetReadDeadline(time.Now().Add(c.s.cfg.MaxWait))
	}
	return c.Conn.Read(b)
}

func (c *conn) serve() {
	defer func() {
		c.Close()
		c.s.mu.Lock()
		delete(c.s.conns, c)
		c.s.mu.Unlock()
	}()
	for {
		if !c.r.buffered() && !c.await() {
			return
		}
		args, err := c.r.command()
		if err != nil {
			c.settle()
			var pe *protocolError
			if errors.As(err, &pe) {
				c.w.WriteError("ERR " + pe.Error())
			}
			_ = c.flush()
			return
		}
		if c.readBy {
			c.readBy = false
			_ = c.SetReadDeadline(time.Time{})
		}
		if len(args) > 0 && !c.do(args) {
			_ = c.flush()
			return
		}
		if len(c.w.Buffer()) > 64<<10 {
			if err := c.flush(); err != nil {
				return
			}
		}
	}
}

// await answers what has been asked and waits for more; false when the connection is to end.
func (c *conn) await() bool {
	c.settle()
	if c.flush() != nil {
		return false
	}
	c.state.Store(idle)
	if c.s.stopping.Load() {
		return false
	}
	c.inCommand = false
	_, err := c.r.br.Peek(1)
	c.inCommand = true
	return err == nil && c.state.CompareAndSwap(idle, busy)
}

func (c *conn) flush() error {
	if len(c.w.Buffer()) == 0 {
		return nil
	}
	if now := time.Now(); c.writeBy.Sub(now) < c.s.cfg.MaxWait/2 {
		c.writeBy = now.Add(c.s.cfg.MaxWait)
		_ = c.SetWriteDeadline(c.writeBy)
	}
	return c.w.Flush()
}
