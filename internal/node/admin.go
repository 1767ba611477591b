package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

const (
	// adminTimeout bounds a call that brings no deadline of its own.
	adminTimeout = 30 * time.Second
	// adminRetry is the pause before all stores are asked again: an election takes longer.
	adminRetry = 100 * time.Millisecond
	// statusTimeout bounds one store's answer to a question that any store can answer.
	statusTimeout = 2 * time.Second
)

// storeConns are connections of one kind to the Set's stores.
type storeConns[C io.Closer] struct {
	leader func() string
	stores []string
	dial   func(addr string) (C, error)

	mu     sync.Mutex
	closed bool
	conns  map[string]C
}

func newStoreConns[C io.Closer](leader func() string, stores []string, dial func(string) (C, error)) *storeConns[C] {
	return &storeConns[C]{leader: leader, stores: stores, dial: dial, conns: map[string]C{}}
}

func (f *storeConns[C]) close() {
	f.mu.Lock()
	conns := f.conns
	f.conns, f.closed = nil, true
	f.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

func (f *storeConns[C]) conn(addr string) (C, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c, ok := f.conns[addr]; ok {
		return c, nil
	}
	var none C
	if f.closed {
		return none, rpc.ErrStopping
	}
	c, err := f.dial(addr)
	if err != nil {
		return none, err
	}
	f.conns[addr] = c
	return c, nil
}

// targets are the addresses to try, the likely leader first.
func (f *storeConns[C]) targets() []string {
	addrs := slices.Clone(f.stores)
	if l := f.leader(); l != "" {
		addrs = slices.DeleteFunc(addrs, func(a string) bool { return a == l })
		addrs = slices.Insert(addrs, 0, l)
	}
	return addrs
}

// adminForwarder is an AllocSvr's Admin service: it passes calls to the Set's leader.
type adminForwarder struct{ *storeConns[*rpc.AdminConn] }

var _ seqpb.Admin = (*adminForwarder)(nil)

func newAdminForwarder(leader func() string, stores []string) *adminForwarder {
	return &adminForwarder{newStoreConns(leader, stores, rpc.DialAdmin)}
}

// notNow reports a refusal that another store, or the same one later, would not make.
func notNow(r *seqpb.Refusal) bool {
	switch r.GetCode() {
	case seqpb.RefusalCode_REFUSAL_NOT_LEADER, seqpb.RefusalCode_REFUSAL_NOT_READY:
		return true
	}
	return false
}

// notCarriedOut reports an error after which the call can be made elsewhere: it
// was not sent, or whoever got it could not pass it on.
func notCarriedOut(err error) bool {
	switch wire.CodeOf(err) {
	case seqpb.Code_CODE_UNAVAILABLE, seqpb.Code_CODE_NOT_READY:
		return true
	}
	return false
}

type refusable interface{ GetRefusal() *seqpb.Refusal }

// forward calls stores until one takes the call. Only a call that was surely
// not carried out, or that repeats without harm, is made again.
func forwardAdmin[R refusable](ctx context.Context, f *adminForwarder, repeatable bool, call func(context.Context, *rpc.AdminConn) (R, error)) (R, error) {
	return forwardTo(ctx, f.storeConns, repeatable, call)
}

func forwardTo[C io.Closer, R refusable](ctx context.Context, f *storeConns[C], repeatable bool, call func(context.Context, C) (R, error)) (R, error) {
	var none R
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, adminTimeout)
		defer cancel()
	}
	for {
		var last error
		for _, addr := range f.targets() {
			c, err := f.conn(addr)
			if err != nil {
				last = err
				continue
			}
			cctx, cancel := ctx, context.CancelFunc(func() {})
			if repeatable {
				cctx, cancel = context.WithTimeout(ctx, statusTimeout)
			}
			r, err := call(cctx, c)
			cancel()
			switch {
			case err == nil && !notNow(r.GetRefusal()):
				return r, nil
			case err == nil:
				last = errors.New(r.GetRefusal().Message)
			case repeatable || notCarriedOut(err):
				last = err
			default:
				return none, err
			}
			if ctx.Err() != nil {
				break
			}
		}
		t := time.NewTimer(adminRetry)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return none, rpc.Errorf(seqpb.Code_CODE_UNAVAILABLE, "no store of %v took the call: %v: are a majority of them running?", f.stores, last)
		}
	}
}

func (f *adminForwarder) Status(ctx context.Context, q *seqpb.StatusRequest) (*seqpb.StatusReply, error) {
	return forwardAdmin(ctx, f, true, func(ctx context.Context, c *rpc.AdminConn) (*seqpb.StatusReply, error) { return c.Status(ctx, q) })
}

func (f *adminForwarder) Undrain(ctx context.Context, q *seqpb.DrainRequest) (*seqpb.UndrainReply, error) {
	return forwardAdmin(ctx, f, true, func(ctx context.Context, c *rpc.AdminConn) (*seqpb.UndrainReply, error) { return c.Undrain(ctx, q) })
}

func (f *adminForwarder) Rebalance(ctx context.Context, q *seqpb.RebalanceRequest) (*seqpb.RebalanceReply, error) {
	return forwardAdmin(ctx, f, false, func(ctx context.Context, c *rpc.AdminConn) (*seqpb.RebalanceReply, error) {
		return c.Rebalance(ctx, q)
	})
}

func (f *adminForwarder) AddStore(ctx context.Context, q *seqpb.AddStoreRequest) (*seqpb.StoreChangeReply, error) {
	return forwardAdmin(ctx, f, false, func(ctx context.Context, c *rpc.AdminConn) (*seqpb.StoreChangeReply, error) {
		return c.AddStore(ctx, q)
	})
}

func (f *adminForwarder) RemoveStore(ctx context.Context, q *seqpb.RemoveStoreRequest) (*seqpb.StoreChangeReply, error) {
	return forwardAdmin(ctx, f, false, func(ctx context.Context, c *rpc.AdminConn) (*seqpb.StoreChangeReply, error) {
		return c.RemoveStore(ctx, q)
	})
}

// drain is the first message of a drain and the rest of it.
type drain struct {
	first *seqpb.DrainProgress
	rest  *rpc.Watch[seqpb.DrainProgress]
}

func (d *drain) GetRefusal() *seqpb.Refusal { return d.first.GetRefusal() }

// Drain passes the leader's progress on. Asking again for a drain is harmless,
// so it goes on with the next leader when one is lost before it began.
func (f *adminForwarder) Drain(q *seqpb.DrainRequest, stream seqpb.Admin_DrainServer) error {
	ctx := stream.Context()
	d, err := forwardAdmin(ctx, f, false, func(_ context.Context, c *rpc.AdminConn) (*drain, error) {
		w, err := c.Drain(ctx, q)
		if err != nil {
			return nil, err
		}
		first, err := w.Recv()
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("drain of %s ended without a word", q.Node)
		}
		if err != nil {
			return nil, err
		}
		if notNow(first.GetRefusal()) {
			_ = w.Close()
		}
		return &drain{first: first, rest: w}, nil
	})
	if err != nil {
		return err
	}
	defer d.rest.Close()
	for m := d.first; ; {
		if err := stream.Send(m); err != nil {
			return err
		}
		if m, err = d.rest.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
