package faults

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seqsvr/seqsvr/internal/cluster"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// moveLook is how often the end of a move, which nobody announces, is looked for.
const moveLook = 20 * time.Millisecond

// Move starts a move at any node that answers, since each passes it on to the
// directory, and looks for its end.
func (c processes) Move(ctx context.Context, from, to string) error {
	q := &seqpb.SetMoveRequest{From: from, To: to}
	for _, r := range c.half {
		q.Ranges = append(q.Ranges, &seqpb.Range{Space: uint32(r.Space), Lo: uint64(r.Lo), Last: uint64(r.Last)})
	}
	var m *seqpb.MoveStatus
	if err := c.setAdmin(ctx, func(conn *rpc.SetAdminConn) error {
		rep, err := conn.SetMove(ctx, q)
		if err != nil {
			return err
		}
		m = rep.Move
		return refused(rep.Refusal)
	}); err != nil {
		return fmt.Errorf("move from %s to %s: %w", from, to, err)
	}
	for m.State != "done" && m.State != "aborted" {
		if !wait(ctx, moveLook) {
			return fmt.Errorf("move %d from %s to %s has not ended, it is %s (%s): %w", m.Id, from, to, m.State, m.Reason, ctx.Err())
		}
		// Whoever leads may have been lost this moment; the move goes on all the same.
		_ = c.setAdmin(ctx, func(conn *rpc.SetAdminConn) error {
			rep, err := conn.SetMoves(ctx, &seqpb.SetMovesRequest{Id: m.Id})
			if err == nil && len(rep.Moves) == 1 {
				m = rep.Moves[0]
			}
			return err
		})
	}
	if m.State == "aborted" {
		return fmt.Errorf("move %d from %s to %s was aborted: %s", m.Id, from, to, m.Reason)
	}
	return nil
}

func (c processes) setAdmin(ctx context.Context, ask func(*rpc.SetAdminConn) error) error {
	err := errors.New("no node runs")
	for _, ps := range [][]*cluster.Process{c.p.Stores, c.p.Allocs} {
		for _, p := range ps {
			if !p.Running() {
				continue
			}
			var conn *rpc.SetAdminConn
			if conn, err = rpc.DialSetAdmin(p.RPCAddr); err != nil {
				continue
			}
			if err = errors.Join(ask(conn), conn.Close()); err == nil || ctx.Err() != nil {
				return err
			}
		}
	}
	return err
}
