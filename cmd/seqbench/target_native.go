package main

import (
	"context"
	"errors"

	"github.com/seqsvr/seqsvr/client"
)

// native calls by the SDK.
type native struct {
	ks    *keyset
	space string
	// measured is the client of the callers; whole that of bulk work. They differ
	// in mode single, where the callers' client must not let calls ride together.
	measured, whole *client.Client
}

func openNative(ctx context.Context, c *config) (target, error) {
	n := &native{ks: newKeyset(c), space: c.space}
	var err error
	if n.whole, err = dialSDK(ctx, c); err != nil {
		return nil, err
	}
	n.measured = n.whole
	if err = kindOfSpace(n.whole, c, n.ks); err == nil && c.mode == modeSingle {
		n.measured, err = dialSDK(ctx, c, client.WithMaxBatch(1), client.WithInFlight(c.callers))
	}
	if err != nil {
		n.whole.Close()
		return nil, err
	}
	return n, nil
}

func (n *native) key(i int) client.Key {
	switch {
	case n.ks.names:
		return client.Name(n.space, n.ks.text(i))
	case n.space == client.DefaultSpace:
		return client.UID(n.ks.uid(i))
	}
	return client.In(n.space, n.ks.text(i))
}

func (n *native) keys() *keyset  { return n.ks }
func (n *native) caller() caller { return &nativeCaller{n: n, c: n.measured} }
func (n *native) bulk() caller   { return &nativeCaller{n: n, c: n.whole} }

func (n *native) current(ctx context.Context, keys []int, into []uint64) error {
	return sdkCurrent(ctx, n.whole, n.key, keys, into)
}

func (n *native) close() error {
	err := n.whole.Close()
	if n.measured != n.whole {
		err = errors.Join(err, n.measured.Close())
	}
	return err
}

type nativeCaller struct {
	n    *native
	c    *client.Client
	reqs []client.Request
}

func (a *nativeCaller) alloc(keys []int, into []number) {
	if len(keys) == 1 {
		r, err := a.c.Alloc(context.Background(), a.n.key(keys[0]))
		into[0] = numberOf(&r, err)
		return
	}
	a.reqs = a.reqs[:0]
	for _, k := range keys {
		a.reqs = append(a.reqs, client.Request{Key: a.n.key(k), N: 1})
	}
	results, err := a.c.AllocMany(context.Background(), a.reqs)
	if len(results) != len(keys) {
		fail(into, err, false) // the SDK has no results when it sent nothing
		return
	}
	for i := range results {
		into[i] = numberOf(&results[i], results[i].Err)
	}
}

func numberOf(r *client.Result, err error) number {
	if err != nil {
		return number{err: err, unknown: errors.Is(err, client.ErrUnknownResult)}
	}
	return number{seq: uint64(r.First), hole: r.Discontinuity != nil}
}
