package rpc

import (
	"time"

	"github.com/seqsvr/seqsvr/internal/rpc/frame"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// Started is a call that nobody waits for.
type Started struct {
	link    *link
	conn    *framesClient
	number  uint64
	waiter  framesWaiter
	request framesRequest
}

// StartAlloc sends a request if that needs no waiting, on a connection of lean
// frames that is up; otherwise it sends nothing, and returns nil. told gets the
// outcome, once and with Alloc's errors, perhaps before StartAlloc returns. It runs
// on the goroutine that reads the connection, so it must not wait, and must not
// close it.
func (c *SeqConn) StartAlloc(deadline time.Time, q *seqpb.AllocRequest, told func(*seqpb.AllocReply, error)) *Started {
	rep := &seqpb.AllocReply{}
	return c.start("Alloc", deadline, framesRequest{kind: frame.Alloc, alloc: q, allocRep: rep}, orNothing(rep, told))
}

// StartCurrent is StartAlloc for Current.
func (c *SeqConn) StartCurrent(deadline time.Time, q *seqpb.CurrentRequest, told func(*seqpb.CurrentReply, error)) *Started {
	rep := &seqpb.CurrentReply{}
	return c.start("Current", deadline, framesRequest{kind: frame.Current, current: q, currentRep: rep}, orNothing(rep, told))
}

// orNothing tells of a reply, or of an error without one.
func orNothing[R any](rep *R, told func(*R, error)) func(error) {
	return func(err error) {
		if err != nil {
			told(nil, err)
			return
		}
		told(rep, nil)
	}
}

func (c *SeqConn) start(method string, deadline time.Time, q framesRequest, told func(error)) *Started {
	if c.frames == nil {
		return nil
	}
	conn := c.frames.up()
	if conn == nil || c.begin(method) != nil {
		return nil
	}
	s := &Started{link: c.link, conn: conn, request: q}
	s.waiter.framesRequest = &s.request
	s.waiter.told = func(err error) {
		c.calls.Done()
		if err != nil {
			err = c.frames.errorOf(method, err)
		}
		told(err)
	}
	number, ok := conn.start(deadline, &s.waiter)
	if !ok {
		c.calls.Done()
		return nil
	}
	s.number = number
	return s
}

// Abandon takes the call back, and has the server know. true: nothing is told any
// more, and nobody knows what becomes of the call.
func (s *Started) Abandon() bool {
	if s.conn.abandon(s.number, errAbandoned) == nil {
		return false
	}
	s.link.calls.Done()
	return true
}
