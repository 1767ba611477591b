package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
)

const (
	// refreshEvery is how often the whole table is fetched at most.
	refreshEvery = 200 * time.Millisecond
	// fetchTimeout is for one server to answer with its table.
	fetchTimeout = 500 * time.Millisecond
)

// routes keeps the table fresh: by subscription, by what replies carry, and by
// a fetch when both leave a doubt.
type routes struct {
	opts    *options
	servers []string // bootstrap addresses
	hub     *router.Hub
	pool    *pool

	// want has room for one wish for a refresh: more of them ask for the same.
	want chan struct{}
	// replace: the next fetched table replaces the held one even if it is older.
	replace atomic.Bool

	base       context.Context
	background *sync.WaitGroup

	mu sync.Mutex // guards what is below
	// ending: the client closes, and no goroutine may be begun any more.
	ending bool
	// sets has room for one wish for each Set; see refreshSet.
	sets map[string]chan struct{}
	// next counts up through the servers to ask.
	next int
	// watched is the address of the subscription under way, and stopWatch ends it.
	watched   string
	stopWatch context.CancelFunc
}

func newRoutes(opts *options, servers []string, t *router.Table) *routes {
	return &routes{
		opts: opts, servers: servers, hub: router.NewHub(t),
		want: make(chan struct{}, 1), sets: make(map[string]chan struct{}),
		next: opts.rand.intN(1 << 16),
	}
}

// versions of the held table's map and Set.
func (r *routes) versions(set string) (mapVersion, setVersion uint64) {
	t := r.hub.Load()
	if s := t.Set(set); s != nil {
		setVersion = s.Version
	}
	return t.Map.Version, setVersion
}

// learn takes what a reply says of routes: a delta, or just newer versions.
func (r *routes) learn(pb *seqpb.RouteTable, set string, mapVersion, setVersion uint64) {
	if pb != nil && r.take(pb) != nil {
		return // take has asked for a refresh where that helps
	}
	if m, s := r.versions(set); m < mapVersion || s < setVersion {
		r.refresh()
	}
}

// take merges a message. An error means that the message was of no use; a
// refresh is on its way if that can mend it.
func (r *routes) take(pb *seqpb.RouteTable) error {
	d, err := wire.ParseRoutes(pb)
	if err != nil {
		return err
	}
	_, err = r.hub.Merge(d)
	var foreign *router.ForeignError
	var conflict *router.ConflictError
	switch {
	case err == nil:
	case errors.As(err, &foreign) && foreign.Cluster == foreign.GotCluster, errors.As(err, &conflict):
		// The cluster was restored from a backup, or the held table is wrong.
		r.refreshReplacing()
	case router.NeedsWhole(err):
		r.refresh()
	}
	return err
}

// refresh asks for a fetch of the whole table. It does not wait.
func (r *routes) refresh() {
	select {
	case r.want <- struct{}{}:
	default: // one is asked for already
	}
}

// refreshReplacing asks for a table that counts even if its versions are lower.
func (r *routes) refreshReplacing() {
	r.replace.Store(true)
	r.refresh()
}

// candidates are the addresses to ask, in the order to ask them: the nodes of
// the table, from another one on each time, then the bootstrap addresses, and
// last the nodes that give no answers.
func (r *routes) candidates() []string {
	var out, stalled []string
	for _, s := range r.hub.Load().Sets {
		for i := range s.Nodes {
			if addr := s.Nodes[i].Addr; r.pool.stalls(addr) {
				stalled = append(stalled, addr)
			} else {
				out = append(out, addr)
			}
		}
	}
	if len(out) > 0 {
		r.mu.Lock()
		r.next++
		k := r.next % len(out)
		r.mu.Unlock()
		out = append(out[k:len(out):len(out)], out[:k]...)
	}
	for _, addr := range r.servers {
		if !slices.Contains(out, addr) && !slices.Contains(stalled, addr) {
			out = append(out, addr)
		}
	}
	return append(out, stalled...)
}

// fetch gets a whole table from the first server that has one.
func (r *routes) fetch(ctx context.Context) error {
	var all error
	for _, addr := range r.candidates() {
		err := r.fetchFrom(ctx, addr, "")
		if err == nil {
			return nil
		}
		all = both(all, fmt.Errorf("%s: %w", addr, err))
		if ctx.Err() != nil {
			break
		}
	}
	return all
}

// fetchFrom gets the table of a server; of a named Set, only that Set's owners and the map.
func (r *routes) fetchFrom(ctx context.Context, addr, set string) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	return r.pool.use(addr, func(c Conn) error {
		pb, err := c.GetRoutes(ctx, &seqpb.RoutesRequest{Cluster: r.cluster(), Set: set})
		if err != nil {
			return err
		}
		d, err := wire.ParseRoutes(pb)
		if err != nil {
			return err
		}
		t, err := router.FromDelta(d)
		if err != nil {
			return err
		}
		if name := r.cluster(); name != "" && t.Cluster != name {
			return fmt.Errorf("it serves cluster %q, not %q: check the address", t.Cluster, name)
		}
		held := r.hub.Load()
		restored := held.Known() && held.ClusterID != t.ClusterID
		if restored {
			r.opts.logger.Warn("the cluster has a new id, as after a restore; routes replaced",
				zap.String("cluster", t.Cluster), zap.String("held", held.ClusterID), zap.String("got", t.ClusterID))
		}
		if set == "" && r.replace.Swap(false) || restored {
			r.hub.Replace(t)
			return nil
		}
		_, err = r.hub.Merge(d)
		return err
	})
}

// cluster is the name of the cluster, once known.
func (r *routes) cluster() string {
	if r.opts.cluster != "" {
		return r.opts.cluster
	}
	return r.hub.Load().Cluster
}

// runRefresh carries out the wishes for a refresh: one at a time, and not too often.
func (r *routes) runRefresh(ctx context.Context) {
	for {
		select {
		case <-r.want:
		case <-ctx.Done():
			return
		}
		next := time.NewTimer(refreshEvery)
		if err := r.fetch(ctx); err != nil && ctx.Err() == nil {
			r.opts.logger.Info("no server gave its routes", zap.Error(err))
		}
		select {
		case <-next.C:
		case <-ctx.Done():
			next.Stop()
			return
		}
	}
}
