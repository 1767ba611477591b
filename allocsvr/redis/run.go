package redis

import (
	"context"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// run is the allocations that arrived together on one connection, not answered
// yet: they are made in one go, so that those that have to wait do so together.
// All are of one space.
type run struct {
	asks []allocsvr.Ask
	// texts has the keys as they were written, each up to its end.
	texts []byte
	ends  []int
}

// runMax is how many allocations are made in one go.
const runMax = 128

func (r *run) add(k ids.Key, n uint32, text []byte) {
	r.asks = append(r.asks, allocsvr.Ask{Key: k, N: n})
	r.texts = append(r.texts, text...)
	r.ends = append(r.ends, len(r.texts))
}

func (r *run) text(i int) string {
	from := 0
	if i > 0 {
		from = r.ends[i-1]
	}
	return string(r.texts[from:r.ends[i]])
}

func (r *run) clear() {
	clear(r.asks)
	r.asks, r.texts, r.ends = r.asks[:0], r.texts[:0], r.ends[:0]
}

// settle makes the allocations of the run and writes their replies. It comes
// before whatever else is written to the connection.
func (c *conn) settle() {
	if len(c.run.asks) == 0 {
		return
	}
	c.s.cfg.Local.AllocEach(c.s.ctx, c.run.asks, c.s.cfg.CallTimeout)
	away := c.forwardRun()
	for i := range c.run.asks {
		a := &c.run.asks[i]
		last, err := int64(a.First)+int64(a.Count)-1, a.Err
		if len(away) > 0 && elsewhere(err) {
			last, err, away = away[0].Value, away[0].Err, away[1:]
		}
		if err != nil {
			c.fail(err)
			continue
		}
		c.w.WriteInt64(last)
	}
	c.run.clear()
}

// forwardRun has those allocations made by their owners that cannot be made
// here, and returns them in order.
func (c *conn) forwardRun() (calls []Call) {
	for i := range c.run.asks {
		if a := &c.run.asks[i]; a.Err != nil && elsewhere(a.Err) {
			calls = append(calls, Call{Key: c.run.text(i), N: a.N})
		}
	}
	if len(calls) > 0 {
		c.forward(c.s.cfg.Forward.Alloc, calls)
	}
	return calls
}

func (c *conn) forward(to func(context.Context, string, []Call), calls []Call) {
	ctx, cancel := context.WithTimeout(c.s.ctx, c.s.cfg.CallTimeout)
	defer cancel()
	to(ctx, c.s.cfg.Spaces()[c.space].Name, calls)
}
