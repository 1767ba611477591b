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
	table atomic.Pointer[Table]

	mu sync.Mutex // orders publications; guards what is below
	// changed is closed at the next publication, and replaced.
	changed chan struct{}
	closed  bool
}

// NewHub makes a hub that holds t; nil is the empty table.
func NewHub(t *Table) *Hub {
	if t == nil {
		t = &Table{}
	}
	h := &Hub{changed: make(chan struct{})}
	h.table.Store(t)
	return h
}

// Load is the newest table; never nil.
func (h *Hub) Load() *Table { return h.table.Load() }

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

func (h *Hub) publish(t *Table) {
	h.table.Store(t)
	if !h.closed {
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// Wait returns the newest table as soon as it is another than seen. A watcher is
//
//	for t := hub.Load(); err == nil; t, err = hub.Wait(ctx, t) { … }
func (h *Hub) Wait(ctx context.Context, seen *Table) (*Table, error) {
	for {
		h.mu.Lock()
		changed, closed := h.changed, h.closed
		t := h.Load()
		h.mu.Unlock()
		if t != seen {
			return t, nil
		}
		if closed {
			return nil, ErrHubClosed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Close ends all waits; the last table can still be loaded.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		close(h.changed)
	}
}
