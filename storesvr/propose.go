package storesvr

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// enqueueTimeout bounds the wait for a place in Raft's queue.
const enqueueTimeout = time.Second

// Errors of a proposal. All but UnknownOutcomeError mean that it surely had no effect.
var (
	errNotLeader = errors.New("this store does not lead")
	errStopping  = errors.New("this store is stopping")
	errQueueFull = errors.New("the raft queue is full")
)

// UnknownOutcomeError: the command may have been, or may yet be, committed.
type UnknownOutcomeError struct{ Err error }

func (e *UnknownOutcomeError) Error() string { return "outcome unknown: " + e.Err.Error() }
func (e *UnknownOutcomeError) Unwrap() error { return e.Err }

// SeqCode is how it travels.
func (e *UnknownOutcomeError) SeqCode() seqpb.Code { return seqpb.Code_CODE_UNKNOWN_RESULT }

// propose commits a command and answers what applying it said.
func (n *Node) propose(ctx context.Context, c state.Command) (state.Reply, error) {
	return n.proposeEncoded(ctx, state.EncodeCommand(nil, c))
}

// proposeEncoded is propose of a command that can be decoded. It keeps data.
func (n *Node) proposeEncoded(ctx context.Context, data []byte) (state.Reply, error) {
	var rep state.Reply
	err := n.await(ctx, func() error {
		f := n.raft.Apply(data, enqueueTimeout)
		if err := f.Error(); err != nil {
			return proposalError(err)
		}
		switch r := f.Response().(type) {
		case state.Reply:
			rep = r
			return nil
		case error:
			return &UnknownOutcomeError{Err: r}
		default:
			return &UnknownOutcomeError{Err: fmt.Errorf("the state machine answered %T", r)}
		}
	})
	if err != nil {
		return state.Reply{}, err
	}
	return rep, nil
}

func proposalError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return errNotLeader
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return errQueueFull
	}
	return &UnknownOutcomeError{Err: err}
}

// await runs a call of Raft, which knows no context, and stops waiting for it
// when ctx or the node ends. The call itself ends with an answer of Raft's, for
// which Stop waits.
func (n *Node) await(ctx context.Context, call func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !n.calls.enter() {
		return errStopping
	}
	done := make(chan error, 1)
	go func() {
		defer n.calls.leave()
		done <- call()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return &UnknownOutcomeError{Err: ctx.Err()}
	case <-n.closing:
		return &UnknownOutcomeError{Err: errStopping}
	case <-n.failure.c:
		return &UnknownOutcomeError{Err: n.failure.get()}
	}
}

// verifier asks a quorum whether this node leads. One question serves all that
// came before it was asked; those that come while it is under way wait for the next.
type verifier struct {
	n *Node

	mu      sync.Mutex
	waiting []chan error
	asking  bool
}

// verify answers nil if this node led at some moment after the call.
func (v *verifier) verify(ctx context.Context) error {
	if v.n.cfg.Bugs.SkipVerifyLeader {
		return nil
	}
	answer := make(chan error, 1)
	v.mu.Lock()
	v.waiting = append(v.waiting, answer)
	if !v.asking {
		if !v.n.calls.enter() {
			v.waiting = v.waiting[:len(v.waiting)-1]
			v.mu.Unlock()
			return errStopping
		}
		v.asking = true
		go v.ask()
	}
	v.mu.Unlock()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-v.n.closing:
		return errStopping
	case <-v.n.failure.c:
		return v.n.failure.get()
	}
}

func (v *verifier) ask() {
	defer v.n.calls.leave()
	for {
		v.mu.Lock()
		batch := v.waiting
		v.waiting = nil
		v.asking = len(batch) > 0
		v.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		err := v.n.raft.VerifyLeader().Error()
		if err != nil {
			err = fmt.Errorf("%w: %w", errNotLeader, err)
		}
		for _, c := range batch {
			c <- err
		}
	}
}
