package storesvr

import (
	"context"
	"fmt"
	"time"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// moveCountMax bounds how long keys are counted before a move starts.
	moveCountMax = time.Second
	// moveRoomPerKey is about what a key that comes in takes on a disk: its record in the
	// state, and its way there through log and snapshots.
	moveRoomPerKey = 256
)

// OldSetError: a Set does not know what this one would ask of it.
type OldSetError struct {
	Set       string
	Has, Want uint32
}

func (e *OldSetError) Error() string {
	return fmt.Sprintf("set %q speaks version %d of moves, this one needs %d: upgrade its storesvrs first", e.Set, e.Has, e.Want)
}

// NoRoomError: what was to be moved does not fit.
type NoRoomError struct {
	Set               string
	Keys, Needs, Free uint64
}

func (e *NoRoomError) Error() string {
	return fmt.Sprintf("the disk of set %q has %d MB free, and at least %d keys need about %d MB: make room there, or move less", e.Set, e.Free>>20, e.Keys, e.Needs>>20)
}

// checkQuorum makes sure that a Set of this cluster has a leader with a majority
// behind it, which speaks of moves as this node does.
func (n *Node) checkQuorum(ctx context.Context, set string, addrs []string) (rep *seqpb.PartStateReply, err error) {
	q := &seqpb.PartStateRequest{ClusterId: n.clusterID(), Set: set}
	ask := func(ctx context.Context, c SetsConn) (*seqpb.PartStateReply, error) { return c.PartState(ctx, q) }
	if set == n.cfg.Set {
		rep, err = askSet(ctx, n, set, setAskTimeout, ask)
	} else {
		rep, err = callSet(ctx, n.others, set, addrs, setAskTimeout, ask)
	}
	if err != nil {
		return nil, fmt.Errorf("set %q has no leader with a majority behind it that takes part in moves: %w", set, err)
	}
	return rep, nil
}

// checkMove makes sure that both Sets can do their part, and that the target has room,
// as far as can be counted in short time; for a dry run all is counted.
func (n *Node) checkMove(ctx context.Context, q *seqpb.SetMoveRequest, plan []sets.Range) (keys uint64, r *seqpb.Refusal) {
	from, err := n.checkQuorum(ctx, q.From, n.addresses(q.From))
	if err != nil {
		return 0, invalid("%v", err)
	}
	to, err := n.checkQuorum(ctx, q.To, n.addresses(q.To))
	if err != nil {
		return 0, invalid("%v", err)
	}
	if want := max(from.Version, state.MovesVersion); to.Version < want {
		return 0, invalid("%v", &OldSetError{Set: q.To, Has: to.Version, Want: want})
	}
	if !q.DryRun && to.FreeBytes == 0 {
		return 0, nil
	}
	counting, cancel := ctx, context.CancelFunc(func() {})
	if !q.DryRun {
		counting, cancel = context.WithTimeout(ctx, moveCountMax)
	}
	defer cancel()
	keys, err = n.countRanges(counting, q.From, plan, func(ctx context.Context) error { return ctx.Err() })
	if err != nil && (q.DryRun || counting.Err() == nil || ctx.Err() != nil) {
		return 0, refusal(seqpb.RefusalCode_REFUSAL_NOT_READY, "the keys could not be counted: %v", err)
	}
	if needs := keys * moveRoomPerKey; to.FreeBytes > 0 && needs > to.FreeBytes {
		return 0, invalid("%v", &NoRoomError{Set: q.To, Keys: keys, Needs: needs, Free: to.FreeBytes})
	}
	return keys, nil
}

// countRanges counts the keys that a Set has in ranges, a page each time that turn lets
// it. With an error it answers how many it had counted by then.
func (n *Node) countRanges(ctx context.Context, set string, ranges []sets.Range, turn func(context.Context) error) (total uint64, err error) {
	for _, r := range ranges {
		q := &seqpb.ExportRequest{ClusterId: n.clusterID(), Set: set, Range: rangePB(r), CountOnly: true}
		for {
			if err := turn(ctx); err != nil {
				return total, err
			}
			rep, err := askSet(ctx, n, set, exportTimeout, func(ctx context.Context, c SetsConn) (*seqpb.ExportReply, error) { return c.Export(ctx, q) })
			if err != nil {
				return total, err
			}
			total += uint64(rep.Count)
			if rep.Done {
				break
			}
			q.After = rep.Last
		}
	}
	return total, nil
}
