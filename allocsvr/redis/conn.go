package redis

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// conn is one client. It belongs to its loop; while it waits, its turn and what a
// command may change belong to the goroutine that waits for it.
type conn struct {
	s *Server
	l *loop
	// fd is -1 once it is closed; slot is its place in the loop.
	fd   int
	slot int32

	authed bool
	resp   int // 2 or 3
	space  int // index among the spaces
	name   string
	t      *turn // while commands are carried out

	parser parser
	// rest is what arrived and was not carried out: a part of a command, or all that
	// came behind one that waits. unsent is replies that the peer did not take yet;
	// then nothing more is carried out, nor read.
	rest, unsent []byte
	// readable: there may be something to read. hungUp: and then the end, so that a
	// read which brings less than it could is not the last one.
	readable, hungUp bool
	// waits: for its goroutine. leaves: it ends when unsent is sent. doomed: it ends
	// when it need not wait any more.
	waits, leaves, doomed bool
	queued                bool // in loop.again
	// left: the last reply is sent, and what the peer still sends is thrown away:
	// discarded bytes so far.
	left      bool
	discarded int
	// by is until when the peer must send the rest of a command, take unsent, or close
	// what was left.
	by time.Time
}

// verdict is what became of a command.
type verdict uint8

const (
	// done: and the next one may follow.
	done verdict = iota
	// waiting: its replies come when what turn.waits says is over.
	waiting
	// redo: what was before it has to wait; it is to be carried out after that.
	redo
	// quit: the connection ends when its replies are sent.
	quit
	// full: there are so many replies that they are to be sent first.
	full
)

// unsentMax is how many bytes of replies are gathered before they are sent. One
// command's may come on top.
const unsentMax = 64 << 10

// carryOut carries out the commands of in, of which it used as many bytes. With
// done, the rest is a part of a command.
func (c *conn) carryOut(in []byte) (used int, v verdict) {
	t := c.t
	for used < len(in) {
		args, n, err := c.parser.next(in[used:], t.args)
		t.args = args
		switch {
		case err != nil && !c.settle():
			return used, waiting // it comes again
		case err != nil:
			var pe *protocolError
			if errors.As(err, &pe) {
				t.w.error("ERR " + pe.Error())
			}
			return len(in), quit
		case n == 0:
			return used, c.settled()
		case len(args) == 0:
			used += n
			continue
		}
		v = c.do(args)
		if v == redo {
			return used, waiting
		}
		used += n
		if v != done {
			return used, v
		}
		if len(t.w.b) > unsentMax {
			if v = c.settled(); v == done {
				v = full
			}
			return used, v
		}
	}
	return used, c.settled()
}

func (c *conn) settled() verdict {
	if !c.settle() {
		return waiting
	}
	return done
}

// keep remembers what was not carried out.
func (c *conn) keep(rest []byte) {
	if len(rest) == 0 && cap(c.rest) > 1<<10 {
		c.rest = nil
		return
	}
	c.rest = append(c.rest[:0], rest...)
}

func (c *conn) close() {
	unix.Close(c.fd)
	c.fd = -1
	c.s.conns.Add(-1)
}
