package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/router"
)

// Client calls a cluster. It is for use by many goroutines at once; one is
// enough for a process, and lets its calls ride together.
type Client struct {
	opts   *options
	routes *routes
	pool   *pool

	// calls are those under way; closed refuses new ones.
	mu     sync.RWMutex
	closed bool
	calls  sync.WaitGroup

	// stop ends base, and with it the background goroutines and what is left of RPCs.
	base       context.Context
	stop       context.CancelFunc
	background sync.WaitGroup

	singles sync.Pool // of *single
	bulks   sync.Pool // of *bulk
}

// Dial makes a client of the cluster that the servers belong to. They are
// AllocSvr addresses, host:port; one that answers is enough, the others are
// learned from it. Dial waits for the first table of routes until ctx ends (the
// budget, if it has no deadline), unless a route cache has one.
func Dial(ctx context.Context, servers []string, opts ...Option) (*Client, error) {
	o := defaults()
	for _, opt := range opts {
		opt(&o)
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	if len(servers) == 0 {
		return nil, invalid(Key{}, "no server addresses: give at least one host:port of an AllocSvr")
	}
	for _, s := range servers {
		if _, _, err := net.SplitHostPort(s); err != nil {
			return nil, invalid(Key{}, "server address %q: want host:port", s)
		}
	}
	cached := loadCache(&o)
	c := &Client{opts: &o}
	c.base, c.stop = context.WithCancel(context.Background())
	c.routes = newRoutes(&o, slices.Clone(servers), cached)
	c.pool = newPool(c.base, &o, c.routes)
	c.routes.pool = c.pool
	c.routes.base, c.routes.background = c.base, &c.background
	if cached == nil {
		if err := c.firstRoutes(ctx); err != nil {
			c.stop()
			c.pool.close()
			return nil, err
		}
	}
	first := c.routes.hub.Load()
	c.background.Go(func() { c.routes.runFollow(c.base, first) })
	c.background.Go(func() { c.routes.runRefresh(c.base) })
	c.background.Go(func() { c.routes.runWatch(c.base) })
	if o.cache != "" {
		c.background.Go(func() { c.routes.runCache(c.base, cached) })
	}
	return c, nil
}

// firstRoutes fetches until a server gives its table.
func (c *Client) firstRoutes(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.opts.budget)
		defer cancel()
	}
	var last error
	for {
		if err := c.routes.fetch(ctx); err == nil {
			return nil
		} else if last == nil || ctx.Err() == nil {
			last = err
		}
		retry := time.NewTimer(refreshEvery)
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return &Error{Kind: KindUnavailable, Err: fmt.Errorf("no server gave its routes: %w", both(ctx.Err(), last))}
		}
	}
}

// Close refuses new calls, waits for those under way, and closes all
// connections. Calls end by their contexts or the budget at the latest.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.calls.Wait()
	c.stop()
	c.routes.end()
	c.pool.workers.Wait()
	c.background.Wait()
	c.pool.close()
	c.routes.hub.Close()
	return nil
}

// enter counts a call in; leave counts it out.
func (c *Client) enter() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return &Error{Kind: KindUnavailable, Err: ErrClosed}
	}
	c.calls.Add(1)
	return nil
}

func (c *Client) leave() { c.calls.Done() }

// Route tells where a key is served. It asks no server while the client knows
// an owner; else it waits for one until ctx ends (the budget, if it has no
// deadline), and then returns the route without an owner.
func (c *Client) Route(ctx context.Context, key Key) (Route, error) {
	if err := c.enter(); err != nil {
		return Route{}, ofRead(err)
	}
	defer c.leave()
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	for t := c.routes.hub.Load(); ; {
		id, _, err := key.resolve(t)
		if err != nil {
			return Route{}, ofRead(err)
		}
		r, err := t.Lookup(id)
		if err == nil && r.Owned() {
			return publicRoute(r), nil
		}
		c.routes.refreshFor(r.Set)
		next, waitErr := c.routes.hub.Wait(ctx, t)
		switch {
		case waitErr == nil:
			t = next
		case err != nil:
			return Route{}, &Error{Kind: KindNotReady, Key: key, Err: err, reads: true}
		default:
			return publicRoute(r), nil
		}
	}
}

// bounded is ctx with the budget for a deadline if it has none.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.opts.budget)
}

func publicRoute(r router.Route) Route {
	return Route{
		Set: r.Set, Section: uint32(r.Section), Epoch: uint64(r.Epoch),
		Owner: r.Owner.ID, Addr: r.Owner.Addr, Version: r.Version,
	}
}

// Table is the routes of a cluster at one version. It must not be changed.
type Table = router.Table

// Routes is the newest table that the client has.
func (c *Client) Routes() *Table { return c.routes.hub.Load() }

// Watch calls f with the present routes and then with each newer table, until
// ctx ends or the client is closed. While f runs, changes are not queued: the
// next table is the newest.
func (c *Client) Watch(ctx context.Context, f func(*Table)) error {
	if err := c.enter(); err != nil {
		return ofRead(err)
	}
	c.leave() // a watch does not hold up Close
	for t := c.routes.hub.Load(); ; {
		f(t)
		var err error
		if t, err = c.routes.hub.Wait(ctx, t); errors.Is(err, router.ErrHubClosed) {
			return &Error{Kind: KindUnavailable, Err: ErrClosed, reads: true}
		} else if err != nil {
			return err
		}
	}
}
