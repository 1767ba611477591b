package storesvr

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// DrainServer is the sending end of Admin.Drain.
type DrainServer interface {
	Context() context.Context
	Send(*seqpb.DrainProgress) error
}

// Drain moves every section off a node and tells how far it is.
func (n *Node) Drain(q *seqpb.DrainRequest, s seqpb.Admin_DrainServer) error {
	return n.ServeDrain(q, s)
}

// ServeDrain is Drain for any stream.
func (n *Node) ServeDrain(q *seqpb.DrainRequest, s DrainServer) error {
	ctx := s.Context()
	refuse := func(r *seqpb.Refusal) error { return s.Send(&seqpb.DrainProgress{Node: q.Node, Refusal: r}) }
	l := n.leads()
	if l == nil {
		_, err := toLeader(ctx, n, func(ctx context.Context, c AdminConn) (struct{}, error) { return struct{}{}, passDrain(ctx, c, q, s) })
		if errors.Is(err, errNoForward) {
			return refuse(n.notLeaderRefusal())
		}
		return err
	}
	w, r, err := n.beginDrain(ctx, q.Node)
	if err != nil {
		return err
	}
	if r != nil {
		return refuse(r)
	}
	return w.follow(ctx, l, s)
}

func passDrain(ctx context.Context, c AdminConn, q *seqpb.DrainRequest, s DrainServer) error {
	from, err := c.Drain(ctx, q)
	if err != nil {
		return err
	}
	for {
		p, err := from.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(p); err != nil {
			return err
		}
	}
}

// drainWatch counts what becomes of the sections that a node had.
type drainWatch struct {
	n     *Node
	node  string
	began time.Time
	// had are the epochs in which the node owned sections at the beginning.
	had map[ids.Section]ids.Epoch
	// lost are those of them that ended without a hand-back.
	lost map[ids.Section]bool
}

func (n *Node) beginDrain(ctx context.Context, node string) (*drainWatch, *seqpb.Refusal, error) {
	w := &drainWatch{n: n, node: node, began: time.Now(), had: map[ids.Section]ids.Epoch{}, lost: map[ids.Section]bool{}}
	var known, others, already bool
	if err := n.fsm.read(func(st *state.State) {
		m := &st.Meta
		known, already = knowsNode(m, node), m.Draining[node]
		for id, s := range m.Sessions {
			others = others || s.Node != node && st.Eligible(id)
		}
		for i := range m.Sections {
			if o := m.Sessions[m.Sections[i].Owner]; o != nil && o.Node == node {
				w.had[ids.Section(i)] = m.Sections[i].Epoch
			}
		}
	}); err != nil {
		return nil, nil, err
	}
	switch {
	case !known:
		return nil, invalid("there is no allocsvr %q", node), nil
	case !others:
		return nil, invalid("%q is the only allocsvr that may serve: start another one, or undrain one, first", node), nil
	case already:
		return w, nil, nil
	}
	rep, err := n.propose(ctx, state.SetDraining{Node: node, Draining: true})
	if r := n.refusalOf(err); r != nil {
		return nil, r, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if rep.Refusal != state.OK {
		return nil, invalid("node %q was refused", node), nil
	}
	return w, nil, nil
}

// follow sends progress whenever there is some, until nothing is left.
func (w *drainWatch) follow(ctx context.Context, l *leadership, s DrainServer) error {
	first, last := true, uint32(0)
	for {
		changed := w.n.changed.wait()
		p, err := w.progress()
		if err != nil {
			return err
		}
		if first || p.Remaining != last || p.Done {
			if err := s.Send(p); err != nil {
				return err
			}
		}
		if p.Done {
			return nil
		}
		first, last = false, p.Remaining
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-l.ctx.Done():
			return s.Send(&seqpb.DrainProgress{Node: w.node, Refusal: w.n.notLeaderRefusal()})
		}
	}
}

func (w *drainWatch) progress() (*seqpb.DrainProgress, error) {
	p := &seqpb.DrainProgress{Node: w.node, Ms: uint64(time.Since(w.began) / time.Millisecond)}
	draining := false
	err := w.n.fsm.read(func(st *state.State) {
		m := &st.Meta
		draining = m.Draining[w.node]
		for i := range m.Sections {
			sec := &m.Sections[i]
			if o := m.Sessions[sec.Owner]; o != nil && o.Node == w.node {
				p.Remaining++
			}
			if e, had := w.had[ids.Section(i)]; had {
				if sec.Epoch != e || sec.Owner == 0 {
					p.Moved++
				}
				if w.n.fsm.lost[ids.Section(i)] == e {
					w.lost[ids.Section(i)] = true
				}
			}
		}
	})
	if err != nil {
		return nil, err
	}
	p.Lost = uint64(len(w.lost))
	p.Done = p.Remaining == 0
	if !p.Done && !draining {
		p.Refusal = invalid("node %q was undrained meanwhile", w.node)
		p.Done = true
	}
	return p, nil
}
