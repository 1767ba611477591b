package node

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr"
)

// Neighbours are the AllocSvrs of one process. The Redis port of each serves what
// another has ready, without a call over the network. Whoever owns a key issues its
// numbers here as everywhere, under its own lease and epoch.
type Neighbours struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*allocsvr.Server]
}

func (n *Neighbours) all() []*allocsvr.Server {
	if p := n.list.Load(); p != nil {
		return *p
	}
	return nil
}

func (n *Neighbours) add(s *allocsvr.Server) {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := append(slices.Clone(n.all()), s)
	n.list.Store(&list)
}

func (n *Neighbours) remove(s *allocsvr.Server) {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(n.all()), func(o *allocsvr.Server) bool { return o == s })
	n.list.Store(&list)
}

// local is an AllocSvr with its neighbours, as the Redis port sees it. What none
// of them has ready is for the AllocSvr itself, which knows where else to go.
type local struct {
	*allocsvr.Server
	beside *Neighbours
}

// AllocReady implements redis.Local.
func (l local) AllocReady(asks []allocsvr.Ask) (waiting int) {
	l.Server.AllocReady(asks)
	return tryEach(l, asks, func(a *allocsvr.Ask) *error { return &a.Err }, &askScratch, (*allocsvr.Server).AllocReady)
}

// CurrentReady implements redis.Local.
func (l local) CurrentReady(reads []allocsvr.Read) (waiting int) {
	l.Server.CurrentReady(reads)
	return tryEach(l, reads, func(r *allocsvr.Read) *error { return &r.Err }, &readScratch, (*allocsvr.Server).CurrentReady)
}

var askScratch, readScratch sync.Pool

// scratch are the items that one neighbour is asked for, and where they are from.
type scratch[T any] struct {
	items []T
	from  []int
}

// tryEach asks the neighbours in turn for the items that have an error, and keeps
// what they have ready. Items keep their order.
func tryEach[T any](l local, items []T, errOf func(*T) *error, pool *sync.Pool, ready func(*allocsvr.Server, []T) int) (waiting int) {
	failed := 0
	for i := range items {
		if *errOf(&items[i]) != nil {
			failed++
		}
	}
	if failed == 0 {
		return 0
	}
	sc, _ := pool.Get().(*scratch[T])
	if sc == nil {
		sc = &scratch[T]{}
	}
	defer pool.Put(sc)
	for _, o := range l.beside.all() {
		if o == l.Server {
			continue
		}
		sc.items, sc.from = sc.items[:0], sc.from[:0]
		for i := range items {
			if *errOf(&items[i]) != nil {
				sc.items, sc.from = append(sc.items, items[i]), append(sc.from, i)
			}
		}
		if len(sc.items) == 0 {
			break
		}
		ready(o, sc.items)
		for j, i := range sc.from {
			if *errOf(&sc.items[j]) == nil {
				items[i] = sc.items[j]
			}
		}
	}
	for i := range items {
		if err := *errOf(&items[i]); err != nil && errors.Is(err, allocsvr.ErrWouldWait) {
			waiting++
		}
	}
	return waiting
}

// AllocEach and CurrentEach are the AllocSvr's.
var _ interface {
	AllocEach(context.Context, []allocsvr.Ask, time.Duration)
	CurrentEach(context.Context, []allocsvr.Read, time.Duration)
} = local{}
