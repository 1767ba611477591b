package allocsvr

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// doorWait is for how long after its start a process keeps callers who come
// before it serves. One that resumes its session serves after a fraction of it.
const doorWait = time.Second

// door is where the callers of a process that has just started wait until it
// serves for the first time. The process before it may have been killed a moment
// ago: its callers are at the port already, and would else be told to come again,
// and most of what they are kept from their numbers would be their own back-off.
//
// It lets everybody through from the first time that the node is ready, or from
// doorWait after the start: what is not ready by then answers so at once.
type door struct {
	isOpen atomic.Bool
	open   chan struct{}
	once   sync.Once
	until  time.Time
}

func newDoor() *door {
	return &door{open: make(chan struct{}), until: time.Now().Add(doorWait)}
}

func (d *door) unlock() {
	d.once.Do(func() {
		d.isOpen.Store(true)
		close(d.open)
	})
}

// atTheDoor waits until the node serves, or has had its time to begin; not longer
// than wait, and not if as many wait already as may.
func (s *Server) atTheDoor(ctx context.Context, wait time.Duration) {
	d := s.door
	if wait = min(wait, time.Until(d.until)); wait <= 0 {
		d.unlock()
		return
	}
	if n := s.waiting.Add(1); n > int64(s.cfg.MaxInFlight) {
		s.waiting.Add(-1)
		return
	}
	defer s.waiting.Add(-1)
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-d.open:
	case <-t.C:
	case <-ctx.Done():
	case <-s.dying:
	}
}

// changed tells everybody who waits that something about sections, routes or
// the lease is different.
func (s *Server) changed() {
	s.news.ring()
	if !s.door.isOpen.Load() && s.Ready() == nil {
		s.door.unlock()
	}
}
