package storesvr

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// batchOpsMax and batchBytesMax bound one batch, and so one Raft entry.
	batchOpsMax   = 4096
	batchBytesMax = 4 << 20
	// readKeysMax bounds the keys of one Read.
	readKeysMax = 16 << 10
	// readAtOnce is how many of them are looked up before those who want to apply,
	// or to renew a lease, have their turn: each may be a read of the disk.
	readAtOnce = 64
)

// Execute commits a batch of an AllocSvr and answers its outcome. An error means
// that the outcome is unknown, unless it says otherwise.
func (n *Node) Execute(ctx context.Context, q *seqpb.ExecuteRequest) (*seqpb.ExecuteReply, error) {
	rep, err := n.execute(ctx, q)
	n.counts.refused(rep.GetRefusal())
	return rep, err
}

func (n *Node) execute(ctx context.Context, q *seqpb.ExecuteRequest) (*seqpb.ExecuteReply, error) {
	l := n.leads()
	if l == nil {
		return &seqpb.ExecuteReply{Refusal: n.notLeaderRefusal()}, nil
	}
	b, r := n.checkBatch(q)
	if r != nil {
		return &seqpb.ExecuteReply{Refusal: r}, nil
	}
	select {
	case n.executes <- struct{}{}:
		defer func() { <-n.executes }()
	default:
		return &seqpb.ExecuteReply{Refusal: &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_BUSY,
			Message: fmt.Sprintf("%d batches are under way, no more are taken", executesMax)}}, nil
	}
	l.acted(b.Session, b.Incarnation)
	l.fillNext(&b)
	if n.cfg.Bugs.AckBeforeCommit {
		return n.ackBeforeCommit(b)
	}
	rep, err := n.propose(ctx, b)
	if r := n.refusalOf(err); r != nil {
		return &seqpb.ExecuteReply{Refusal: r}, nil
	}
	if err != nil {
		return nil, err
	}
	n.counts.executed(&rep)
	return &seqpb.ExecuteReply{Outcome: state.EncodeReply(nil, rep)}, nil
}

// refusalOf is the refusal for an error after which nothing surely happened.
func (n *Node) refusalOf(err error) *seqpb.Refusal {
	switch {
	case errors.Is(err, errNotLeader):
		return n.notLeaderRefusal()
	case errors.Is(err, errQueueFull):
		return &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_BUSY, Message: err.Error()}
	case errors.Is(err, errStopping) && !errors.As(err, new(*UnknownOutcomeError)):
		return &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_NOT_READY, Message: err.Error()}
	}
	return nil
}

func (n *Node) checkBatch(q *seqpb.ExecuteRequest) (state.Batch, *seqpb.Refusal) {
	invalid := func(format string, args ...any) (state.Batch, *seqpb.Refusal) {
		return state.Batch{}, &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_INVALID, Message: fmt.Sprintf(format, args...)}
	}
	if r := n.checkCluster(q.ClusterId); r != nil {
		return state.Batch{}, r
	}
	if len(q.Batch) > batchBytesMax {
		return invalid("a batch of %d bytes, at most %d are allowed", len(q.Batch), batchBytesMax)
	}
	c, err := state.DecodeCommand(q.Batch)
	if err != nil {
		return invalid("%v", err)
	}
	b, ok := c.(state.Batch)
	if !ok {
		return invalid("a %T is no batch of an allocsvr", c)
	}
	if len(b.Ops) > batchOpsMax {
		return invalid("a batch of %d ops, at most %d are allowed", len(b.Ops), batchOpsMax)
	}
	return b, nil
}

// checkCluster refuses a request that is meant for another cluster.
func (n *Node) checkCluster(id string) *seqpb.Refusal {
	var own string
	if err := n.fsm.read(func(st *state.State) { own = st.Meta.Genesis.ClusterID }); err != nil {
		return &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_NOT_READY, Message: err.Error()}
	}
	if id != own {
		return &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER, Message: fmt.Sprintf("this cluster has id %s, not %q", own, id)}
	}
	return nil
}

// acted notes that an incarnation has done something.
func (l *leadership) acted(id ids.SessionID, inc ids.Incarnation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if have, known := l.adopted[id]; known && inc > have {
		l.adopted[id] = inc
	}
}

// linearizable waits until what it reads is not older than anything that was
// acknowledged before the call: this node led after the call began, it had
// applied all of its predecessors' entries before it became ready, and it
// acknowledges its own only once it has applied them.
func (n *Node) linearizable(ctx context.Context) *seqpb.Refusal {
	if n.leads() == nil {
		return n.notLeaderRefusal()
	}
	if err := n.verify.verify(ctx); err != nil {
		if r := n.refusalOf(err); r != nil {
			return r
		}
		return &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_NOT_READY, Message: err.Error()}
	}
	return nil
}

// Read answers what the durable tier knows of keys, linearizably.
func (n *Node) Read(ctx context.Context, q *seqpb.ReadRequest) (*seqpb.ReadReply, error) {
	if len(q.Keys) > readKeysMax {
		return nil, wire.Refusef(seqpb.Code_CODE_INVALID_ARGUMENT, "%d keys, at most %d are allowed", len(q.Keys), readKeysMax)
	}
	if r := n.linearizable(ctx); r != nil {
		return &seqpb.ReadReply{Refusal: r}, nil
	}
	if r := n.checkCluster(q.ClusterId); r != nil {
		return &seqpb.ReadReply{Refusal: r}, nil
	}
	rep := &seqpb.ReadReply{Value: make([]uint64, 0, len(q.Keys))}
	// Later ones may be newer, which is as linearizable.
	for part := range slices.Chunk(q.Keys, readAtOnce) {
		var bad error
		err := n.fsm.read(func(st *state.State) {
			for _, ref := range part {
				k, err := keyOf(ref)
				if err != nil {
					bad = err
					return
				}
				if !st.MaySpeak(k) {
					rep.Elsewhere = append(rep.Elsewhere, uint32(len(rep.Value)))
					rep.Value = append(rep.Value, 0)
					continue
				}
				rep.Value = append(rep.Value, uint64(st.Value(k)))
			}
		})
		if err = errors.Join(err, bad, ctx.Err()); err != nil {
			return nil, err
		}
	}
	return rep, nil
}

// ReadGaps answers the declared holes of a key, linearizably. It has no cluster
// id to check: the caller's connection is to this cluster's leader.
func (n *Node) ReadGaps(ctx context.Context, q *seqpb.ReadGapsRequest) (*seqpb.ReadGapsReply, error) {
	k, err := keyOf(q.Key)
	if err != nil {
		return nil, err
	}
	if r := n.linearizable(ctx); r != nil {
		return &seqpb.ReadGapsReply{Refusal: r}, nil
	}
	rep := &seqpb.ReadGapsReply{}
	if err := n.fsm.read(func(st *state.State) {
		if rep.Elsewhere = !st.MaySpeak(k); !rep.Elsewhere {
			rep.Gaps = gapsPB(st.Keys.Gaps(k))
		}
	}); err != nil {
		return nil, err
	}
	return rep, nil
}

func gapsPB(gaps []state.Gap) []*seqpb.Gap {
	out := make([]*seqpb.Gap, len(gaps))
	for i, g := range gaps {
		out[i] = &seqpb.Gap{From: uint64(g.From), To: uint64(g.To), Cause: causeText(g.Cause)}
	}
	return out
}

func causeText(c state.Cause) string {
	switch c {
	case state.CauseMachineLoss:
		return "machine loss"
	case state.CauseAdvance:
		return "advance"
	case state.CauseRestore:
		return "restore"
	}
	return fmt.Sprintf("cause %d", c)
}

func keyOf(r *seqpb.KeyRef) (ids.Key, error) {
	if r == nil || r.Space > 1<<16-1 {
		return ids.Key{}, wire.Refusef(seqpb.Code_CODE_INVALID_ARGUMENT, "a key without a valid space")
	}
	return ids.Key{Space: ids.SpaceID(r.Space), Hi: r.Hi, Lo: r.Lo}, nil
}

// ackBeforeCommit is the bug of that name: it answers what the batch would do,
// and proposes it without waiting.
func (n *Node) ackBeforeCommit(b state.Batch) (*seqpb.ExecuteReply, error) {
	var rep state.Reply
	err := n.fsm.read(func(st *state.State) {
		guess := state.State{Meta: st.Meta.Clone(), Bugs: st.Bugs, Keys: &guessKeys{
			Keys: st.Keys, records: map[ids.Key]state.Record{}, gaps: map[ids.Key][]state.Gap{},
		}}
		rep = guess.Apply(n.fsm.applied+1, b)
	})
	if err != nil {
		return nil, err
	}
	if n.calls.enter() {
		go func() {
			defer n.calls.leave()
			_ = n.raft.Apply(state.EncodeCommand(nil, b), enqueueTimeout).Error()
		}()
	}
	return &seqpb.ExecuteReply{Outcome: state.EncodeReply(nil, rep)}, nil
}

// guessKeys are changes on top of keys that stay as they are.
type guessKeys struct {
	state.Keys
	records map[ids.Key]state.Record
	gaps    map[ids.Key][]state.Gap
}

func (g *guessKeys) Get(k ids.Key) (state.Record, bool) {
	if r, ok := g.records[k]; ok {
		return r, true
	}
	return g.Keys.Get(k)
}

func (g *guessKeys) Put(k ids.Key, r state.Record) { g.records[k] = r }

func (g *guessKeys) Gaps(k ids.Key) []state.Gap {
	if gaps, ok := g.gaps[k]; ok {
		return gaps
	}
	return g.Keys.Gaps(k)
}

func (g *guessKeys) PutGaps(k ids.Key, gaps []state.Gap) { g.gaps[k] = gaps }
