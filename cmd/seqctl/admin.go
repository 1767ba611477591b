package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// adminRetry is the pause before all servers are asked again: an election takes longer.
const adminRetry = 200 * time.Millisecond

// adminCall is one administrative call.
type adminCall struct {
	// repeatable: carrying it out twice does no harm.
	repeatable bool
	// lasts: it takes as long as it needs; only a --timeout that is given bounds it.
	lasts bool
	do    func(context.Context, *rpc.AdminConn) (*seqpb.Refusal, error)
	// sets is done instead, where the call is one of SetAdmin.
	sets func(context.Context, *rpc.SetAdminConn) (*seqpb.Refusal, error)
	// heard is when the cluster last said something in a call that lasts; nil if it does not say.
	heard func() time.Time
	// interrupted is what to say when the user ends it half-way.
	interrupted string
}

// admin asks the servers in turn until one takes the call, and again while the
// cluster is between leaders, for the time-out at most.
func (a *app) admin(parent context.Context, q adminCall) error {
	ctx, cancel := context.WithTimeout(parent, a.timeout)
	defer cancel()
	servers, err := a.reach(ctx)
	if err != nil {
		return err
	}
	callCtx := ctx
	if q.lasts && !a.timeoutGiven {
		callCtx = parent
	}
	asked := time.Now()
	for {
		var last error
		for i, addr := range servers {
			last = a.ask(callCtx, addr, len(servers)-i, q)
			if parent.Err() != nil {
				return interruption(q)
			}
			if !passing(last, q) || callCtx.Err() != nil {
				return explain(last, addr, q)
			}
		}
		if q.heard != nil && q.heard().After(asked) {
			asked = q.heard()
		}
		if time.Since(asked)+adminRetry >= a.timeout {
			return explain(last, servers[len(servers)-1], q)
		}
		pause := time.NewTimer(adminRetry)
		select {
		case <-pause.C:
		case <-parent.Done():
			pause.Stop()
			return interruption(q)
		}
	}
}

func interruption(q adminCall) error {
	return fmt.Errorf("interrupted: %s", orText(q.interrupted, "it may or may not have been done: see seqctl status"))
}

// ask makes the call at one server. A call that may be made again elsewhere has
// only this server's share of the time that is left, for a server that hangs.
func (a *app) ask(ctx context.Context, addr string, left int, q adminCall) error {
	if deadline, ok := ctx.Deadline(); ok && q.repeatable && left > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
		defer cancel()
	}
	if q.sets != nil {
		return callAt(ctx, addr, rpc.DialSetAdmin, "seqctl set list", q.sets)
	}
	return callAt(ctx, addr, rpc.DialAdmin, "seqctl nodes", q.do)
}

func callAt[C io.Closer](ctx context.Context, addr string, dial func(string) (C, error), see string, call func(context.Context, C) (*seqpb.Refusal, error)) error {
	conn, err := dial(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := call(ctx, conn)
	if err != nil {
		return err
	}
	return refused(r, see)
}

// refusalError is what a leader says no with.
type refusalError struct {
	*seqpb.Refusal
	// see is where to look what can be asked for.
	see string
}

func (e *refusalError) Error() string {
	remedy := "try again"
	switch e.Code {
	case seqpb.RefusalCode_REFUSAL_INVALID:
		remedy = "see " + e.see
	case seqpb.RefusalCode_REFUSAL_BUSY:
		remedy = "try again later"
	}
	return fmt.Sprintf("refused: %s: %s", e.Message, remedy)
}

func refused(r *seqpb.Refusal, see string) error {
	if r.GetCode() == seqpb.RefusalCode_REFUSAL_NONE {
		return nil
	}
	return &refusalError{r, see}
}

// passing tells that another server, or the same one later, may take the call,
// and that making it again does no harm.
func passing(err error, q adminCall) bool {
	var no *refusalError
	var e *rpc.Error
	switch {
	case errors.Is(err, errBrokenOff):
		return true
	case errors.As(err, &no):
		return no.Code == seqpb.RefusalCode_REFUSAL_NOT_LEADER || no.Code == seqpb.RefusalCode_REFUSAL_NOT_READY
	case !errors.As(err, &e):
		return false
	case e.NotSent:
		return true
	case e.Answered && e.Code != seqpb.Code_CODE_UNKNOWN_RESULT:
		return e.Code == seqpb.Code_CODE_UNAVAILABLE || e.Code == seqpb.Code_CODE_NOT_READY
	}
	// Lost on the way to this server, or from there to the one that it asked.
	return q.repeatable
}

// explain says what a failed call means and what to do.
func explain(err error, addr string, q adminCall) error {
	var e *rpc.Error
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case e.Answered && (e.Code == seqpb.Code_CODE_UNAVAILABLE || e.Code == seqpb.Code_CODE_NOT_READY):
		return fmt.Errorf("the cluster cannot do it now: %s: see seqctl status, and try again", e.Text)
	case e.Answered && e.Code != seqpb.Code_CODE_UNKNOWN_RESULT:
		return fmt.Errorf("%s refused %s: %s: is it a server of this version of seqsvr?", e.Addr, e.Method, e.Text)
	case e.NotSent:
		return fmt.Errorf("no server answered at %s: %s: is it running, and is --server right?", addr, e.Text)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer from %s in time: a majority of the stores may be down: see seqctl status, or try a longer --timeout", e.Addr)
	}
	return fmt.Errorf("the answer from %s to %s was lost: %s: %s", e.Addr, e.Method, e.Text,
		orText(q.interrupted, "it may or may not have been done; see seqctl status"))
}
