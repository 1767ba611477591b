package allocsvr

import (
	"context"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// Result of an allocation: First, First+1 … First+Count−1.
type Result struct {
	First ids.Seq
	Count uint32
	// HoleFrom..HoleTo may never have been issued; HoleTo is 0 for no hole, else First−1.
	HoleFrom, HoleTo ids.Seq
	Replayed         bool
}

// Prev is the number before First.
func (r Result) Prev() ids.Seq { return r.First - 1 }

// Spaces are the cluster's; none while they are not known yet.
func (s *Server) Spaces() []ids.Space {
	if w := s.world.Load(); w != nil {
		return w.spaces
	}
	return s.hub.Load().Spaces
}

// Space finds a space of keys by its name.
func (s *Server) Space(name string) (ids.Space, error) {
	w, err := s.present()
	if err != nil {
		return ids.Space{}, err
	}
	sp, ok := w.space(name)
	if !ok {
		return ids.Space{}, invalid("there is no space %q", name)
	}
	return sp, nil
}

// AllocOne issues n consecutive numbers of one key, made with ids.Space, for
// callers in this process. The error is a *Failure, or a *wire.Refused when the
// call was wrong or the node does not serve at all. It waits at most until ctx's
// deadline, or Config.MaxWait.
func (s *Server) AllocOne(ctx context.Context, key ids.Key, n uint32, requestID *[requestIDBytes]byte) (Result, error) {
	w, err := s.arrived(ctx, s.cfg.MaxWait)
	if err != nil {
		return Result{}, err
	}
	if n == 0 || n > s.cfg.MaxN {
		return Result{}, invalid("count %d is outside [1, %d]", n, s.cfg.MaxN)
	}
	if !w.knows(key) {
		return Result{}, wire.Refusef(seqpb.Code_CODE_INVALID_ARGUMENT, "there is no space %d", key.Space)
	}
	asks, out := [1]ask{{key: key, n: n, id: requestID}}, [1]answer{}
	if requestID != nil {
		s.allocateIdentified(ctx, w, asks[:], out[:], s.cfg.MaxWait)
	} else {
		s.allocate(ctx, w, asks[:], out[:], s.cfg.MaxWait)
	}
	o := &out[0]
	if o.fail != nil {
		return Result{}, o.fail
	}
	return Result{First: o.first, Count: n, HoleFrom: o.holeFrom, HoleTo: o.holeTo, Replayed: o.replayed}, nil
}

// CurrentOne reads the last number issued of one key; see AllocOne for errors.
func (s *Server) CurrentOne(ctx context.Context, key ids.Key) (ids.Seq, error) {
	w, err := s.arrived(ctx, s.cfg.MaxWait)
	if err != nil {
		return 0, err
	}
	if !w.knows(key) {
		return 0, invalid("there is no space %d", key.Space)
	}
	rs := [1]reading{{key: key}}
	s.current(ctx, w, rs[:], s.cfg.MaxWait)
	if rs[0].fail != nil {
		return 0, rs[0].fail
	}
	return rs[0].value, nil
}

func (w *world) knows(k ids.Key) bool {
	for _, sp := range w.spaces {
		if sp.ID == k.Space {
			return true
		}
	}
	return false
}
