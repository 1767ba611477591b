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

// OldStoreError: a store of a Set does not know what would be asked of it.
type OldStoreError struct {
	Set string
	// Store is its id, or its address if it does not say.
	Store     string
	Has, Want uint32
}

func (e *OldStoreError) Error() string {
	return fmt.Sprintf("store %s of set %q speaks version %d of moves, this one needs %d: upgrade it first", e.Store, e.Set, e.Has, e.Want)
}

// NoRoomError: what was to be moved does not fit.
type NoRoomError struct {
	Set, Store        string
	Keys, Needs, Free uint64
}

func (e *NoRoomError) Error() string {
	return fmt.Sprintf("the disk of store %s of set %q has %d MB free, and at least %d keys need about %d MB: make room there, or move less", e.Store, e.Set, e.Free>>20, e.Keys, e.Needs>>20)
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

// checkMove makes sure that both Sets can do their part, and that each store of the
// target that answers knows how and has room, as far as can be counted in short time;
// for a dry run all is counted. Whether enough of them answer is the quorum's question.
func (n *Node) checkMove(ctx context.Context, q *seqpb.SetMoveRequest, plan []sets.Range) (keys uint64, r *seqpb.Refusal) {
	from, err := n.checkQuorum(ctx, q.From, n.addresses(q.From))
	if err != nil {
		return 0, invalid("%v", err)
	}
	to, err := n.checkQuorum(ctx, q.To, n.addresses(q.To))
	if err != nil {
		return 0, invalid("%v", err)
	}
	if to.Store == "" {
		to.Store = "(its leader)"
	}
	stores := append(n.askStores(ctx, q.To), to)
	want := max(from.Version, state.MovesVersion)
	least := to
	for _, s := range stores {
		if s.Version < want {
			return 0, invalid("%v", &OldStoreError{Set: q.To, Store: s.Store, Has: s.Version, Want: want})
		}
		if s.FreeBytes > 0 && (least.FreeBytes == 0 || s.FreeBytes < least.FreeBytes) {
			least = s
		}
	}
	if !q.DryRun && least.FreeBytes == 0 {
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
	if needs := keys * moveRoomPerKey; least.FreeBytes > 0 && needs > least.FreeBytes {
		return 0, invalid("%v", &NoRoomError{Set: q.To, Store: least.Store, Keys: keys, Needs: needs, Free: least.FreeBytes})
	}
	return keys, nil
}

// askStores asks each store of a Set, all at once, what it is itself. It answers what
// those said that could be reached.
func (n *Node) askStores(ctx context.Context, set string) (out []*seqpb.PartStateReply) {
	addrs := n.addresses(set)
	if set == n.cfg.Set {
		addrs = n.peerAddresses()
	}
	q := &seqpb.PartStateRequest{ClusterId: n.clusterID(), Set: set, Local: true}
	replies := make(chan *seqpb.PartStateReply, len(addrs))
	for _, addr := range addrs {
		go func() { replies <- n.askStore(ctx, addr, q) }()
	}
	for range addrs {
		if rep := <-replies; rep != nil {
			out = append(out, rep)
		}
	}
	return out
}

// askStore answers nil of a store that cannot be reached, or is none of the Set.
func (n *Node) askStore(ctx context.Context, addr string, q *seqpb.PartStateRequest) *seqpb.PartStateReply {
	c, err := n.others.conn(addr)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, setAskTimeout)
	defer cancel()
	rep, err := c.PartState(ctx, q)
	switch code := rep.GetRefusal().GetCode(); {
	case err != nil:
		return nil
	case code == seqpb.RefusalCode_REFUSAL_NOT_LEADER:
		// It takes the question for one that only its leader answers.
		return &seqpb.PartStateReply{Store: addr}
	case code != seqpb.RefusalCode_REFUSAL_NONE:
		return nil
	case rep.Store == "":
		rep.Store = addr
	}
	return rep
}

// peerAddresses are those of the other stores of this Set.
func (n *Node) peerAddresses() (addrs []string) {
	_ = n.fsm.read(func(st *state.State) {
		for _, id := range sortedKeys(st.Meta.Stores) {
			if a := st.Meta.Stores[id].RPCAddr; id != n.cfg.ID && a != "" {
				addrs = append(addrs, a)
			}
		}
	})
	return addrs
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
