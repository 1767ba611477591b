package allocsvr

import (
	"context"
	"time"

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

// Ask is one key of AllocEach: Key and N ask, Result and Err answer.
type Ask struct {
	Key ids.Key
	N   uint32
	Result
	// Err is as of AllocOne.
	Err error
}

// AllocEach answers every ask, for callers in this process. A key that is asked
// for twice gets its numbers in the order of the asks. Those that have to wait
// do so together, at most for wait. Warm keys cost no allocation.
func (s *Server) AllocEach(ctx context.Context, asks []Ask, wait time.Duration) {
	w, err := s.present()
	if err == nil && len(asks) > s.cfg.MaxBatchKeys {
		err = invalid("%d keys in one request, at most %d are taken: split it", len(asks), s.cfg.MaxBatchKeys)
	}
	if err != nil {
		for i := range asks {
			asks[i].Result, asks[i].Err = Result{}, err
		}
		return
	}
	b := newBatch(len(asks))
	defer b.recycle()
	n := 0
	for i := range asks {
		a := &asks[i]
		a.Result, a.Err = Result{}, nil
		switch {
		case a.N == 0 || a.N > s.cfg.MaxN:
			a.Err = invalid("count %d is outside [1, %d]", a.N, s.cfg.MaxN)
		case !w.knows(a.Key):
			a.Err = invalid("there is no space %d", a.Key.Space)
		default:
			b.asks[n] = ask{key: a.Key, n: a.N}
			n++
		}
	}
	s.allocate(ctx, w, b.asks[:n], b.out[:n], min(wait, s.cfg.MaxWait))
	n = 0
	for i := range asks {
		a := &asks[i]
		if a.Err != nil {
			continue
		}
		if o := &b.out[n]; o.fail != nil {
			a.Err = o.fail
		} else {
			a.Result = Result{First: o.first, Count: a.N, HoleFrom: o.holeFrom, HoleTo: o.holeTo}
		}
		n++
	}
}

// Read is one key of CurrentEach: Key asks, Value and Err answer.
type Read struct {
	Key   ids.Key
	Value ids.Seq
	Err   error
}

// CurrentEach reads the last number issued of each key; see AllocEach.
func (s *Server) CurrentEach(ctx context.Context, reads []Read, wait time.Duration) {
	w, err := s.present()
	if err == nil && len(reads) > s.cfg.MaxBatchKeys {
		err = invalid("%d keys in one request, at most %d are taken: split it", len(reads), s.cfg.MaxBatchKeys)
	}
	for i := range reads {
		if err == nil && !w.knows(reads[i].Key) {
			err = invalid("there is no space %d", reads[i].Key.Space)
		}
	}
	if err != nil {
		for i := range reads {
			reads[i].Value, reads[i].Err = 0, err
		}
		return
	}
	rs := make([]reading, len(reads))
	for i := range reads {
		rs[i].key = reads[i].Key
	}
	s.current(ctx, w, rs, min(wait, s.cfg.MaxWait))
	for i := range reads {
		reads[i].Value, reads[i].Err = rs[i].value, nil
		if rs[i].fail != nil {
			reads[i].Value, reads[i].Err = 0, rs[i].fail
		}
	}
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
