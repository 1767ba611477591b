package redis

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// readBytes are read from a connection in one go.
const readBytes = 64 << 10

// loop serves its share of the connections, one at a time. All of it but post is
// the loop's own goroutine's.
type loop struct {
	s    *Server
	poll *poller
	buf  []byte
	t    *turn
	// spare turns, for those that connections take along.
	spare []*turn

	// calls into the system so far that came with commands: waits, reads and writes.
	calls uint64

	// slots has the connections; free are the empty ones.
	slots []*conn
	free  []int32
	open  int
	// again are connections with more to read; they get another turn when the
	// others had theirs.
	again, turns []*conn
	// late are those with conn.by; clock rings when the first is due.
	late    map[*conn]struct{}
	clock   *time.Timer
	expires atomic.Bool
	stopped bool // no more commands are taken

	mu sync.Mutex
	// inbox has connections that are new, or that need not wait any more. There are
	// no more of them than Config.MaxConns.
	inbox, taken []*conn
	rung         bool // the loop has been woken and has not looked yet
	closed       bool
}

const spareMax = 8

func newLoop(s *Server) (*loop, error) {
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	return &loop{s: s, poll: p, buf: make([]byte, readBytes), t: &turn{}, late: map[*conn]struct{}{}}, nil
}

// post hands a connection over to the loop, or none to have it look around.
func (l *loop) post(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		if c != nil {
			c.close()
		}
		return
	}
	if c != nil {
		l.inbox = append(l.inbox, c)
	}
	if !l.rung {
		l.rung = true
		l.poll.wake()
	}
}

// run ends when the server stops and all connections have ended.
func (l *loop) run() {
	defer l.end()
	for steps := 1; !l.step(); steps++ {
		if steps%yieldEvery == 0 {
			runtime.Gosched()
		}
	}
}

// yieldEvery is after how many steps a busy loop lets other goroutines run. If it
// did not within 10 ms, the runtime would make it; and would look 50 000 times a
// second for a millisecond, each time, whether it has to do so again.
const yieldEvery = 64

// step waits for something to do, unless there is, and does it. It reports whether
// the loop's work is over.
func (l *loop) step() (over bool) {
	events, err := l.poll.wait(len(l.again) == 0)
	l.calls++
	if err != nil {
		l.broken(err)
	}
	woken := err != nil
	for i := range events {
		if ev := &events[i]; ev.Fd == wakeSlot {
			woken = true
		} else {
			l.noticed(l.slots[ev.Fd], ev.Events)
		}
	}
	l.again, l.turns = l.turns[:0], l.again
	for _, c := range l.turns {
		c.queued = false
		l.turn(c)
	}
	if woken {
		l.lookAround()
	}
	return l.stopped && l.open == 0
}

// broken ends the server, or its clients would wait for ever. Nothing that a peer does leads here.
func (l *loop) broken(err error) {
	l.s.cfg.Logger.Error("redis connections cannot be watched any more", zap.Error(err))
	l.s.refuse()
	l.s.stopping.Store(true)
	l.s.killed.Store(true)
	l.s.lookAround()
}

// lookAround does what others asked for.
func (l *loop) lookAround() {
	stopping := l.s.stopping.Load() // before the inbox: then nothing new comes into that
	l.mu.Lock()
	l.taken, l.inbox, l.rung = l.inbox, l.taken[:0], false
	l.mu.Unlock()
	for i, c := range l.taken {
		l.taken[i] = nil
		if c.waits {
			l.resume(c)
		} else {
			l.join(c)
		}
	}
	if l.expires.Swap(false) {
		l.expire()
	}
	if stopping && !l.stopped {
		l.stopped = true
		l.each(func(c *conn) {
			if !c.waits && len(c.unsent) == 0 {
				l.leave(c) // what it has of a command is not carried out
			}
		})
	}
	if l.s.killed.Load() {
		l.each(func(c *conn) {
			if c.doomed = true; !c.waits {
				l.drop(c)
			}
		})
	}
}

func (l *loop) each(f func(*conn)) {
	for _, c := range l.slots {
		if c != nil {
			f(c)
		}
	}
}

func (l *loop) end() {
	if l.clock != nil {
		l.clock.Stop()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.poll.close()
}

// join takes in a new connection.
func (l *loop) join(c *conn) {
	if n := len(l.free); n > 0 {
		c.slot, l.free = l.free[n-1], l.free[:n-1]
		l.slots[c.slot] = c
	} else {
		c.slot = int32(len(l.slots))
		l.slots = append(l.slots, c)
	}
	l.open++
	if l.stopped {
		l.drop(c)
		return
	}
	if err := l.poll.add(c.fd, c.slot); err != nil {
		l.s.cfg.Logger.Warn("cannot serve a redis connection", zap.Error(err))
		l.drop(c)
	}
}

// drop closes a connection.
func (l *loop) drop(c *conn) {
	if c.fd < 0 {
		return
	}
	c.close()
	l.slots[c.slot] = nil
	l.free = append(l.free, c.slot)
	l.open--
	delete(l.late, c)
}

// noticed is what the poller says of a connection.
func (l *loop) noticed(c *conn, events uint32) {
	const hangUp = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR
	if events&(unix.EPOLLIN|hangUp) != 0 {
		c.readable = true
	}
	if events&hangUp != 0 {
		c.hungUp = true
	}
	if len(c.unsent) > 0 && events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		l.sendRest(c)
		return
	}
	l.turn(c)
}

// turn reads once and carries out what that brings.
func (l *loop) turn(c *conn) {
	if c.fd < 0 || !c.readable || c.waits || len(c.unsent) > 0 {
		return // readable is remembered
	}
	n, err := unix.Read(c.fd, l.buf)
	l.calls++
	switch {
	case errors.Is(err, unix.EINTR):
		l.later(c)
		return
	case errors.Is(err, unix.EAGAIN):
		c.readable = false
		return
	case err != nil || n <= 0:
		l.drop(c)
		return
	}
	c.readable = n == len(l.buf) || c.hungUp
	if c.left {
		l.discard(c, n)
		return
	}
	in := l.buf[:n]
	if len(c.rest) > 0 {
		c.rest = append(c.rest, in...)
		in = c.rest
	}
	l.answer(c, in)
}

// later gives a connection with more to read another turn.
func (l *loop) later(c *conn) {
	if c.fd >= 0 && c.readable && !c.waits && len(c.unsent) == 0 && !c.queued {
		c.queued = true
		l.again = append(l.again, c)
	}
}

// answer carries out what in has, sends the replies, and leaves the connection in
// one of five states: closed, left, waiting, with replies unsent, or with at most a
// part of a command.
func (l *loop) answer(c *conn, in []byte) {
	c.t = l.t
	for {
		used, v := c.carryOut(in)
		in = in[used:]
		if used > 0 {
			l.inTime(c)
		}
		if v == waiting {
			c.keep(in)
			l.wait(c)
			return
		}
		out := l.t.w.b
		sent, ok := l.send(c, out)
		if !ok {
			l.t.clear()
			l.drop(c)
			return
		}
		if sent < len(out) {
			c.unsent = append(c.unsent[:0], out[sent:]...)
			c.leaves = v == quit
			l.t.clear()
			c.keep(in)
			l.inTime(c)
			l.hurry(c)
			return
		}
		l.t.clear()
		if v == quit || v == done && l.stopped {
			l.leave(c)
			return
		}
		if v == done {
			break
		}
	}
	c.keep(in)
	if len(in) > 0 {
		l.hurry(c)
	}
	l.later(c)
}

// send writes as much as the peer takes; not ok: the connection is broken.
func (l *loop) send(c *conn, out []byte) (sent int, ok bool) {
	for sent < len(out) {
		n, err := unix.Write(c.fd, out[sent:])
		l.calls++
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return sent, true
		case err != nil:
			return sent, false
		default:
			sent += n
		}
	}
	return sent, true
}

// sendRest goes on with a connection whose peer takes replies again.
func (l *loop) sendRest(c *conn) {
	sent, ok := l.send(c, c.unsent)
	if !ok {
		l.drop(c)
		return
	}
	if sent < len(c.unsent) {
		c.unsent = append(c.unsent[:0], c.unsent[sent:]...)
		return
	}
	c.unsent = nil
	l.inTime(c)
	if c.leaves {
		l.leave(c)
		return
	}
	l.answer(c, c.rest)
}

// discardMax is how much of what a peer sends after its last reply is thrown away.
// It is more than any command that a client would send by mistake.
const discardMax = 4 << 20

// lingerMax is how long a peer has to close when the server stops. One that waits for
// replies does so at once; one that keeps idle connections finds out when it next
// uses them, and is not waited for any longer.
const lingerMax = 100 * time.Millisecond

// leave ends a connection that was sent its last reply. To close it while there is
// more to come would reset it, and a peer that still sends, as one does whose
// command is too large, would hear of that and not of the reply. So the rest is
// read and thrown away until the peer closes; but no more than discardMax of it,
// for no longer than Config.MaxWait, and lingerMax when the server stops.
func (l *loop) leave(c *conn) {
	if unix.Shutdown(c.fd, unix.SHUT_WR) != nil {
		l.drop(c)
		return
	}
	c.left, c.rest, c.parser = true, nil, parser{}
	l.inTime(c)
	l.hurry(c)
	l.later(c)
}

// discard throws away n bytes that came after the last reply.
func (l *loop) discard(c *conn, n int) {
	if c.discarded += n; c.discarded > discardMax {
		l.drop(c)
		return
	}
	l.later(c)
}

// wait lets a goroutine wait for what the connection's commands need. It takes
// the turn along.
func (l *loop) wait(c *conn) {
	c.waits = true
	l.inTime(c)
	if n := len(l.spare); n > 0 {
		l.t, l.spare = l.spare[n-1], l.spare[:n-1]
	} else {
		l.t = &turn{}
	}
	l.s.wg.Go(func() {
		c.await()
		l.post(c)
	})
}

// resume goes on with a connection that has waited: with the replies of what it
// waited for, and with what came behind that.
func (l *loop) resume(c *conn) {
	c.waits = false
	if len(l.spare) < spareMax {
		l.spare = append(l.spare, l.t)
	}
	l.t = c.t
	if c.doomed {
		l.t.clear()
		l.drop(c)
		return
	}
	l.answer(c, c.rest)
}

// patience is how long the peer of a connection may keep it waiting.
func (l *loop) patience(c *conn) time.Duration {
	if l.stopped && c.left {
		return min(l.s.cfg.linger, l.s.cfg.MaxWait)
	}
	return l.s.cfg.MaxWait
}

// hurry gives a peer that keeps the connection waiting until its time is over.
func (l *loop) hurry(c *conn) {
	if !c.by.IsZero() {
		return
	}
	wait := l.patience(c)
	c.by = time.Now().Add(wait)
	l.late[c] = struct{}{}
	switch {
	case l.clock == nil:
		l.clock = time.AfterFunc(wait, l.ring)
	case len(l.late) == 1 || l.stopped && c.left:
		l.clock.Reset(wait)
	}
}

// inTime: the peer did what it was to do.
func (l *loop) inTime(c *conn) {
	if !c.by.IsZero() {
		c.by = time.Time{}
		delete(l.late, c)
	}
}

func (l *loop) ring() {
	l.expires.Store(true)
	l.post(nil)
}

// expire ends the connections whose peers were too slow.
func (l *loop) expire() {
	now, first, pause := time.Now(), time.Time{}, l.s.cfg.MaxWait
	for c := range l.late {
		switch {
		case !now.Before(c.by):
			l.drop(c)
		case first.IsZero() || c.by.Before(first):
			first, pause = c.by, l.patience(c)
		}
	}
	if len(l.late) > 0 {
		// Not for each of them by itself, if there are many.
		l.clock.Reset(max(first.Sub(now), pause/8))
	}
}
