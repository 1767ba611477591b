package allocsvr

import (
	"context"
	"errors"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/session"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
)

// requestIDBytes is the length of a request id: a UUID.
const requestIDBytes = 16

// invalid refuses a whole request; nothing of it was done.
func invalid(format string, args ...any) error {
	return wire.Refusef(seqpb.Code_CODE_INVALID_ARGUMENT, format, args...)
}

// arrived is present for a request that may wait a little for the node to begin.
func (s *Server) arrived(ctx context.Context, wait time.Duration) (*world, error) {
	if !s.door.isOpen.Load() {
		s.atTheDoor(ctx, wait)
	}
	return s.present()
}

// arrivedInline is arrived for a request that says before it waits.
func (s *Server) arrivedInline(waits func() context.Context, wait time.Duration) (*world, error) {
	if !s.door.isOpen.Load() {
		s.atTheDoor(waits(), wait)
	}
	return s.present()
}

// present is the world to serve a request in, or why there is none.
func (s *Server) present() (*world, error) {
	if s.closed() {
		return nil, wire.Refusef(seqpb.Code_CODE_UNAVAILABLE, "this node is stopping")
	}
	w := s.world.Load()
	if w == nil {
		return nil, wire.Refusef(seqpb.Code_CODE_NOT_READY, "this node has no session yet: no leader of the store group has answered")
	}
	return w, nil
}

// patience is how long a request may wait: a little less than its caller will,
// so that the caller still hears why.
func (s *Server) patience(timeoutMs uint32) time.Duration {
	if timeoutMs == 0 {
		return s.cfg.MaxWait
	}
	d := time.Duration(timeoutMs) * time.Millisecond
	return min(d-min(d/10, 50*time.Millisecond), s.cfg.MaxWait)
}

// Alloc implements seqpb.Seq.
func (s *Server) Alloc(ctx context.Context, req *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
	rep := &seqpb.AllocReply{}
	if err := s.AllocInline(req, rep, func() context.Context { return ctx }); err != nil {
		return nil, err
	}
	return rep, nil
}

// AllocInline is Alloc into an empty reply, whose memory is used. It calls waits
// for a context before it does anything that may take long, and so never for
// warm keys.
func (s *Server) AllocInline(req *seqpb.AllocRequest, rep *seqpb.AllocReply, waits func() context.Context) error {
	wait := s.patience(req.TimeoutMs)
	w, err := s.arrivedInline(waits, wait)
	if err != nil {
		return err
	}
	b, err := s.parseAlloc(w, req)
	if err != nil {
		return err
	}
	defer b.recycle()
	asks, out := b.asks, b.out
	if len(req.RequestIds) > 0 {
		rep.WindowSinceMs = s.allocateIdentified(waits(), w, asks, out, wait)
	} else if cold := s.pass(w, asks, out, nil); len(cold) > 0 {
		s.allocateCold(waits(), w, asks, out, cold, wait)
	}
	rep.First = zeros(rep.First, len(out))
	for i := range out {
		o := &out[i]
		if o.fail != nil {
			rep.Failures = append(rep.Failures, failurePB(i, o.fail))
			continue
		}
		rep.First[i] = uint64(o.first)
		if o.replayed {
			rep.Replayed = append(rep.Replayed, uint32(i))
		}
		if o.holeTo != 0 {
			rep.Discontinuities = append(rep.Discontinuities, &seqpb.Discontinuity{Index: uint32(i), From: uint64(o.holeFrom), To: uint64(o.holeTo)})
		}
	}
	rep.MapVersion, rep.SetVersion, rep.Routes = s.versions(w, req.MapVersion, req.SetVersion)
	return nil
}

// zeros is n zeros, in the memory of b if they fit.
func zeros(b []uint64, n int) []uint64 {
	if cap(b) < n {
		return make([]uint64, n)
	}
	b = b[:n]
	clear(b)
	return b
}

// parseAlloc makes the asks of a request. Recycle what it answers.
func (s *Server) parseAlloc(w *world, req *seqpb.AllocRequest) (*batch, error) {
	sp, n, err := s.parseShape(w, req.Space, req.Uids, req.Names)
	if err != nil {
		return nil, err
	}
	if len(req.Counts) != 0 && len(req.Counts) != n {
		return nil, invalid("%d counts for %d keys: give one each, or none", len(req.Counts), n)
	}
	if len(req.RequestIds) != 0 && len(req.RequestIds) != n {
		return nil, invalid("%d request ids for %d keys: give one each, or none", len(req.RequestIds), n)
	}
	b := newBatch(n)
	if err := s.fill(b.asks, sp, req); err != nil {
		b.recycle()
		return nil, err
	}
	return b, nil
}

func (s *Server) fill(asks []ask, sp ids.Space, req *seqpb.AllocRequest) error {
	for i, id := range req.RequestIds {
		switch len(id) {
		case 0:
		case requestIDBytes:
			asks[i].id = (*[requestIDBytes]byte)(id)
			if *asks[i].id == ([requestIDBytes]byte{}) {
				// A UUID that its caller forgot to set: each message sent with it would
				// get the number of the first one.
				return invalid("request id %d is zero: use the UUID of what the number is for", i)
			}
		default:
			return invalid("request id %d has %d bytes, want 0 or %d", i, len(id), requestIDBytes)
		}
	}
	for i := range asks {
		a := &asks[i]
		var err error
		if a.key, err = parseKey(sp, i, req.Uids, req.Names); err != nil {
			return err
		}
		a.n = 1
		if len(req.Counts) != 0 {
			if a.n = req.Counts[i]; a.n == 0 || a.n > s.cfg.MaxN {
				return invalid("counts[%d] is %d: want 1 to %d", i, a.n, s.cfg.MaxN)
			}
		}
	}
	return nil
}

// parseKeys makes the keys of a request, all of one space.
func (s *Server) parseKeys(w *world, space string, uids []uint64, names []string) ([]ids.Key, error) {
	sp, n, err := s.parseShape(w, space, uids, names)
	if err != nil {
		return nil, err
	}
	keys := make([]ids.Key, n)
	for i := range keys {
		if keys[i], err = parseKey(sp, i, uids, names); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// parseShape finds the space of a request and how many keys it has.
func (s *Server) parseShape(w *world, space string, uids []uint64, names []string) (sp ids.Space, n int, err error) {
	sp, ok := w.space(space)
	n = len(uids) + len(names)
	switch {
	case !ok:
		err = invalid("there is no space %q", space)
	case n == 0:
		err = invalid("no keys")
	case n > s.cfg.MaxBatchKeys:
		err = invalid("%d keys in one request, at most %d are taken: split it", n, s.cfg.MaxBatchKeys)
	case len(uids) > 0 && len(names) > 0:
		err = invalid("both uids and names: space %q has %ss", sp.Name, sp.Kind)
	}
	return sp, n, err
}

// parseKey makes key i of uids or names, whichever there are.
func parseKey(sp ids.Space, i int, uids []uint64, names []string) (k ids.Key, err error) {
	if len(uids) > 0 {
		k, err = sp.UID(uids[i])
	} else {
		k, err = sp.NameKey(names[i])
	}
	if err != nil {
		return k, invalid("key %d: %v", i, err)
	}
	return k, nil
}

func failurePB(i int, f *Failure) *seqpb.Failure {
	return &seqpb.Failure{Index: uint32(i), Code: f.Code, Message: f.Message, OwnerAddr: f.Owner, OwnerSet: f.Set, Epoch: uint64(f.Epoch)}
}

// versions of the routes here, with what a caller who said its own lacks.
func (s *Server) versions(w *world, mapVersion, setVersion uint64) (m, set uint64, routes *seqpb.RouteTable) {
	t := s.hub.Load()
	if r := t.Set(w.set); r != nil {
		set = r.Version
	}
	if mapVersion != 0 || setVersion != 0 {
		routes = wire.Behind(t, w.set, mapVersion, setVersion)
	}
	return t.Map.Version, set, routes
}

// Current implements seqpb.Seq.
func (s *Server) Current(ctx context.Context, req *seqpb.CurrentRequest) (*seqpb.CurrentReply, error) {
	rep := &seqpb.CurrentReply{}
	if err := s.CurrentInline(req, rep, func() context.Context { return ctx }); err != nil {
		return nil, err
	}
	return rep, nil
}

// CurrentInline is to Current what AllocInline is to Alloc.
func (s *Server) CurrentInline(req *seqpb.CurrentRequest, rep *seqpb.CurrentReply, waits func() context.Context) error {
	wait := s.patience(req.TimeoutMs)
	w, err := s.arrivedInline(waits, wait)
	if err != nil {
		return err
	}
	keys, err := s.parseKeys(w, req.Space, req.Uids, req.Names)
	if err != nil {
		return err
	}
	rs := make([]reading, len(keys))
	for i, k := range keys {
		rs[i].key = k
	}
	if cold := s.readHeld(w, rs, nil, false); len(cold) > 0 {
		s.currentCold(waits(), w, rs, cold, wait, nil)
	}
	rep.Current = zeros(rep.Current, len(rs))
	for i := range rs {
		if rs[i].fail != nil {
			rep.Failures = append(rep.Failures, failurePB(i, rs[i].fail))
			continue
		}
		rep.Current[i] = uint64(rs[i].value)
	}
	rep.MapVersion, rep.SetVersion, rep.Routes = s.versions(w, req.MapVersion, req.SetVersion)
	return nil
}

// Gaps implements seqpb.Seq. Any node of the key's Set answers it, whoever owns the key.
func (s *Server) Gaps(ctx context.Context, req *seqpb.GapsRequest) (*seqpb.GapsReply, error) {
	w, err := s.present()
	if err != nil {
		return nil, err
	}
	var uids []uint64
	var names []string
	if sp, ok := w.space(req.Space); ok && sp.Kind == ids.KindName {
		names = []string{req.Name}
	} else if req.Name != "" {
		names = []string{req.Name} // a name in a space of uids: refused below
	} else {
		uids = []uint64{req.Uid}
	}
	keys, err := s.parseKeys(w, req.Space, uids, names)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.MaxWait)
	defer cancel()
	gaps, err := s.session.ReadGaps(ctx, keys[0])
	if errors.Is(err, session.ErrElsewhere) {
		return nil, wire.Refusef(seqpb.Code_CODE_NOT_OWNER, "%v", err)
	}
	if err != nil {
		return nil, s.readTooLate(err)
	}
	return &seqpb.GapsReply{Gaps: gaps}, nil
}

// GetRoutes implements seqpb.Seq.
func (s *Server) GetRoutes(_ context.Context, req *seqpb.RoutesRequest) (*seqpb.RouteTable, error) {
	t, err := s.knownRoutes(req)
	if err != nil {
		return nil, err
	}
	if req.Set != "" {
		d, _ := t.SinceOf(req.Set, 0, 0)
		return wire.Routes(d), nil
	}
	return wire.Routes(t.Whole()), nil
}

func (s *Server) knownRoutes(req *seqpb.RoutesRequest) (*router.Table, error) {
	if req.Cluster != "" && req.Cluster != s.cfg.Cluster {
		return nil, invalid("this is a node of cluster %q, not %q", s.cfg.Cluster, req.Cluster)
	}
	t := s.hub.Load()
	if !t.Known() {
		return nil, wire.Refusef(seqpb.Code_CODE_NOT_READY, "this node knows no routes yet")
	}
	return t, nil
}

// WatchRoutes implements seqpb.Seq: the whole table, then what changes. A slow
// consumer is not queued for; it gets the newest when it takes again.
func (s *Server) WatchRoutes(req *seqpb.RoutesRequest, stream seqpb.Seq_WatchRoutesServer) error {
	t, err := s.knownRoutes(req)
	if err != nil {
		return err
	}
	ctx := stream.Context()
	if err := stream.Send(wire.Routes(t.Whole())); err != nil {
		return err
	}
	for {
		next, err := s.hub.Wait(ctx, t)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return wire.Refusef(seqpb.Code_CODE_UNAVAILABLE, "this node is stopping")
		}
		d, news := next.Since(t.Versions())
		if next.ClusterID != t.ClusterID {
			d, news = next.Whole(), true
		}
		if news {
			if err := stream.Send(wire.Routes(d)); err != nil {
				return err
			}
		}
		t = next
	}
}
