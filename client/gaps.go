package client

import (
	"context"
	"fmt"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// Gaps lists the declared holes of a key, ascending: for a reader who was away
// and finds numbers missing. Of very old ones several may be joined to one.
func (c *Client) Gaps(ctx context.Context, key Key) ([]Gap, error) {
	if err := c.enter(); err != nil {
		return nil, ofRead(err)
	}
	defer c.leave()
	id, space, err := key.resolve(c.routes.hub.Load())
	if err != nil {
		return nil, ofRead(err)
	}
	req := &seqpb.GapsRequest{Space: space.Name}
	if space.Kind == ids.KindUID {
		req.Uid = id.Hi
	} else {
		req.Name = key.text
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	for waits := 0; ; waits++ {
		gaps, set, addr, err := c.gapsOnce(ctx, id, req)
		if err == nil {
			return gaps, nil
		}
		code := wire.CodeOf(err)
		next, refresh := decide(outcome{code: code, idempotent: true})
		if refresh {
			c.routes.refreshFor(set)
		}
		failure := &Error{Kind: kindOfRead(code), Key: key, Owner: addr, Err: err, reads: true}
		if next == stepFail {
			return nil, failure
		}
		retry := time.NewTimer(delay(code, waits, c.opts.rand.float()))
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			failure.Err = both(ctx.Err(), err)
			return nil, failure
		}
	}
}

// gapsTimeout is for one node to answer; then the owner might be another one.
const gapsTimeout = time.Second

// gapsOnce asks the key's owner, or any node of its Set while it has none.
func (c *Client) gapsOnce(ctx context.Context, id ids.Key, req *seqpb.GapsRequest) (gaps []Gap, set, addr string, err error) {
	r, err := c.routes.hub.Load().Lookup(id)
	if err != nil {
		return nil, "", "", wire.Refusef(seqpb.Code_CODE_NOT_READY, "%v", err)
	}
	if addr = r.Owner.Addr; addr == "" {
		if addr = c.routes.anyOf(r.Set); addr == "" {
			c.routes.refreshFor(r.Set)
			return nil, r.Set, "", wire.Refusef(seqpb.Code_CODE_NOT_READY, "no node of set %s is known yet", r.Set)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, gapsTimeout)
	defer cancel()
	err = c.pool.use(addr, func(conn Conn) error {
		rep, err := conn.Gaps(ctx, req)
		if err != nil {
			return err
		}
		parsed, err := wire.ParseGaps(rep.Gaps)
		if err != nil {
			return fmt.Errorf("%w: %v", errMalformed, err)
		}
		for _, g := range parsed {
			gaps = append(gaps, Gap{From: int64(g.From), To: int64(g.To), Cause: g.Cause})
		}
		return nil
	})
	return gaps, r.Set, addr, err
}

// anyOf is an AllocSvr of a Set; "" if none is known. In a cluster of one Set any
// server will do.
func (r *routes) anyOf(set string) string {
	t := r.hub.Load()
	if len(t.Sets) == 1 {
		return r.candidates()[0]
	}
	if s := t.Set(set); s != nil && len(s.Nodes) > 0 {
		return r.shuffled(nodesOf(s))[0]
	}
	return ""
}
