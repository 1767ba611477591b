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
	w, b := s.takeIn(asks)
	if b == nil {
		return
	}
	defer b.recycle()
	s.allocate(ctx, w, b.asks, b.out, min(wait, s.cfg.MaxWait))
	b.handOut(asks)
}

// AllocReady is AllocEach for callers that must not wait: it answers the asks that
// can be answered now, and gives the others ErrWouldWait. It reports how many those
// are. Nothing was allocated for them; AllocEach goes on with them, in their order.
func (s *Server) AllocReady(asks []Ask) (waiting int) {
	w, b := s.takeIn(asks)
	if b == nil {
		return 0
	}
	defer b.recycle()
	b.cold = s.pass(w, b.asks, b.out, b.cold[:0])
	for _, i := range b.cold {
		b.out[i].fail = errWouldWait
	}
	b.handOut(asks)
	return len(b.cold)
}

// takeIn makes the batch of those asks that are not wrong in themselves. No batch:
// every ask has its error.
func (s *Server) takeIn(asks []Ask) (*world, *batch) {
	w, err := s.presentFor(len(asks))
	if err != nil {
		for i := range asks {
			asks[i].Result, asks[i].Err = Result{}, err
		}
		return nil, nil
	}
	b := newBatch(len(asks))
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
			b.asks[n].key, b.asks[n].n = a.Key, a.N
			n++
		}
	}
	b.asks, b.out = b.asks[:n], b.out[:n]
	return w, b
}

// handOut gives the asks that takeIn took their answers.
func (b *batch) handOut(asks []Ask) {
	n := 0
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

// presentFor is present, for that many keys at once.
func (s *Server) presentFor(keys int) (*world, error) {
	w, err := s.present()
	if err == nil && keys > s.cfg.MaxBatchKeys {
		err = invalid("%d keys in one request, at most %d are taken: split it", keys, s.cfg.MaxBatchKeys)
	}
	return w, err
}

// Read is one key of CurrentEach: Key asks, Value and Err answer.
type Read struct {
	Key   ids.Key
	Value ids.Seq
	Err   error
}

// CurrentEach reads the last number issued of each key; see AllocEach. Its error
// for a key that is wrong is that of all.
func (s *Server) CurrentEach(ctx context.Context, reads []Read, wait time.Duration) {
	w, r := s.takeInReads(reads)
	if r == nil {
		return
	}
	defer r.recycle()
	s.current(ctx, w, r.keys, min(wait, s.cfg.MaxWait), nil)
	r.handOut(reads)
}

// CurrentReady is to CurrentEach what AllocReady is to AllocEach.
func (s *Server) CurrentReady(reads []Read) (waiting int) {
	w, r := s.takeInReads(reads)
	if r == nil {
		return 0
	}
	defer r.recycle()
	rest := s.readHeld(w, r.keys, nil, false)
	for _, i := range rest {
		r.keys[i].fail = errWouldWait
	}
	r.handOut(reads)
	return len(rest)
}

func (s *Server) takeInReads(reads []Read) (*world, *readings) {
	w, err := s.presentFor(len(reads))
	for i := range reads {
		if err == nil && !w.knows(reads[i].Key) {
			err = invalid("there is no space %d", reads[i].Key.Space)
		}
	}
	if err != nil {
		for i := range reads {
			reads[i].Value, reads[i].Err = 0, err
		}
		return nil, nil
	}
	r := newReadings(len(reads))
	for i := range reads {
		r.keys[i].key = reads[i].Key
	}
	return w, r
}

func (r *readings) handOut(reads []Read) {
	for i := range reads {
		if k := &r.keys[i]; k.fail != nil {
			reads[i].Value, reads[i].Err = 0, k.fail
		} else {
			reads[i].Value, reads[i].Err = k.value, nil
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
	s.current(ctx, w, rs[:], s.cfg.MaxWait, nil)
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
