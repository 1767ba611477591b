package client

import (
	"context"
	"math"
	"time"

	"github.com/seqsvr/seqsvr/router"
)

// single is a call of one key, with what it needs beside it, for reuse.
type single struct {
	call
	op    op
	slots [2]*op // backing of ready and away
	err   error
	final *op
}

// Alloc gives the next number of a key.
func (c *Client) Alloc(ctx context.Context, key Key, opts ...CallOption) (Result, error) {
	return c.AllocN(ctx, key, 1, opts...)
}

// AllocN gives the next n numbers of a key, consecutive.
func (c *Client) AllocN(ctx context.Context, key Key, n int64, opts ...CallOption) (Result, error) {
	req := Request{Key: key, N: n}
	if len(opts) > 0 {
		var o callOptions
		for _, opt := range opts {
			opt(&o)
		}
		if o.hasRequestID && o.requestID == ([16]byte{}) {
			return Result{}, invalid(key, "the request id is zero: use the UUID of what the number is for")
		}
		req.RequestID = o.requestID
	}
	return c.one(ctx, methodAlloc, req)
}

// Current is the last number given for a key, by anybody; 0 for none yet. It
// allocates nothing, and is linearizable.
func (c *Client) Current(ctx context.Context, key Key) (int64, error) {
	r, err := c.one(ctx, methodCurrent, Request{Key: key, N: 1})
	return r.First, ofRead(err)
}

func (c *Client) one(ctx context.Context, m method, req Request) (Result, error) {
	if err := c.enter(); err != nil {
		return Result{}, err
	}
	defer c.leave()
	s, _ := c.singles.Get().(*single)
	if s == nil {
		s = &single{}
		s.c = c
		s.back = make(chan *op, 1)
		s.finish = func(o *op, err error) { s.final, s.err = o, err }
	}
	if err := s.op.init(c.routes.hub.Load(), &s.call, m, 0, &req); err != nil {
		c.singles.Put(s)
		return Result{}, err
	}
	s.begin(ctx)
	s.slots = [2]*op{&s.op}
	s.ready, s.away, s.left = s.slots[0:1:1], s.slots[1:2:2], 1
	s.run()
	var res Result
	err := s.err
	if err == nil {
		s.final.result(&res)
	}
	if !s.dirty {
		s.ctx, s.final, s.err, s.seen = nil, nil, nil, nil
		s.strandedAt = time.Time{}
		c.singles.Put(s)
	}
	return res, err
}

// begin sets the deadline.
func (k *call) begin(ctx context.Context) {
	k.ctx = ctx
	d, ok := ctx.Deadline()
	if !ok {
		d = time.Now().Add(k.c.opts.budget)
	}
	k.deadline, k.ownTimer = d, !ok
}

// init makes an op of a request, or refuses it. Nothing is sent yet.
func (o *op) init(t *router.Table, k *call, m method, index int, req *Request) error {
	if req.N < 1 || req.N > math.MaxUint32 {
		return invalid(req.Key, "%d numbers asked for, want 1 to %d", req.N, uint32(math.MaxUint32))
	}
	id, space, err := req.Key.resolve(t)
	if err != nil {
		return err
	}
	o.call, o.index = k, index
	o.key, o.id, o.space = req.Key, id, space
	o.method, o.n = m, uint32(req.N)
	o.reqID, o.hasID = req.RequestID, req.RequestID != [16]byte{}
	o.state.Store(opHome)
	o.reply.reset()
	o.node, o.set, o.epoch = nil, "", 0
	if o.history != (history{}) {
		o.history = history{}
	}
	return nil
}

// AllocMany gives numbers of many keys, which travel together as far as they
// have the same owner. The results are in the order of the requests. If some
// keys failed the error is a *PartialError, their results have an Err, and the
// other results are good. If a request is invalid nothing is sent, and there
// are no results.
func (c *Client) AllocMany(ctx context.Context, reqs []Request) ([]Result, error) {
	out := make([]Result, len(reqs))
	failed, err := c.many(ctx, methodAlloc, reqs, func(o *op, err error) {
		if err != nil {
			out[o.index] = Result{Key: o.key, Err: err}
		} else {
			o.result(&out[o.index])
		}
	})
	if err != nil {
		return nil, err
	}
	return out, partial(failed, len(reqs), func(i int) error { return out[i].Err })
}

// CurrentMany reads many keys; see Current, and AllocMany for errors.
func (c *Client) CurrentMany(ctx context.Context, keys []Key) ([]Reading, error) {
	reqs := make([]Request, len(keys))
	for i, k := range keys {
		reqs[i] = Request{Key: k, N: 1}
	}
	out := make([]Reading, len(keys))
	failed, err := c.many(ctx, methodCurrent, reqs, func(o *op, err error) {
		out[o.index] = Reading{Key: o.key, Err: err}
		if err == nil {
			out[o.index].Current = int64(o.reply.value)
		}
	})
	if err != nil {
		return nil, ofRead(err)
	}
	return out, partial(failed, len(keys), func(i int) error { return out[i].Err })
}

func (c *Client) many(ctx context.Context, m method, reqs []Request, finish func(*op, error)) (failed int, err error) {
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.leave()
	b := c.bulk(len(reqs))
	k := &b.call
	k.left = len(reqs)
	k.finish = func(o *op, err error) {
		if err != nil {
			failed++
		}
		finish(o, err)
	}
	t := c.routes.hub.Load()
	for i := range reqs {
		if err := b.ops[i].init(t, k, m, i, &reqs[i]); err != nil {
			return 0, err
		}
		k.ready[i] = &b.ops[i]
	}
	k.begin(ctx)
	k.run()
	c.recycle(b)
	return failed, nil
}

// partial is the error of results of which some failed.
func partial(failed, total int, errOf func(int) error) error {
	if failed == 0 {
		return nil
	}
	for i := range total {
		if err := errOf(i); err != nil {
			return &PartialError{Failed: failed, Total: total, First: err}
		}
	}
	return nil
}
