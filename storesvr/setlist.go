package storesvr

import (
	"context"
	"errors"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// SetList tells of all Sets, each asked for a short time how it is.
func (n *Node) SetList(ctx context.Context, q *seqpb.SetListRequest) (*seqpb.SetListReply, error) {
	if !n.directs() {
		return toDirectory(ctx, n, func(ctx context.Context, c SetAdminConn) (*seqpb.SetListReply, error) { return c.SetList(ctx, q) })
	}
	var p sets.Published
	var moves []sets.Move
	var spaces []ids.Space
	if err := n.fsm.read(func(st *state.State) {
		p, moves, spaces = st.Meta.Published, st.Meta.Directory.Moves, st.Meta.Genesis.Spaces
	}); err != nil {
		return nil, err
	}
	rep := &seqpb.SetListReply{MapVersion: p.Map.Version, Unassigned: rangeTexts(spaces, p.Map.Owned(sets.Unassigned))}
	done := make(chan struct{}, len(p.Sets))
	for _, info := range p.Sets {
		s := &seqpb.SetSummary{
			Name: info.Name, Directory: info.Name == p.Home, Ranges: rangeTexts(spaces, p.Map.Owned(info.Name)), Stores: info.Stores,
		}
		for i := range moves {
			if m := &moves[i]; !m.Over() && (m.From == info.Name || m.To == info.Name) {
				s.Moves = append(s.Moves, uint64(m.ID))
			}
		}
		rep.Sets = append(rep.Sets, s)
		go func() {
			n.look(ctx, s)
			done <- struct{}{}
		}()
	}
	for range p.Sets {
		<-done
	}
	return rep, nil
}

// look asks a Set how it is. It takes setAskTimeout at most.
func (n *Node) look(ctx context.Context, s *seqpb.SetSummary) {
	ctx, cancel := context.WithTimeout(ctx, setAskTimeout)
	defer cancel()
	rep, err := n.statusOf(ctx, s)
	if err != nil {
		s.Health = "unreachable"
		return
	}
	leader := false
	for _, set := range rep.Sets {
		if set.Name != s.Name {
			continue
		}
		for _, st := range set.Stores {
			leader = leader || st.Role == "leader"
			if st.Role == "leader" || st.Applied > 0 {
				s.StoresUp++
			}
		}
		for _, a := range set.Allocs {
			if a.State != "silent" {
				s.AllocsUp++
			}
			s.Keys += a.Keys
			s.Rate += a.Rate
		}
	}
	switch {
	case !leader:
		s.Health = "no leader"
	case s.AllocsUp == 0:
		s.Health = "no allocsvr"
	default:
		s.Health = "ok"
	}
}

// statusOf is the first answer of a Set's stores, all of which are asked at once.
func (n *Node) statusOf(ctx context.Context, s *seqpb.SetSummary) (*seqpb.StatusReply, error) {
	if s.Name == n.cfg.Set {
		return n.Status(ctx, &seqpb.StatusRequest{})
	}
	if n.cfg.DialAdmin == nil || len(s.Stores) == 0 {
		return nil, errNoForward
	}
	type answer struct {
		rep *seqpb.StatusReply
		err error
	}
	answers := make(chan answer, len(s.Stores))
	for _, addr := range s.Stores {
		go func() {
			c, err := n.cfg.DialAdmin(addr)
			if err != nil {
				answers <- answer{err: err}
				return
			}
			defer c.Close()
			rep, err := c.Status(ctx, &seqpb.StatusRequest{})
			answers <- answer{rep, err}
		}()
	}
	var out *seqpb.StatusReply
	var errs []error
	// All are waited for: none may outlive the call. The leader's view is the best.
	for range s.Stores {
		a := <-answers
		switch {
		case a.err != nil:
			errs = append(errs, a.err)
		case out == nil || better(a.rep, out):
			out = a.rep
		}
	}
	if out == nil {
		return nil, errors.Join(errs...)
	}
	return out, nil
}

// better: it knows of more leases.
func better(a, b *seqpb.StatusReply) bool {
	count := func(r *seqpb.StatusReply) (n int) {
		for _, s := range r.Sets {
			for _, a := range s.Allocs {
				if a.LeaseMs > 0 {
					n++
				}
			}
		}
		return n
	}
	return count(a) > count(b)
}
