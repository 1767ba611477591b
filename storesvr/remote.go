package storesvr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// setCallTimeout bounds one call of another Set's store, so that one that has
	// vanished without a word does not keep others from being asked.
	setCallTimeout = time.Second
	// hintsMax bounds how often a store's word on who leads is followed in one round.
	hintsMax = 4
)

// SetUnreachableError: no StoreSvr of a Set took the call.
type SetUnreachableError struct {
	Set string
	Err error
}

func (e *SetUnreachableError) Error() string {
	return fmt.Sprintf("set %q: no store took the call: %v: are a majority of them running?", e.Set, e.Err)
}
func (e *SetUnreachableError) Unwrap() error { return e.Err }

// SetRefusedError: a Set's leader refused the call as a whole.
type SetRefusedError struct {
	Set     string
	Refusal *seqpb.Refusal
}

func (e *SetRefusedError) Error() string {
	return fmt.Sprintf("set %q: %s", e.Set, e.Refusal.GetMessage())
}

// others are connections to stores of other Sets, and who led there last.
type others struct {
	dial func(addr string) (SetsConn, error)

	mu     sync.Mutex
	closed bool
	conns  map[string]SetsConn
	leader map[string]string
}

func newOthers(dial func(string) (SetsConn, error)) *others {
	return &others{dial: dial, conns: map[string]SetsConn{}, leader: map[string]string{}}
}

func (o *others) close() {
	o.mu.Lock()
	conns := o.conns
	o.conns, o.closed = nil, true
	o.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

func (o *others) conn(addr string) (SetsConn, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return nil, errStopping
	case o.dial == nil:
		return nil, errors.New("this node cannot call other sets")
	}
	if c := o.conns[addr]; c != nil {
		return c, nil
	}
	c, err := o.dial(addr)
	if err != nil {
		return nil, err
	}
	o.conns[addr] = c
	return c, nil
}

func (o *others) led(set string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.leader[set]
}

func (o *others) leads(set, addr string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leader[set] = addr
}

type refusable interface{ GetRefusal() *seqpb.Refusal }

// callSet asks the stores of a Set, the last known leader first, until one takes
// the call: once around. What it answers was carried out or refused by a leader.
// Everything that is called so does no harm when it is repeated.
func callSet[R refusable](ctx context.Context, o *others, set string, addrs []string, timeout time.Duration, call func(context.Context, SetsConn) (R, error)) (R, error) {
	var none R
	if l := o.led(set); l != "" {
		addrs = slices.DeleteFunc(slices.Clone(addrs), func(a string) bool { return a == l })
		addrs = slices.Insert(addrs, 0, l)
	}
	last := errors.New("none is known")
	tried, hints := map[string]bool{}, 0
	for len(addrs) > 0 {
		addr := addrs[0]
		addrs = addrs[1:]
		if tried[addr] {
			continue
		}
		tried[addr] = true
		c, err := o.conn(addr)
		if err != nil {
			last = err
			continue
		}
		cctx, cancel := context.WithTimeout(ctx, timeout)
		r, err := call(cctx, c)
		cancel()
		if ctx.Err() != nil {
			return none, ctx.Err()
		}
		if err != nil {
			last = err
			continue
		}
		switch f := r.GetRefusal(); f.GetCode() {
		case seqpb.RefusalCode_REFUSAL_NONE:
			o.leads(set, addr)
			return r, nil
		case seqpb.RefusalCode_REFUSAL_NOT_LEADER, seqpb.RefusalCode_REFUSAL_NOT_READY, seqpb.RefusalCode_REFUSAL_BUSY:
			last = errors.New(f.Message)
			if h := f.Leader; h != "" && hints < hintsMax {
				hints++
				delete(tried, h)
				addrs = slices.Insert(slices.Clone(addrs), 0, h)
			}
		default:
			return none, &SetRefusedError{Set: set, Refusal: f}
		}
	}
	return none, &SetUnreachableError{Set: set, Err: last}
}

// addresses where a Set's stores are reached, as far as this node knows.
func (n *Node) addresses(set string) (addrs []string) {
	_ = n.fsm.read(func(st *state.State) {
		m := &st.Meta
		if info, ok := m.Published.Info(set); ok {
			addrs = slices.Clone(info.Stores)
		}
		if set == m.Published.Home || set == "" {
			addrs = append(addrs, n.cfg.Directory...)
		}
	})
	return addrs
}

// ownSet is this Set, called without a connection.
type ownSet struct{ *Node }

func (ownSet) Close() error { return nil }

// askSet calls the leader of any Set, which may be this one.
func askSet[R refusable](ctx context.Context, n *Node, set string, timeout time.Duration, call func(context.Context, SetsConn) (R, error)) (R, error) {
	if set != n.cfg.Set {
		return callSet(ctx, n.others, set, n.addresses(set), timeout, call)
	}
	var none R
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := call(ctx, ownSet{n})
	if err == nil && r.GetRefusal().GetCode() != seqpb.RefusalCode_REFUSAL_NONE {
		return none, &SetRefusedError{Set: set, Refusal: r.GetRefusal()}
	}
	return r, err
}

// directorySet is the name of the Set that has the directory; "" if it is not known yet.
func (n *Node) directorySet() (home string) {
	_ = n.fsm.read(func(st *state.State) { home = st.Meta.Published.Home })
	return home
}

// hasDirectory: this Set does.
func (n *Node) hasDirectory() (yes bool) {
	_ = n.fsm.read(func(st *state.State) { yes = st.Meta.Directory != nil })
	return yes
}
