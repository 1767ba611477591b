package storesvr

import (
	"context"

	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// RoutesServer answers clients' questions for routes with what a StoreSvr knows:
// the Set map, and the owners in its own Set. It is the Seq service of a
// StoreSvr, which serves no numbers.
type RoutesServer struct{ n *Node }

var _ seqpb.Seq = (*RoutesServer)(nil)

// Seq is the node's Seq service.
func (n *Node) Seq() *RoutesServer { return &RoutesServer{n} }

func (s *RoutesServer) check(q *seqpb.RoutesRequest) error {
	if q.Cluster != "" && q.Cluster != s.n.cfg.Cluster {
		return wire.Refusef(seqpb.Code_CODE_INVALID_ARGUMENT, "this node is of cluster %q, not %q", s.n.cfg.Cluster, q.Cluster)
	}
	if q.Set != "" && q.Set != s.n.cfg.Set {
		return wire.Refusef(seqpb.Code_CODE_INVALID_ARGUMENT, "this node is of set %q, not %q: ask the stores of that one", s.n.cfg.Set, q.Set)
	}
	return nil
}

func (s *RoutesServer) since(known routesKnown) (*seqpb.RouteTable, routesKnown, error) {
	var t *seqpb.RouteTable
	err := s.n.fsm.read(func(st *state.State) { t, known = routesSince(&st.Meta, known) })
	return t, known, err
}

// GetRoutes answers as soon as the Set is founded.
func (s *RoutesServer) GetRoutes(_ context.Context, q *seqpb.RoutesRequest) (*seqpb.RouteTable, error) {
	if err := s.check(q); err != nil {
		return nil, err
	}
	t, _, err := s.since(routesKnown{})
	if err == nil && t == nil {
		err = wire.Refusef(seqpb.Code_CODE_NOT_READY, "set %q is not founded yet, or has not heard of the set map", s.n.cfg.Set)
	}
	return t, err
}

// WatchRoutes sends the whole and then what changes, until the caller or the node goes.
func (s *RoutesServer) WatchRoutes(q *seqpb.RoutesRequest, stream seqpb.Seq_WatchRoutesServer) error {
	return s.ServeRoutes(q, stream)
}

// RoutesStream is the sending end of Seq.WatchRoutes.
type RoutesStream interface {
	Context() context.Context
	Send(*seqpb.RouteTable) error
}

// ServeRoutes is WatchRoutes for any stream.
func (s *RoutesServer) ServeRoutes(q *seqpb.RoutesRequest, stream RoutesStream) error {
	if err := s.check(q); err != nil {
		return err
	}
	if !s.n.streams.enter() {
		return wire.Refusef(seqpb.Code_CODE_NOT_READY, "%v", errStopping)
	}
	defer s.n.streams.leave()
	if !take(s.n.streamsN) {
		return wire.Refusef(seqpb.Code_CODE_BUSY, "%d streams are open, no more are taken", streamsMax)
	}
	defer func() { <-s.n.streamsN }()
	known := routesKnown{}
	for {
		changed := s.n.changed.wait()
		t, now, err := s.since(known)
		if err != nil {
			return err
		}
		if t != nil {
			if err := stream.Send(t); err != nil {
				return err
			}
			known = now
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-s.n.closing:
			return wire.Refusef(seqpb.Code_CODE_NOT_READY, "%v", errStopping)
		}
	}
}

func (s *RoutesServer) noNumbers() error {
	return wire.Refusef(seqpb.Code_CODE_NOT_READY, "this is a StoreSvr of set %q: it serves no numbers, ask an AllocSvr (GetRoutes says where they are)", s.n.cfg.Set)
}

// Alloc is refused.
func (s *RoutesServer) Alloc(context.Context, *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
	return nil, s.noNumbers()
}

// Current is refused.
func (s *RoutesServer) Current(context.Context, *seqpb.CurrentRequest) (*seqpb.CurrentReply, error) {
	return nil, s.noNumbers()
}

// Gaps is refused.
func (s *RoutesServer) Gaps(context.Context, *seqpb.GapsRequest) (*seqpb.GapsReply, error) {
	return nil, s.noNumbers()
}

// WatchKeys implements seqpb.Seq: there are no numbers here.
func (s *RoutesServer) WatchKeys(*seqpb.WatchKeysRequest, seqpb.Seq_WatchKeysServer) error {
	return s.noNumbers()
}
