package router

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// ErrHubClosed ends the waits of a hub that was closed.
var ErrHubClosed = errors.New("route hub is closed")

// Hub holds the newest table and wakes those who wait for a newer one. It
// keeps nothing per watcher, so a slow watcher costs nothing and skips to the
// newest table when it comes back.
type Hub struct {
	now atomic.Pointer[edition]

	mu     sync.Mutex // orders publications
	closed bool
}

// edition is a published table with the means to learn of the next one.
type edition struct {
	table *Table
	// over is closed when another table is published, or the hub is closed.
	over chan struct{}
}

// NewHub makes a hub that holds t; nil is the empty table.
func NewHub(t *Table) *Hub {
	if t == nil {
		t = &Table{}
	}
	h := &Hub{}
	h.now.Store(&edition{table: t, over: make(chan struct{})})
	return h
}

// Load is the newest table; never nil.
func (h *Hub) Load() *Table { return h.now.Load().table }

// Watch is the newest table and a channel that is closed when it no longer is
// the newest, or when the hub is closed: a form of Wait for use in a select.
func (h *Hub) Watch() (*Table, <-chan struct{}) {
	e := h.now.Load()
	return e.table, e.over
}

// Merge publishes what is newer in the message; see Table.Merge. It tells
// whether anything was.
func (h *Hub) Merge(d Delta) (changed bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.Load()
	next, err := held.Merge(d)
	if err != nil || next == held {
		return false, err
	}
	h.publish(next)
	return true, nil
}

// Publish makes t the newest table. It refuses to go back (BackwardsError), or
// to another cluster (ForeignError).
func (h *Hub) Publish(t *Table) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.Load()
	if held.Known() && held.ClusterID != t.ClusterID {
		return &ForeignError{Cluster: held.Cluster, ClusterID: held.ClusterID, GotCluster: t.Cluster, GotClusterID: t.ClusterID}
	}
	if err, behind := t.Behind(held); behind {
		return err
	}
	h.publish(t)
	return nil
}

// Replace makes t the newest table whatever the versions say: for a cluster
// that was restored from a backup.
func (h *Hub) Replace(t *Table) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.publish(t)
}

// publish is called with mu held.
func (h *Hub) publish(t *Table) {
	last := h.now.Load()
	if t == last.table {
		return
	}
	if h.closed { // over is closed already, and stays
		h.now.Store(&edition{table: t, over: last.over})
		return
	}
	h.now.Store(&edition{table: t, over: make(chan struct{})})
	close(last.over)
}

// Wait returns the newest table as soon as it is another than seen. A watcher is
//
//	for t := hub.Load(); err == nil; t, err = hub.Wait(ctx, t) { … }
func (h *Hub) Wait(ctx context.Context, seen *Table) (*Table, error) {
	e := h.now.Load()
	if e.table != seen {
		return e.table, nil
	}
	select {
	case <-e.over:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if t := h.Load(); t != seen {
		return t, nil
	}
	return nil, ErrHubClosed
}

// Close ends all waits; the last table can still be loaded.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		close(h.now.Load().over)
	}
}
