package sim

import (
	"context"
	"time"
)

// message is a generated protobuf message.
type message interface {
	Marshal([]byte) ([]byte, error)
	Unmarshal([]byte) error
}

type pointer[T any] interface {
	*T
	message
}

// clone copies a message the way a network does: no memory is shared.
func clone[T any, P pointer[T]](m P) P {
	b, err := m.Marshal(nil)
	if err != nil {
		panic("a message that cannot be encoded: " + err.Error())
	}
	c := P(new(T))
	if err := c.Unmarshal(b); err != nil {
		panic("a message that cannot be decoded: " + err.Error())
	}
	return c
}

// callTimeout is when an RPC gives up.
const callTimeout = 2 * time.Second

// waitsLong are the RPCs whose answer may take longer, as their deadlines say.
var waitsLong = map[string]bool{"Directory": true, "PartState": true, "Command": true, "Export": true}

// answer is how a unary call ended for its caller.
type answer[R any] struct {
	reply R
	err   error
}

// call carries a unary request from a process to an address and its reply
// back. handler finds the method at the process that it reaches, nil if it does
// not serve it.
func call[Q, R any, QP pointer[Q], RP pointer[R]](
	n *Network, ctx context.Context, from *process, addr, method string, req QP,
	handler func(*process) func(context.Context, QP) (RP, error),
) (RP, error) {
	if from.ctx.Err() != nil {
		return nil, ErrReset
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m := &Message{From: from.host, To: hostOf(addr), Method: method, Body: clone[Q, QP](req)}
	p := n.plan(m)
	done := make(chan answer[RP], 1)
	deadline, bounded := ctx.Deadline()

	deliver := func(m *Message, p plan, original bool) {
		if !n.carry(m, p) {
			return
		}
		srv := n.enter(addr)
		var h func(context.Context, QP) (RP, error)
		if srv != nil {
			if h = handler(srv); h == nil {
				srv.handlers.Done()
			}
		}
		if h == nil {
			if original && n.sleep(p.delay) {
				done <- answer[RP]{err: ErrRefused}
			}
			return
		}
		n.events.add("arrives     %s", describe{m})
		var follow answerer
		if n.arrived != nil {
			follow = n.arrived(srv, m)
		}
		sctx, cancel := context.WithCancel(srv.ctx)
		if bounded && original {
			sctx, cancel = context.WithDeadline(srv.ctx, deadline)
		}
		defer cancel()
		reply, err := h(sctx, clone[Q, QP](m.Body.(QP)))
		srv.handlers.Done()
		if srv.ctx.Err() != nil {
			// The process died: whatever its goroutines still say, nobody hears it.
			if original && !srv.silent && n.sleep(p.delay) {
				done <- answer[RP]{err: ErrReset}
			}
			return
		}
		if err != nil {
			n.events.add("fails       %s: %v", describe{m}, err)
			if original && n.sleep(p.delay) {
				done <- answer[RP]{err: err}
			}
			return
		}
		back := &Message{From: m.To, To: m.From, Method: method, Reply: true, Request: m, Copy: m.Copy, Body: clone[R, RP](reply)}
		if follow != nil {
			follow.leaves(back)
		}
		if !original {
			return
		}
		if !n.carry(back, n.plan(back)) {
			return
		}
		n.events.add("answers     %s", describe{back})
		done <- answer[RP]{reply: back.Body.(RP)}
	}

	n.fly(func() { deliver(m, p, true) })
	if p.again > 0 || p.verdict.Again != nil {
		dup := *m
		dup.Copy = true
		n.fly(func() {
			if p.verdict.Again != nil && !n.await(p.verdict.Again) {
				return
			}
			if n.sleep(p.again) {
				deliver(&dup, plan{delay: p.delay, waitsOut: true}, false)
			}
		})
	}

	patience := callTimeout
	if bounded && waitsLong[method] {
		patience = max(patience, time.Until(deadline))
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case a := <-done:
		// A paused process notices its answer only when it runs again.
		if !n.passGate(from.host) || from.ctx.Err() != nil {
			return nil, ErrReset
		}
		return a.reply, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-from.ctx.Done():
		return nil, ErrReset
	case <-timer.C:
		return nil, ErrTimeout
	case <-n.down:
		return nil, ErrReset
	}
}
