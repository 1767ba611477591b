package storesvr

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/disk"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// setWaitMax bounds how long a question of another Set waits for news.
	setWaitMax = 30 * time.Second
	// setWaitsMax bounds the questions that wait; more are told Busy.
	setWaitsMax = 1024
	// setCommandsMax bounds other Sets' commands under way; more are told Busy.
	setCommandsMax = 64
	// exportMax is the most records of one page, exportBytesMax about the most bytes.
	exportMax      = 16 << 10
	exportBytesMax = 2 << 20
	// countMax is how many keys are counted at once.
	countMax = 64 << 10
)

var _ seqpb.Sets = (*Node)(nil)

// Directory answers the published part of the directory, when it is newer than
// what the caller has, or after a while.
func (n *Node) Directory(ctx context.Context, q *seqpb.DirectoryRequest) (*seqpb.DirectoryReply, error) {
	refuse := func(r *seqpb.Refusal) (*seqpb.DirectoryReply, error) { return &seqpb.DirectoryReply{Refusal: r}, nil }
	if q.Cluster != n.cfg.Cluster {
		return refuse(refusal(seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER, "this store is of cluster %q, not %q: check the addresses of the directory", n.cfg.Cluster, q.Cluster))
	}
	ctx, cancel := context.WithTimeout(ctx, min(time.Duration(q.WaitMs)*time.Millisecond, setWaitMax))
	defer cancel()
	if !take(n.setWaits) {
		return refuse(refusal(seqpb.RefusalCode_REFUSAL_BUSY, "%d questions wait for news of the directory, no more are taken", setWaitsMax))
	}
	defer func() { <-n.setWaits }()
	for {
		changed := n.changed.wait()
		rep := &seqpb.DirectoryReply{}
		var version uint64
		if err := n.fsm.read(func(st *state.State) {
			m := &st.Meta
			g := &m.Genesis
			switch {
			case g.Sections == 0:
				rep.Refusal = refusal(seqpb.RefusalCode_REFUSAL_NOT_READY, "this set is not founded yet")
			case q.ClusterId != "" && q.ClusterId != g.ClusterID:
				rep.Refusal = refusal(seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER, "cluster %q has id %s, not %s: it was founded anew or restored", g.Cluster, g.ClusterID, q.ClusterId)
			case m.Directory == nil:
				rep.Refusal = invalid("set %q does not have the directory, set %q has: name the addresses of its stores", g.Set, m.Published.Home)
			default:
				version = m.Directory.Map.Version
				rep.Cluster, rep.ClusterId, rep.Spaces = g.Cluster, g.ClusterID, wire.Spaces(g.Spaces)
				rep.Published = sets.EncodePublished(nil, &m.Directory.Published)
			}
		}); err != nil {
			return nil, err
		}
		if rep.Refusal != nil || version > q.WaitVersion || ctx.Err() != nil {
			return rep, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		case <-n.closing:
			return refuse(refusal(seqpb.RefusalCode_REFUSAL_NOT_READY, "%v", errStopping))
		}
	}
}

func take(c chan struct{}) bool {
	select {
	case c <- struct{}{}:
		return true
	default:
		return false
	}
}

// checkSet refuses what is meant for another cluster or Set.
func (n *Node) checkSet(clusterID, set string) *seqpb.Refusal {
	if r := n.checkCluster(clusterID); r != nil {
		return r
	}
	if set != n.cfg.Set {
		return invalid("this store is of set %q, not %q", n.cfg.Set, set)
	}
	return nil
}

// Command commits a command of a part in this Set.
func (n *Node) Command(ctx context.Context, q *seqpb.SetCommandRequest) (*seqpb.SetCommandReply, error) {
	refuse := func(r *seqpb.Refusal) (*seqpb.SetCommandReply, error) { return &seqpb.SetCommandReply{Refusal: r}, nil }
	if n.leads() == nil {
		return refuse(n.notLeaderRefusal())
	}
	if r := n.checkSet(q.ClusterId, q.Set); r != nil {
		return refuse(r)
	}
	c, r := n.readCommand(q.Command)
	if r != nil {
		return refuse(r)
	}
	if !take(n.setCommands) {
		return refuse(refusal(seqpb.RefusalCode_REFUSAL_BUSY, "%d commands of other sets are under way, no more are taken", setCommandsMax))
	}
	defer func() { <-n.setCommands }()
	// As it came: it may have thousands of records. The buffer is the caller's.
	rep, err := n.proposeEncoded(ctx, slices.Clone(q.Command))
	if r := n.refusalOf(err); r != nil {
		return refuse(r)
	}
	if err != nil {
		return nil, err
	}
	if rep.Refusal == state.OK {
		n.counts.imported.Add(uint64(recordsIn(c)))
	}
	return &seqpb.SetCommandReply{Outcome: state.EncodeReply(nil, rep)}, nil
}

func recordsIn(c state.Command) int {
	switch c := c.(type) {
	case state.Import:
		return len(c.Records)
	case state.Preload:
		return len(c.Records)
	}
	return 0
}

// readCommand takes the commands of parts, and word of where a Set's stores are.
func (n *Node) readCommand(b []byte) (state.Command, *seqpb.Refusal) {
	if len(b) > batchBytesMax {
		return nil, invalid("a command of %d bytes, at most %d are allowed", len(b), batchBytesMax)
	}
	c, err := state.DecodeCommand(b)
	if err != nil {
		return nil, invalid("%v", err)
	}
	switch c.(type) {
	case state.Freeze, state.Thaw, state.Seal, state.Drop, state.Import, state.Preload, state.Activate, state.Discard, state.EndMove:
		return c, nil
	case state.UpdateSet:
		return c, nil
	}
	return nil, invalid("a %T is no command of a move", c)
}

// PartState answers how far this Set is with a move. With a wait it answers when
// no session has to vacate the range any more, or after a while. Asked for itself,
// a store answers without its leader.
func (n *Node) PartState(ctx context.Context, q *seqpb.PartStateRequest) (*seqpb.PartStateReply, error) {
	refuse := func(r *seqpb.Refusal) (*seqpb.PartStateReply, error) { return &seqpb.PartStateReply{Refusal: r}, nil }
	if q.Local {
		if r := n.checkSet(q.ClusterId, q.Set); r != nil {
			return refuse(r)
		}
		return n.self(), nil
	}
	if r := n.linearizable(ctx); r != nil {
		return refuse(r)
	}
	if r := n.checkSet(q.ClusterId, q.Set); r != nil {
		return refuse(r)
	}
	if !take(n.setWaits) {
		return refuse(refusal(seqpb.RefusalCode_REFUSAL_BUSY, "%d questions wait, no more are taken", setWaitsMax))
	}
	defer func() { <-n.setWaits }()
	wctx, cancel := context.WithTimeout(ctx, min(time.Duration(q.WaitMs)*time.Millisecond, setWaitMax))
	defer cancel()
	for {
		changed := n.changed.wait()
		rep := &seqpb.PartStateReply{Version: state.MovesVersion, Store: n.cfg.ID}
		if q.Move == 0 {
			rep = n.self()
		}
		if err := n.fsm.read(func(st *state.State) { partState(&st.Meta, sets.MoveID(q.Move), rep) }); err != nil {
			return nil, err
		}
		if rep.Waiting == 0 || wctx.Err() != nil {
			return rep, nil
		}
		if n.leads() == nil {
			return refuse(n.notLeaderRefusal())
		}
		select {
		case <-changed:
		case <-wctx.Done():
		case <-n.closing:
			return refuse(refusal(seqpb.RefusalCode_REFUSAL_NOT_READY, "%v", errStopping))
		}
	}
}

// self is what this store is, whatever its Set is at.
func (n *Node) self() *seqpb.PartStateReply {
	return &seqpb.PartStateReply{Version: state.MovesVersion, Store: n.cfg.ID, FreeBytes: n.freeBytes()}
}

// freeBytes of this node's disk; 0 is not known.
func (n *Node) freeBytes() uint64 {
	if n.st.Free == nil {
		return 0
	}
	free, err := n.st.Free()
	if err != nil {
		n.log.Warn("how much room the disk has is not known", zap.Error(err))
		return 0
	}
	return max(1, free)
}

func partState(m *state.Meta, id sets.MoveID, rep *seqpb.PartStateReply) {
	rep.Ended = id <= m.MovesEnded
	if o := m.Out[id]; o != nil {
		rep.Part, rep.Phase, rep.Waiting = uint32(o.Part), o.Phase.String(), uint32(len(o.Waiting))
	} else if in := m.In[id]; in != nil {
		rep.Part, rep.Phase = uint32(in.Part), in.Phase.String()
	}
}

// Verdict answers what the directory decided of a part.
func (n *Node) Verdict(ctx context.Context, q *seqpb.VerdictRequest) (*seqpb.VerdictReply, error) {
	if r := n.linearizable(ctx); r != nil {
		return &seqpb.VerdictReply{Refusal: r}, nil
	}
	if r := n.checkCluster(q.ClusterId); r != nil {
		return &seqpb.VerdictReply{Refusal: r}, nil
	}
	rep := &seqpb.VerdictReply{}
	err := n.fsm.read(func(st *state.State) {
		d := st.Meta.Directory
		if d == nil {
			rep.Refusal = invalid("set %q does not have the directory", n.cfg.Set)
			return
		}
		v := d.Verdict(sets.MoveID(q.Move), sets.Part(q.Part))
		rep.Verdict = v.String()
		if v == sets.VerdictCommitted || v == sets.VerdictOver {
			rep.Published = sets.EncodePublished(nil, &d.Published)
		}
	})
	return rep, err
}

// Export reads records as they are to be imported. What it answers is not older
// than the call; once the range is frozen and vacated it stays as it is.
func (n *Node) Export(ctx context.Context, q *seqpb.ExportRequest) (*seqpb.ExportReply, error) {
	refuse := func(r *seqpb.Refusal) (*seqpb.ExportReply, error) { return &seqpb.ExportReply{Refusal: r}, nil }
	r, after, err := exportRange(q)
	if err != nil {
		return nil, err
	}
	if r := n.linearizable(ctx); r != nil {
		return refuse(r)
	}
	if r := n.checkSet(q.ClusterId, q.Set); r != nil {
		return refuse(r)
	}
	if l := n.leads(); l != nil && q.HandBack {
		l.callIn(r)
	}
	if q.CountOnly {
		return n.countKeys(r, after)
	}
	limit := min(int(q.Limit), exportMax)
	if limit == 0 {
		limit = exportMax
	}
	if q.Digests {
		d := state.Digester{Every: limit}
		if every := int(q.DigestEvery); every > 0 {
			d.Every = every
		}
		rep, err := n.export(ctx, r, after, limit, func(int) func(*state.KeyedRecord) { return d.Add })
		if err == nil && q.DigestEvery > 0 {
			rep.Digest = d.Blocks()
		}
		if err == nil {
			rep.Checksum = d.Sum()
		}
		return rep, err
	}
	var w *state.PageWriter
	rep, err := n.export(ctx, r, after, limit, func(records int) func(*state.KeyedRecord) {
		w = state.NewPageWriter(records)
		return w.Add
	})
	if err != nil {
		return nil, err
	}
	rep.Records, rep.Checksum = w.Page(), w.Digester.Sum()
	n.counts.exported.Add(uint64(rep.Count))
	return rep, nil
}

func exportRange(q *seqpb.ExportRequest) (r sets.Range, after ids.Key, err error) {
	pb := q.Range
	if pb == nil || pb.Space == 0 || pb.Space > 1<<16-1 || pb.Lo > pb.Last {
		return r, after, wire.Refusef(seqpb.Code_CODE_INVALID_ARGUMENT, "an export without a valid range")
	}
	r = sets.Range{Space: ids.SpaceID(pb.Space), Lo: ids.Position(pb.Lo), Last: ids.Position(pb.Last)}
	if q.After != nil {
		if after, err = keyOf(q.After); err != nil {
			return r, after, err
		}
	}
	return r, after, nil
}

// export reads one page, all of it of one moment, while applying goes on. With how many
// records there are at most it asks for whom they are.
func (n *Node) export(ctx context.Context, r sets.Range, after ids.Key, limit int, visitor func(records int) func(*state.KeyedRecord)) (*seqpb.ExportReply, error) {
	page, last, done, meta, err := n.fsm.scanAt(disk.Filter{Within: &r, Ledgers: true}, after, limit)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	st := &state.State{Meta: meta, Bugs: n.cfg.Bugs.State}
	visit := visitor(len(page))
	rep := &seqpb.ExportReply{Count: uint32(len(page)), Done: done}
	bytes := 0
	for i := range page {
		if st.AtWork(page[i].Key, page[i].Record) {
			rep.Held++
		}
		e := state.Effective(st, page[i].Key, page[i].Record, page[i].Gaps)
		visit(&e)
		if bytes += exportBytes(&e); bytes > exportBytesMax && i+1 < len(page) {
			rep.Count, rep.Done, last = uint32(i+1), false, e.Key
			break
		}
	}
	if !rep.Done {
		rep.Last = &seqpb.KeyRef{Space: uint32(last.Space), Hi: last.Hi, Lo: last.Lo}
	}
	return rep, nil
}

// countKeys counts one page.
func (n *Node) countKeys(r sets.Range, after ids.Key) (*seqpb.ExportReply, error) {
	f := disk.Filter{Within: &r, Sections: 1}
	keys, last, done, err := n.fsm.count(f, after, countMax)
	if err != nil {
		return nil, err
	}
	rep := &seqpb.ExportReply{Count: uint32(keys), Done: done}
	if !done {
		rep.Last = &seqpb.KeyRef{Space: uint32(last.Space), Hi: last.Hi, Lo: last.Lo}
	}
	return rep, nil
}

// exportBytes is about how long a record is in an Export or an Import.
func exportBytes(e *state.KeyedRecord) int {
	const record, gap = 40, 24
	return record + gap*len(e.Gaps)
}

// commandText names a command for logs and reasons.
func commandText(c state.Command) string { return fmt.Sprintf("%T", c)[len("state."):] }
