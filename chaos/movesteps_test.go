package chaos

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// moveSteps are what seqctl set status says of a move, in this order; aborting instead
// of what follows.
var moveSteps = []string{"prepare", "copying", "frozen", "sealed", "committed", "done", "aborting"}

// moveWatch looks at a move as closely as it can.
type moveWatch struct {
	t         *testing.T
	id        uint64
	directory *rpc.SetAdminConn
	// source and target are their leaders.
	source, target *rpc.SetsConn
	from, to       string
	clusterID      string
	// ctl starts the move.
	ctl *ctlRun
	// seen is when there was a move for the first time.
	seen time.Time
}

// watchMove is for the next move from one Set to another, which need not have started.
func (f *fleet) watchMove(t *testing.T, id uint64, from, to string) *moveWatch {
	t.Helper()
	w := &moveWatch{t: t, id: id, from: from, to: to}
	st, err := f.p.Status(t.Context())
	must(t, err)
	w.clusterID = st.ClusterId
	w.directory, err = rpc.DialSetAdmin(f.leaderOf(t, "s1").RPCAddr)
	must(t, err)
	w.source, err = rpc.DialSets(f.leaderOf(t, from).RPCAddr)
	must(t, err)
	w.target, err = rpc.DialSets(f.leaderOf(t, to).RPCAddr)
	must(t, err)
	return w
}

func (w *moveWatch) close() {
	_ = w.directory.Close()
	_ = w.source.Close()
	_ = w.target.Close()
}

// look asks the directory's leader; nil if it does not answer, or knows no such move yet.
func (w *moveWatch) look(ctx context.Context) *seqpb.MoveStatus {
	m, _ := w.ask(ctx)
	return m
}

// ask answers nil of a move that has not started.
func (w *moveWatch) ask(ctx context.Context) (*seqpb.MoveStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	rep, err := w.directory.SetMoves(ctx, &seqpb.SetMovesRequest{Id: w.id})
	switch {
	case err != nil:
		return nil, err
	case len(rep.Moves) == 1:
		return rep.Moves[0], nil
	case rep.Refusal.GetCode() != seqpb.RefusalCode_REFUSAL_INVALID:
		return nil, errors.New(rep.Refusal.GetMessage())
	}
	return nil, nil
}

// until looks until the move is in a step, with so many parts moved before, or is over, or
// has not started when the seqctl that should start it has ended.
func (w *moveWatch) until(ctx context.Context, parts uint32, steps ...string) (m *seqpb.MoveStatus, in bool) {
	for ; ctx.Err() == nil; pause(w.t, 200*time.Microsecond) {
		failed := w.ctl.over() // before the look
		m = w.look(ctx)
		if m != nil && w.seen.IsZero() {
			w.seen = time.Now()
		}
		switch {
		case m == nil && failed:
			return nil, false
		case m == nil:
		case slices.Contains(steps, m.State) && (m.Parts >= parts || m.State == "done"):
			return m, true
		case isOver(m):
			return m, false
		}
	}
	return m, false
}

func isOver(m *seqpb.MoveStatus) bool { return m.State == "done" || m.State == "aborted" }

// stillIn tells whether a move that was in a step has not gone on from there. Without the
// directory's leader the two Sets say how far they are, which does not tell a seal from
// the commit that follows it.
func (w *moveWatch) stillIn(ctx context.Context, was *seqpb.MoveStatus) bool {
	if was.State == "done" {
		return true
	}
	if m, err := w.ask(ctx); err == nil {
		return m == nil && was.State == "prepare" || m.GetState() == was.State && m.GetParts() == was.Parts
	}
	out, in := w.phase(ctx, w.source, w.from), w.phase(ctx, w.target, w.to)
	switch was.State {
	case "prepare":
		return out.Part == 0 && in.Part == 0
	case "copying":
		return out.Part == 0 || out.Phase == "thawed" || out.Phase == "gone" && in.Phase != "active" || out.Part < in.Part
	case "frozen":
		return out.Phase == "frozen"
	case "sealed":
		return out.Phase == "sealed"
	case "committed":
		return out.Phase == "sealed" || out.Phase == "gone" && out.Part == in.Part
	case "aborting":
		return out.Phase != "thawed"
	}
	return false
}

func (w *moveWatch) phase(ctx context.Context, of *rpc.SetsConn, set string) *seqpb.PartStateReply {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	rep, err := of.PartState(ctx, &seqpb.PartStateRequest{ClusterId: w.clusterID, Set: set, Move: w.id})
	if err != nil {
		return &seqpb.PartStateReply{}
	}
	return rep
}
