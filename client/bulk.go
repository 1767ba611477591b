package client

import "time"

// bulk is a call of many keys, with what it needs beside it, for reuse: the ops
// of a thousand keys are half a megabyte.
type bulk struct {
	call
	ops []op
	// slots is the backing of ready and away.
	slots []*op
}

// bulkKeysMax is the most keys of a bulk that is kept for reuse.
const bulkKeysMax = 4096

// bulk has room for a call of n keys. Its ready and away are as long, and empty.
func (c *Client) bulk(n int) *bulk {
	b, _ := c.bulks.Get().(*bulk)
	if b == nil || cap(b.ops) < n {
		b = &bulk{ops: make([]op, n), slots: make([]*op, 2*n)}
		b.c = c
	}
	if away := min(n, awayMax(c.opts)*max(1, len(c.routes.hub.Load().Sets))); cap(b.back) < away {
		b.back = make(chan *op, away)
	}
	b.ops, b.slots = b.ops[:n], b.slots[:2*n]
	b.ready, b.away = b.slots[:n:n], b.slots[n:]
	return b
}

// recycle keeps a finished call for the next one. A call that left an op behind
// is not used again, since a worker may still write to it.
func (c *Client) recycle(b *bulk) {
	if b.dirty || len(b.ops) > bulkKeysMax {
		return
	}
	// Nothing of the caller's is held on to, but what its keys refer to.
	b.ctx, b.finish, b.seen, b.delayed, b.crowds = nil, nil, nil, nil, b.crowds[:0]
	b.strandedAt = time.Time{}
	clear(b.slots)
	c.bulks.Put(b)
}
