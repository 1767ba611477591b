package allocsvr

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/session"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
)

// handler is the Server as its session sees it.
type handler struct{ s *Server }

var _ session.Handler = handler{}

// Welcomed implements session.Handler.
func (h handler) Welcomed(w *seqpb.Welcome) error {
	s := h.s
	id := arena.Identity{ClusterID: w.ClusterId, Session: ids.SessionID(w.Session), Incarnation: ids.Incarnation(w.Incarnation)}
	spaces, err := wire.ParseSpaces(w.Spaces)
	if err != nil {
		return err
	}
	if len(spaces) == 0 {
		return errors.New("welcome without spaces")
	}
	if err := s.cfg.knowsSpaces(spaces); err != nil {
		s.fail(err)
		return err
	}
	if now := s.world.Load(); now != nil && !now.lost.Load() && now.session == id.Session {
		return s.arena.Adopt(id.Incarnation)
	}
	s.closeWorld()
	s.window.SetSpaces(s.cfg.windowsOf(spaces))
	if prev := s.previous; w.Resumed && prev.Session == id.Session {
		if err := s.arena.Matches(w.Sections, spaces); err != nil {
			s.fail(err)
			return err
		}
		if err := s.arena.Adopt(id.Incarnation); err != nil {
			return err
		}
		s.log.Info("session resumed, no number is lost", zap.Uint64("session", w.Session), zap.Uint32("incarnation", w.Incarnation))
	} else {
		if prev.Session != 0 {
			s.log.Warn("session not resumed, starting empty", zap.Uint64("session", uint64(prev.Session)), zap.String("reason", w.NotResumed))
		}
		if err := s.arena.Reset(id, w.Sections, spaces); err != nil {
			return err
		}
	}
	s.previous = arena.Identity{}
	world := newWorld(w.ClusterId, w.Set, id.Session, spaces, s.cfg.stepsOf(spaces), w.Sections)
	if t := s.hub.Load(); t.Known() && t.ClusterID == w.ClusterId {
		world.learn(t, true, nil)
	}
	world.early = newEarly(s, world)
	world.keeper = newKeeper(s, world)
	world.sweeper = newSweeper(s, world)
	s.world.Store(world)
	s.changed()
	return nil
}

// Directed implements session.Handler.
func (h handler) Directed(d *seqpb.Directive) {
	if w := h.s.world.Load(); w != nil {
		w.keeper.directed(d)
	}
}

// Routed implements session.Handler.
func (h handler) Routed(pb *seqpb.RouteTable) error {
	s := h.s
	d, err := wire.ParseRoutes(pb)
	if err == nil {
		_, err = s.hub.Merge(d)
	}
	var foreign *router.ForeignError
	if errors.As(err, &foreign) && d.Cluster == s.cfg.Cluster {
		// The leader is of the cluster that we were told to join, so the table
		// in hand is that of a cluster before it.
		var t *router.Table
		if t, err = router.FromDelta(d); err == nil {
			s.log.Warn("route table of another cluster replaced", zap.Error(foreign))
			s.hub.Replace(t)
		}
	}
	if err != nil {
		return err
	}
	if w := s.world.Load(); w != nil {
		w.learn(s.hub.Load(), false, s.window.NotBefore)
	}
	s.changed()
	return nil
}

// Lost implements session.Handler.
func (h handler) Lost(reason string) {
	if w := h.s.world.Load(); w != nil {
		w.lose()
	}
	h.s.changed()
}

// Ended implements session.Handler.
func (h handler) Ended() {
	if w := h.s.world.Load(); w != nil {
		w.lose()
	}
	h.s.endOnce.Do(func() { close(h.s.ended) })
	h.s.changed()
}

// Refused implements session.Handler.
func (h handler) Refused(err *session.RefusedError) { h.s.fail(err) }

// Renewed implements session.Handler.
func (h handler) Renewed() { h.s.changed() }

// Load implements session.Handler.
func (h handler) Load(hb *seqpb.Heartbeat) {
	s := h.s
	t := s.hub.Load()
	hb.MapVersion = t.Map.Version
	w := s.world.Load()
	if w == nil || w.lost.Load() {
		return
	}
	if set := t.Set(w.set); set != nil {
		hb.SetVersion = set.Version
	}
	w.stage.Sweep()
	hb.Directive = w.keeper.carriedOut()
	l := s.load.look(s, w)
	hb.Keys, hb.Rate = uint64(l.keys), l.rate
	hb.Steps = stepsPB(w.lookSteps())
	hb.Section, hb.SectionKeys, hb.SectionRate = l.section, l.sectionKeys, l.sectionRate
}

// closeWorld ends the world that there is: its callers have left, and nothing
// touches the arena for it any more.
func (s *Server) closeWorld() {
	w := s.world.Load()
	if w == nil {
		return
	}
	w.lose()
	w.keeper.close()
	w.sweeper.close()
	w.early.close()
}

// fail reports what an operator must see to. The first one counts.
func (s *Server) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil || s.failure.Error() != err.Error() {
		s.log.Error("this node cannot serve as it is", zap.Error(err))
	}
	s.failure = err
	if w := s.world.Load(); w != nil && !w.lost.Load() && s.session.Alive() {
		return // it serves, thanks to other stores
	}
	select {
	case s.failed <- err:
	default:
	}
}

// Failed delivers what makes this node useless until an operator acts: it joined
// the wrong cluster, or its arena does not fit. A refusal that comes while the node
// serves is only logged. Whoever runs the node should end it; it goes on trying meanwhile.
func (s *Server) Failed() <-chan error { return s.failed }

// ErrNotReady is wrapped by what Ready answers before the node serves.
var ErrNotReady = errors.New("not ready")

// Ready is nil once the node has a session, a lease, and knows its sections.
func (s *Server) Ready() error {
	w := s.world.Load()
	switch {
	case s.closed():
		return fmt.Errorf("%w: stopping", ErrNotReady)
	case s.leaving.Load():
		return fmt.Errorf("%w: leaving, sections are being handed back", ErrNotReady)
	case w == nil || w.lost.Load():
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.failure != nil {
			return fmt.Errorf("%w: %w", ErrNotReady, s.failure)
		}
		return fmt.Errorf("%w: no session: none of the stores %v has answered as the leader", ErrNotReady, s.cfg.Stores)
	case !s.session.Alive():
		return fmt.Errorf("%w: the lease has run out", ErrNotReady)
	case !w.told.Load():
		return fmt.Errorf("%w: not told yet which sections to serve", ErrNotReady)
	}
	return nil
}

// Remaining is for how long the lease holds.
func (s *Server) Remaining() time.Duration { return s.session.Remaining() }
