package redis

import (
	"context"
	"errors"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// settle makes the allocations of the run and writes their replies. It comes
// before whatever else is written to the connection. false: some have to wait.
func (c *conn) settle() bool {
	t := c.t
	if len(t.run.asks) == 0 {
		return true
	}
	if c.s.cfg.Local.AllocReady(t.run.asks); !t.run.settled() {
		t.waits = waitsForRun
		return false
	}
	c.answerRun(nil)
	return true
}

// answerRun writes the replies of the run; away has those that came from other nodes.
func (c *conn) answerRun(away []Call) {
	t := c.t
	for i := range t.run.asks {
		a := &t.run.asks[i]
		last, err := int64(a.First)+int64(a.Count)-1, a.Err
		if len(away) > 0 && err != nil && elsewhere(err) {
			last, err, away = away[0].Value, away[0].Err, away[1:]
		}
		if err != nil {
			c.fail(err)
			continue
		}
		t.w.int(last)
	}
	t.run.clear()
}

// await does the waiting for a connection that is not in its loop meanwhile.
func (c *conn) await() {
	switch t := c.t; t.waits {
	case waitsForRun:
		c.awaitRun()
	case waitsForLook:
		c.awaitLook()
	}
	c.t.waits = waitsForNothing
}

// awaitRun has those allocations made that would wait, then those that other nodes
// have to make, each in one go.
func (c *conn) awaitRun() {
	asks := c.t.run.asks
	var late []allocsvr.Ask
	for i := range asks {
		if errors.Is(asks[i].Err, allocsvr.ErrWouldWait) {
			late = append(late, asks[i])
		}
	}
	if len(late) > 0 {
		c.s.cfg.Local.AllocEach(c.s.ctx, late, c.s.cfg.CallTimeout)
	}
	var calls []Call
	for i := range asks {
		a := &asks[i]
		if errors.Is(a.Err, allocsvr.ErrWouldWait) {
			*a, late = late[0], late[1:]
		}
		if a.Err != nil && elsewhere(a.Err) {
			calls = append(calls, Call{Key: c.t.run.text(i), N: a.N})
		}
	}
	if len(calls) > 0 {
		c.forward(c.s.cfg.Forward.Alloc, calls)
	}
	c.answerRun(calls)
}

// awaitLook reads keys, wherever they are.
func (c *conn) awaitLook() {
	l := &c.t.look
	c.s.cfg.Local.CurrentEach(c.s.ctx, l.reads, c.s.cfg.CallTimeout)
	var calls []Call
	for i := range l.reads {
		if err := l.reads[i].Err; err != nil && elsewhere(err) {
			calls = append(calls, Call{Key: l.texts[i], N: 1})
		} else if err != nil {
			c.fail(err)
			return
		}
	}
	if len(calls) > 0 {
		c.forward(c.s.cfg.Forward.Current, calls)
	}
	for i := range l.reads {
		if r := &l.reads[i]; r.Err != nil {
			r.Value, r.Err, calls = ids.Seq(calls[0].Value), calls[0].Err, calls[1:]
		}
	}
	c.answerLook()
}

func (c *conn) forward(to func(context.Context, string, []Call), calls []Call) {
	ctx, cancel := context.WithTimeout(c.s.ctx, c.s.cfg.CallTimeout)
	defer cancel()
	to(ctx, c.s.cfg.Spaces()[c.space].Name, calls)
}
