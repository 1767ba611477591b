package storesvr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// setAskTimeout bounds asking another Set how it is.
const setAskTimeout = time.Second

var _ seqpb.SetAdmin = (*Node)(nil)

// directs: this node may change the directory.
func (n *Node) directs() bool { return n.leads() != nil && n.hasDirectory() }

// toDirectory passes a call on to the directory's leader: from a follower there
// to its leader, from another Set to any of the directory's stores.
func toDirectory[R refusable](ctx context.Context, n *Node, call func(context.Context, SetAdminConn) (R, error)) (R, error) {
	var none R
	if n.cfg.DialSetAdmin == nil {
		return none, wire.Refusef(seqpb.Code_CODE_NOT_READY, "%v", errNoForward)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, forwardTimeout)
		defer cancel()
	}
	addrs := n.addresses(n.directorySet())
	if n.hasDirectory() {
		addrs = []string{n.leaderRPC()}
	}
	last := errors.New("no address is known")
	if n.hasDirectory() {
		last = errors.New("its set has none: are a majority of its stores running?")
	}
	for _, addr := range addrs {
		if addr == "" || addr == n.cfg.RPCAddr {
			continue
		}
		r, err := callSetAdmin(ctx, n, addr, call)
		switch {
		case err == nil && !again(r.GetRefusal()):
			return r, nil
		case err == nil:
			last = errors.New(r.GetRefusal().Message)
		case wire.CodeOf(err) == seqpb.Code_CODE_UNAVAILABLE || wire.CodeOf(err) == seqpb.Code_CODE_NOT_READY:
			last = err // it was surely not carried out
		default:
			return none, err
		}
	}
	return none, wire.Refusef(seqpb.Code_CODE_NOT_READY, "the directory's leader cannot be reached: %v", last)
}

func again(r *seqpb.Refusal) bool {
	return r.GetCode() == seqpb.RefusalCode_REFUSAL_NOT_LEADER || r.GetCode() == seqpb.RefusalCode_REFUSAL_NOT_READY
}

func callSetAdmin[R any](ctx context.Context, n *Node, addr string, call func(context.Context, SetAdminConn) (R, error)) (R, error) {
	var none R
	c, err := n.cfg.DialSetAdmin(addr)
	if err != nil {
		return none, err
	}
	defer c.Close()
	return call(ctx, c)
}

// decree commits a command of the directory; what it refuses is the operator's.
func (n *Node) decree(ctx context.Context, c state.Command) (state.Reply, *seqpb.Refusal, error) {
	rep, err := n.propose(ctx, c)
	if r := n.refusalOf(err); r != nil {
		return rep, r, nil
	}
	if err != nil {
		return rep, nil, err
	}
	if rep.Refusal != state.OK {
		text := rep.Detail
		if text == "" {
			text = rep.Refusal.String()
		}
		return rep, invalid("%s", text), nil
	}
	return rep, nil, nil
}

// SetCreate puts a Set that runs already into the map.
func (n *Node) SetCreate(ctx context.Context, q *seqpb.SetCreateRequest) (*seqpb.SetChangeReply, error) {
	if !n.directs() {
		return toDirectory(ctx, n, func(ctx context.Context, c SetAdminConn) (*seqpb.SetChangeReply, error) { return c.SetCreate(ctx, q) })
	}
	// The directory's own reasons first: they need nobody else.
	var r *seqpb.Refusal
	if err := n.fsm.read(func(st *state.State) {
		if wrong := st.Meta.Directory.Clone().CreateSet(q.Name, q.Stores); wrong != nil {
			r = invalid("%v", wrong)
		}
	}); err != nil {
		return nil, err
	}
	if r != nil {
		return &seqpb.SetChangeReply{Refusal: r}, nil
	}
	for _, addr := range q.Stores {
		if err := n.checkStore(ctx, q.Name, addr); err != nil {
			return &seqpb.SetChangeReply{Refusal: invalid("%v", err)}, nil
		}
	}
	if _, err := n.checkQuorum(ctx, q.Name, q.Stores); err != nil {
		return &seqpb.SetChangeReply{Refusal: invalid("%v", err)}, nil
	}
	return n.changeSets(ctx, state.CreateSet{Name: q.Name, Stores: q.Stores})
}

// SetRetire takes a Set that owns nothing out of the map.
func (n *Node) SetRetire(ctx context.Context, q *seqpb.SetRetireRequest) (*seqpb.SetChangeReply, error) {
	if !n.directs() {
		return toDirectory(ctx, n, func(ctx context.Context, c SetAdminConn) (*seqpb.SetChangeReply, error) { return c.SetRetire(ctx, q) })
	}
	return n.changeSets(ctx, state.RetireSet{Name: q.Name})
}

func (n *Node) changeSets(ctx context.Context, c state.Command) (*seqpb.SetChangeReply, error) {
	_, r, err := n.decree(ctx, c)
	if r != nil || err != nil {
		return &seqpb.SetChangeReply{Refusal: r}, err
	}
	rep := &seqpb.SetChangeReply{}
	err = n.fsm.read(func(st *state.State) { rep.MapVersion = st.Meta.Published.Map.Version })
	return rep, err
}

// checkStore asks a store whether it is what the operator says.
func (n *Node) checkStore(ctx context.Context, set, addr string) error {
	if n.cfg.DialAdmin == nil {
		return errNoForward
	}
	ctx, cancel := context.WithTimeout(ctx, setAskTimeout)
	defer cancel()
	c, err := n.cfg.DialAdmin(addr)
	if err != nil {
		return fmt.Errorf("store %s: %w", addr, err)
	}
	defer c.Close()
	rep, err := c.Status(ctx, &seqpb.StatusRequest{Local: true})
	own := n.clusterID()
	switch {
	case err != nil:
		return fmt.Errorf("store %s does not answer: %w: start it first", addr, err)
	case rep.Cluster != n.cfg.Cluster || rep.ClusterId != "" && rep.ClusterId != own:
		return fmt.Errorf("store %s is of cluster %q with id %q, not of %q with id %q", addr, rep.Cluster, rep.ClusterId, n.cfg.Cluster, own)
	case rep.ClusterId == "":
		return fmt.Errorf("store %s is not founded yet: is its setting directory right, and do a majority of its peers run?", addr)
	case len(rep.Sets) == 0 || rep.Sets[0].Name != set:
		return fmt.Errorf("store %s is not of set %q", addr, set)
	}
	return nil
}

// SetMove starts a move, or says what it would do.
func (n *Node) SetMove(ctx context.Context, q *seqpb.SetMoveRequest) (*seqpb.SetMoveReply, error) {
	if !n.directs() {
		return toDirectory(ctx, n, func(ctx context.Context, c SetAdminConn) (*seqpb.SetMoveReply, error) { return c.SetMove(ctx, q) })
	}
	refuse := func(r *seqpb.Refusal) (*seqpb.SetMoveReply, error) { return &seqpb.SetMoveReply{Refusal: r}, nil }
	var ranges []sets.Range
	for _, r := range q.Ranges {
		if r == nil || r.Space > 1<<16-1 {
			return refuse(invalid("a range without a valid space"))
		}
		ranges = append(ranges, sets.Range{Space: ids.SpaceID(r.Space), Lo: ids.Position(r.Lo), Last: ids.Position(r.Last)})
	}
	var plan []sets.Range
	var wrong error
	var spaces []ids.Space
	if err := n.fsm.read(func(st *state.State) {
		spaces = st.Meta.Genesis.Spaces
		plan, wrong = st.Meta.Directory.PlanMove(q.From, q.To, ranges, spaces)
	}); err != nil {
		return nil, err
	}
	if wrong != nil {
		return refuse(invalid("%s", sets.Text(wrong, spaces)))
	}
	total, r := n.checkMove(ctx, q, plan)
	if r != nil {
		return refuse(r)
	}
	if q.DryRun {
		return &seqpb.SetMoveReply{Move: &seqpb.MoveStatus{
			From: q.From, To: q.To, Ranges: rangeTexts(spaces, plan), State: "prepare", KeysTotal: total,
			Parts: uint32((total + uint64(n.cfg.PartKeys) - 1) / uint64(n.cfg.PartKeys)),
		}}, nil
	}
	rep, r, err := n.decree(ctx, state.StartMove{From: q.From, To: q.To, Ranges: ranges, NowMS: time.Now().UnixMilli()})
	if r != nil || err != nil {
		return &seqpb.SetMoveReply{Refusal: r}, err
	}
	n.log.Info("move started", zap.Uint64("move", uint64(rep.Move)), zap.String("from", q.From), zap.String("to", q.To))
	return n.answerMove(rep.Move)
}

func (n *Node) answerMove(id sets.MoveID) (*seqpb.SetMoveReply, error) {
	moves, err := n.moveStatuses(id)
	if err != nil {
		return nil, err
	}
	if len(moves) == 0 {
		return &seqpb.SetMoveReply{Refusal: invalid("%v", &sets.NoSuchMoveError{Move: id})}, nil
	}
	return &seqpb.SetMoveReply{Move: moves[0]}, nil
}

// SetMoves answers the moves.
func (n *Node) SetMoves(ctx context.Context, q *seqpb.SetMovesRequest) (*seqpb.SetMovesReply, error) {
	if !n.directs() {
		return toDirectory(ctx, n, func(ctx context.Context, c SetAdminConn) (*seqpb.SetMovesReply, error) { return c.SetMoves(ctx, q) })
	}
	moves, err := n.moveStatuses(sets.MoveID(q.Id))
	if err != nil {
		return nil, err
	}
	if q.Id != 0 && len(moves) == 0 {
		return &seqpb.SetMovesReply{Refusal: invalid("%v", &sets.NoSuchMoveError{Move: sets.MoveID(q.Id)})}, nil
	}
	return &seqpb.SetMovesReply{Moves: moves}, nil
}

// moveStatuses are one move, or all for 0.
func (n *Node) moveStatuses(id sets.MoveID) (out []*seqpb.MoveStatus, err error) {
	var moves []sets.Move
	var spaces []ids.Space
	if err := n.fsm.read(func(st *state.State) {
		moves, spaces = slices.Clone(st.Meta.Directory.Moves), st.Meta.Genesis.Spaces
	}); err != nil {
		return nil, err
	}
	for i := range moves {
		if m := &moves[i]; id == 0 || m.ID == id {
			out = append(out, n.moveStatus(m, spaces))
		}
	}
	return out, nil
}

func (n *Node) moveStatus(m *sets.Move, spaces []ids.Space) *seqpb.MoveStatus {
	s := &seqpb.MoveStatus{
		Id: uint64(m.ID), From: m.From, To: m.To, Ranges: rangeTexts(spaces, m.Ranges), Moved: rangeTexts(spaces, m.Moved()),
		State: m.State.String(), Reason: m.Reason, Keys: m.Keys, Parts: m.Parts, Checksum: fmt.Sprintf("%016x", m.Checksum),
		FrozenMaxMs: m.Frozen.MaxMS(), FrozenP99Ms: m.Frozen.P99MS(), StartedMs: uint64(m.StartedMS), EndedMs: uint64(m.EndedMS),
	}
	if m.Over() {
		if m.State == sets.MoveDone {
			s.KeysTotal = m.Keys // of one that was aborted nobody knows how many there would have been
		}
		if d := m.EndedMS - m.StartedMS; d > 0 {
			s.KeysPerSecond = float64(m.Keys) * 1000 / float64(d)
		}
		return s
	}
	p := n.moves.get(m.ID)
	if m.State == sets.MoveRunning {
		s.State = "prepare"
		if m.PartState == sets.PartCommitted {
			s.State = "committed"
		}
	}
	if p != nil {
		p.tell(m, s)
	}
	return s
}

// tell adds what only this leader knows.
func (p *progress) tell(m *sets.Move, s *seqpb.MoveStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.State == sets.MoveRunning {
		s.State = p.phase
	}
	if p.reason != "" {
		s.Reason = p.reason
	}
	s.KeysTotal = p.total
	if secs := time.Since(p.began).Seconds(); secs > 0 && m.Keys > p.first {
		s.KeysPerSecond = float64(m.Keys-p.first) / secs
	}
	// What stands still, or goes back, does not come to an end at any rate.
	if s.KeysPerSecond > 0 && p.total > m.Keys && p.reason == "" && m.State == sets.MoveRunning {
		s.EtaSeconds = float64(p.total-m.Keys) / s.KeysPerSecond
	}
}
