package client

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
)

// refreshSet asks for the owners of one Set, of that Set itself: its AllocSvrs, and
// the StoreSvrs that the Set map names. It does not wait. Each Set has a goroutine
// of its own for that, so that a dead one delays nobody but its own callers. It is
// to be called by calls only, which Close waits for before it ends the goroutines.
func (r *routes) refreshSet(name string) {
	r.mu.Lock()
	want := r.sets[name]
	if want == nil {
		want = make(chan struct{}, 1)
		r.sets[name] = want
		r.background.Go(func() { r.runRefreshSet(r.base, name, want) })
	}
	r.mu.Unlock()
	select {
	case want <- struct{}{}:
	default: // one is asked for already
	}
}

// runRefreshSet carries out the wishes for one Set: one at a time, and not too often.
func (r *routes) runRefreshSet(ctx context.Context, name string, want <-chan struct{}) {
	for {
		select {
		case <-want:
		case <-ctx.Done():
			return
		}
		next := time.NewTimer(refreshEvery)
		for _, addr := range r.ofSet(name) {
			err := r.fetchFrom(ctx, addr, name)
			if err == nil || ctx.Err() != nil {
				break
			}
			r.opts.logger.Info("routes of a set not given", zap.String("set", name), zap.String("node", addr), zap.Error(err))
		}
		select {
		case <-next.C:
		case <-ctx.Done():
			next.Stop()
			return
		}
	}
}

// ofSet are the addresses that know a Set's owners: those that answer first.
func (r *routes) ofSet(name string) []string {
	s := r.hub.Load().Set(name)
	if s == nil {
		return nil
	}
	var out, stalled []string
	for i := range s.Nodes {
		out = append(out, s.Nodes[i].Addr)
	}
	out = append(out, s.Stores...)
	if len(out) > 0 {
		k := r.opts.rand.intN(len(out))
		out = slices.Concat(out[k:], out[:k])
	}
	out = slices.DeleteFunc(out, func(addr string) bool {
		late := r.pool.stalls(addr)
		if late {
			stalled = append(stalled, addr)
		}
		return late
	})
	return append(out, stalled...)
}
