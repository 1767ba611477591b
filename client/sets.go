package client

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/router"
)

// refreshFor asks for newer routes of keys in a Set, "" if it is not known which.
// It does not wait.
func (r *routes) refreshFor(set string) {
	r.refresh()
	if set != "" && len(r.hub.Load().Sets) > 1 {
		r.refreshSet(set)
	}
}

// refreshSet asks for the owners of one Set, of that Set itself: its AllocSvrs, and
// the StoreSvrs that the Set map names. It does not wait. Each Set has a goroutine
// of its own for that, so that a dead one delays nobody but its own callers.
func (r *routes) refreshSet(name string) {
	r.mu.Lock()
	if r.ending {
		r.mu.Unlock()
		return
	}
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

// end has no more goroutines begun.
func (r *routes) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ending = true
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
	return r.shuffled(append(nodesOf(s), s.Stores...))
}

func nodesOf(s *router.SetRoutes) (out []string) {
	for i := range s.Nodes {
		out = append(out, s.Nodes[i].Addr)
	}
	return out
}

// shuffled are addresses from any of them on, and last those that give no answers.
func (r *routes) shuffled(out []string) []string {
	var stalled []string
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
