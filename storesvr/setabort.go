package storesvr

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// NotLostError: an operator gave up a target that is there.
type NotLostError struct {
	Set  string
	Move sets.MoveID
}

func (e *NotLostError) Error() string {
	return fmt.Sprintf("set %q answers, so it is not lost: move %d ends by itself once it is aborted", e.Set, e.Move)
}

// CommittedError: the part at hand is its target's, whether that is lost or not.
type CommittedError struct {
	Set   string
	Move  sets.MoveID
	Range sets.Range
}

func (e *CommittedError) Error() string {
	return fmt.Sprintf("move %d has given %s to set %q already, which alone knows its numbers: bring a majority of its stores back, or restore it from a backup", e.Move, e.Range, e.Set)
}

// SetAbort ends a move early: what has moved by then stays moved.
func (n *Node) SetAbort(ctx context.Context, q *seqpb.SetAbortRequest) (*seqpb.SetMoveReply, error) {
	if !n.directs() {
		return toDirectory(ctx, n, func(ctx context.Context, c SetAdminConn) (*seqpb.SetMoveReply, error) { return c.SetAbort(ctx, q) })
	}
	id := sets.MoveID(q.Id)
	if q.TargetLost {
		if err := n.checkLost(ctx, id); err != nil {
			return &seqpb.SetMoveReply{Refusal: invalid("%v", err)}, nil
		}
	}
	_, r, err := n.decree(ctx, state.AbortMove{Move: id, Reason: "an operator wanted it", NowMS: time.Now().UnixMilli()})
	if r == nil && err == nil && q.TargetLost {
		r, err = n.endWithoutTarget(ctx, id)
	}
	if r != nil || err != nil {
		return &seqpb.SetMoveReply{Refusal: r}, err
	}
	return n.answerMove(id)
}

// checkLost refuses to give up a target that is there, or has what was moved.
func (n *Node) checkLost(ctx context.Context, id sets.MoveID) error {
	m, ok := n.moveOf(id)
	switch {
	case !ok:
		return &sets.NoSuchMoveError{Move: id}
	case m.PartState == sets.PartCommitted:
		return &CommittedError{Set: m.To, Move: id, Range: m.PartRange}
	}
	if _, err := n.checkQuorum(ctx, m.To, n.addresses(m.To)); err == nil {
		return &NotLostError{Set: m.To, Move: id}
	}
	return nil
}

// endWithoutTarget ends a move whose part at hand was aborted, with the word of its
// source alone. A target that comes back does not need to have been asked: the map never
// gave it the range, so it cannot activate it, and it hears that the part was aborted, or
// is over, when it asks for the verdict.
func (n *Node) endWithoutTarget(ctx context.Context, id sets.MoveID) (*seqpb.Refusal, error) {
	m, ok := n.moveOf(id)
	if !ok || m.Over() {
		return nil, nil
	}
	if m.PartState != sets.PartAborted {
		// It was committed between the check and the abort.
		return invalid("%v", &CommittedError{Set: m.To, Move: id, Range: m.PartRange}), nil
	}
	rep, err := n.commandSet(ctx, m.From, state.Thaw{Move: id, Part: m.Part, Forced: true})
	if err != nil {
		return refusal(seqpb.RefusalCode_REFUSAL_NOT_READY, "set %q has not thawed the range: %v", m.From, err), nil
	}
	if rep.Refusal != state.OK {
		return invalid("set %q does not thaw the range: %v", m.From, rep.Refusal), nil
	}
	_, r, err := n.decree(ctx, state.EndPart{Move: id, Part: m.Part, NowMS: time.Now().UnixMilli()})
	if r == nil && err == nil {
		n.log.Warn("move ended without its target, which an operator has given up", zap.Uint64("move", uint64(id)), zap.String("to", m.To))
	}
	return r, err
}

func (n *Node) moveOf(id sets.MoveID) (m sets.Move, ok bool) {
	_ = n.fsm.read(func(st *state.State) {
		if d := st.Meta.Directory; d != nil {
			m, ok = d.Move(id)
		}
	})
	return m, ok
}
