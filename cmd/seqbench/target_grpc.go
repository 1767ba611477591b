package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// plain sends requests to one node, without the SDK but to find the node's keys.
type plain struct {
	ks      *keyset
	space   string
	sdk     *client.Client
	conn    *rpc.SeqConn
	timeout time.Duration
}

func openGRPC(ctx context.Context, c *config) (_ target, err error) {
	p := &plain{ks: newKeyset(c), space: c.space, timeout: c.timeout}
	if p.sdk, err = dialSDK(ctx, c); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.sdk.Close()
		}
	}()
	if err = kindOfSpace(p.sdk, c, p.ks); err != nil {
		return nil, err
	}
	if err = p.choose(c); err != nil {
		return nil, err
	}
	if p.conn, err = rpc.DialSeqGRPC(c.servers[0]); err != nil {
		return nil, fmt.Errorf("%w: check --server", err)
	}
	return p, nil
}

const (
	// strangersMax is how many keys (blocks of uids) of others are looked at for those of one node.
	strangersMax = 1 << 20
	// nameNumberMax is the largest number that names are made of.
	nameNumberMax = 1 << 62
)

// choose finds as many keys as asked for that the node at --server owns.
func (p *plain) choose(c *config) error {
	t := p.sdk.Routes()
	space, _ := t.Space(c.space)
	last := uint64(nameNumberMax)
	if !p.ks.names {
		last = space.MaxUID
	}
	owners := map[string]bool{}
	chosen := []uint64{}
	probe := &keyset{first: p.ks.first, names: p.ks.names}
	for i, lookups := 0, 0; len(chosen) < c.keys; i, lookups = i+1, lookups+1 {
		if lookups >= c.keys+strangersMax || probe.uid(i) > last {
			return fmt.Errorf("the node at %s owns %d of the keys %d to %d, %d are wanted: name one of %s in --server, or use fewer --keys",
				c.servers[0], len(chosen), c.firstKey, probe.uid(i), c.keys, strings.Join(slices.Sorted(maps.Keys(owners)), ", "))
		}
		id, err := idOf(space, probe, i)
		if err != nil {
			return err
		}
		r, err := t.Lookup(id)
		owned := err == nil && r.Owned()
		if owned {
			owners[r.Owner.Addr] = true
		}
		switch {
		case owned && r.Owner.Addr == c.servers[0]:
			chosen = append(chosen, probe.uid(i))
		case !p.ks.names:
			// The rest of the block has the same owner.
			i += int(ids.BlockSize - 1 - probe.uid(i)%ids.BlockSize)
		}
	}
	p.ks.chosen = chosen
	return nil
}

func idOf(space ids.Space, ks *keyset, i int) (ids.Key, error) {
	if ks.names {
		return space.NameKey(ks.text(i))
	}
	return space.UID(ks.uid(i))
}

func (p *plain) keys() *keyset  { return p.ks }
func (p *plain) caller() caller { return &plainCaller{p: p} }
func (p *plain) bulk() caller   { return &plainCaller{p: p} }

func (p *plain) current(ctx context.Context, keys []int, into []uint64) error {
	return sdkCurrent(ctx, p.sdk, func(i int) client.Key { return client.In(p.space, p.ks.text(i)) }, keys, into)
}

func (p *plain) close() error { return errors.Join(p.conn.Close(), p.sdk.Close()) }

type plainCaller struct {
	p *plain
	requester
}

func (a *plainCaller) alloc(keys []int, into []number) {
	ctx, cancel := context.WithTimeout(context.Background(), a.p.timeout)
	defer cancel()
	rep, err := a.p.conn.Alloc(ctx, a.request(a.p.space, a.p.ks, keys))
	if err != nil {
		var e *rpc.Error
		definite := errors.As(err, &e) && (e.NotSent || e.Answered && e.Code != seqpb.Code_CODE_UNKNOWN_RESULT)
		fail(into, err, !definite)
		return
	}
	believe(rep, into)
}

// requester makes the requests of one caller, and reuses their memory.
type requester struct{ req seqpb.AllocRequest }

func (r *requester) request(space string, ks *keyset, keys []int) *seqpb.AllocRequest {
	r.req.Space, r.req.Uids, r.req.Names = space, r.req.Uids[:0], r.req.Names[:0]
	for _, k := range keys {
		if ks.names {
			r.req.Names = append(r.req.Names, ks.text(k))
		} else {
			r.req.Uids = append(r.req.Uids, ks.uid(k))
		}
	}
	return &r.req
}

var errShortReply = errors.New("the reply does not answer every key")

// believe reads a reply.
func believe(rep *seqpb.AllocReply, into []number) {
	if len(rep.First) != len(into) {
		fail(into, errShortReply, true)
		return
	}
	for i, first := range rep.First {
		into[i] = number{seq: first}
	}
	for _, f := range rep.Failures {
		if int(f.Index) < len(into) {
			into[f.Index] = number{err: &wire.Refused{Code: f.Code, Message: f.Message}, unknown: f.Code == seqpb.Code_CODE_UNKNOWN_RESULT}
		}
	}
	for _, d := range rep.Discontinuities {
		if int(d.Index) < len(into) {
			into[d.Index].hole = true
		}
	}
}
