package client

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
)

// A lost subscription is taken up with the next server after a wait that doubles between these.
const (
	rewatchFirst   = 20 * time.Millisecond
	rewatchLongest = time.Second
)

// runWatch keeps a subscription with one server at a time.
func (r *routes) runWatch(ctx context.Context) {
	wait := rewatchFirst
	var tried []string // without success, since the last that succeeded
	for {
		all := r.candidates()
		i := slices.IndexFunc(all, func(addr string) bool { return !slices.Contains(tried, addr) })
		if i < 0 {
			i, tried = 0, nil
		}
		messages, err := r.watch(ctx, all[i])
		if ctx.Err() != nil {
			return
		}
		r.opts.logger.Info("route subscription ended", zap.String("node", all[i]), zap.Error(err))
		tried = append(tried, all[i])
		if messages > 0 {
			wait, tried = rewatchFirst, tried[len(tried)-1:]
		}
		retry := time.NewTimer(wait/2 + time.Duration(r.opts.rand.float()*float64(wait/2)))
		wait = min(2*wait, rewatchLongest)
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return
		}
	}
}

// watch is one subscription, until it ends.
func (r *routes) watch(ctx context.Context, addr string) (messages int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.setWatched(addr, cancel)
	defer r.setWatched("", nil)
	// The table must come soon; after it, silence only means that nothing changes.
	silent := time.AfterFunc(fetchTimeout, cancel)
	defer silent.Stop()
	err = r.pool.use(addr, func(c Conn) error {
		stream, err := c.WatchRoutes(ctx, &seqpb.RoutesRequest{Cluster: r.cluster()})
		if err != nil {
			return err
		}
		defer stream.Close()
		for {
			pb, err := stream.Recv()
			if err != nil {
				return err
			}
			if err := r.take(pb); err != nil {
				return err // a new subscription begins with the whole table
			}
			silent.Stop()
			messages++
		}
	})
	return messages, err
}

func (r *routes) setWatched(addr string, stop context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watched, r.stopWatch = addr, stop
}

// runFollow fits the pool and the subscription to each table after last.
func (r *routes) runFollow(ctx context.Context, last *router.Table) {
	for {
		t, err := r.hub.Wait(ctx, last)
		if err != nil {
			return
		}
		r.pool.follow(t)
		r.mu.Lock()
		if r.stopWatch != nil && lists(last, r.watched) && !lists(t, r.watched) {
			r.stopWatch() // the node has left, and might not say so
		}
		r.mu.Unlock()
		last = t
	}
}

func lists(t *router.Table, addr string) bool {
	for _, s := range t.Sets {
		for i := range s.Nodes {
			if s.Nodes[i].Addr == addr {
				return true
			}
		}
	}
	return false
}
