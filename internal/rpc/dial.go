package rpc

import (
	"context"
	"errors"
	"sync"

	"github.com/seqsvr/seqsvr/internal/rpc/frame"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb/admin"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb/peer"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb/seq"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb/store"
)

const destination = "seqsvr"

// SeqConn calls the Seq service of one AllocSvr. No call is made by dialling.
type SeqConn struct {
	*link
	c seq.Client
	// frames carries the hot calls, Alloc and Current, if the server knows lean
	// frames; nil for gRPC only.
	frames *framesLink
}

// DialSeq prepares a connection; the first call opens it. addr is host:port. The
// hot calls go over lean frames, or over gRPC to a server that is older.
func DialSeq(addr string) (*SeqConn, error) {
	c, err := DialSeqGRPC(addr)
	if err == nil {
		c.frames = newFramesLink(addr)
	}
	return c, err
}

// DialSeqGRPC is DialSeq for gRPC only.
func DialSeqGRPC(addr string) (*SeqConn, error) {
	l, err := newLink(addr)
	if err != nil {
		return nil, err
	}
	c, err := seq.NewClient(destination, l.opts...)
	if err != nil {
		return nil, err
	}
	return &SeqConn{link: l, c: c}, nil
}

// Close ends the streams, waits for the calls to end (their contexts bound that)
// and closes the connections.
func (c *SeqConn) Close() error {
	err := c.link.Close()
	if c.frames != nil {
		c.frames.close()
	}
	return err
}

func (c *SeqConn) Alloc(ctx context.Context, q *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
	if c.frames != nil {
		rep := &seqpb.AllocReply{}
		if err := c.callFrames(ctx, "Alloc", &framesRequest{kind: frame.Alloc, alloc: q, allocRep: rep}); err == nil {
			return rep, nil
		} else if !errors.Is(err, errNoFrames) {
			return nil, err
		}
	}
	return unary(ctx, c.link, "Alloc", func(ctx context.Context, q *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
		return c.c.Alloc(ctx, q)
	}, q)
}

// callFrames makes a hot call; errNoFrames says to use gRPC.
func (c *SeqConn) callFrames(ctx context.Context, method string, q *framesRequest) error {
	if err := c.begin(method); err != nil {
		return err
	}
	defer c.calls.Done()
	return c.frames.call(ctx, method, q)
}

func (c *SeqConn) Current(ctx context.Context, q *seqpb.CurrentRequest) (*seqpb.CurrentReply, error) {
	if c.frames != nil {
		rep := &seqpb.CurrentReply{}
		if err := c.callFrames(ctx, "Current", &framesRequest{kind: frame.Current, current: q, currentRep: rep}); err == nil {
			return rep, nil
		} else if !errors.Is(err, errNoFrames) {
			return nil, err
		}
	}
	return unary(ctx, c.link, "Current", func(ctx context.Context, q *seqpb.CurrentRequest) (*seqpb.CurrentReply, error) {
		return c.c.Current(ctx, q)
	}, q)
}

func (c *SeqConn) Gaps(ctx context.Context, q *seqpb.GapsRequest) (*seqpb.GapsReply, error) {
	return unary(ctx, c.link, "Gaps", func(ctx context.Context, q *seqpb.GapsRequest) (*seqpb.GapsReply, error) {
		return c.c.Gaps(ctx, q)
	}, q)
}

func (c *SeqConn) GetRoutes(ctx context.Context, q *seqpb.RoutesRequest) (*seqpb.RouteTable, error) {
	return unary(ctx, c.link, "GetRoutes", func(ctx context.Context, q *seqpb.RoutesRequest) (*seqpb.RouteTable, error) {
		return c.c.GetRoutes(ctx, q)
	}, q)
}

// WatchRoutes streams until ctx ends, Close of the stream or of the connection.
func (c *SeqConn) WatchRoutes(ctx context.Context, q *seqpb.RoutesRequest) (*Watch[seqpb.RouteTable], error) {
	s, life, err := openStream(ctx, c.link, "WatchRoutes", func(ctx context.Context) (seq.Seq_WatchRoutesClient, error) {
		return c.c.WatchRoutes(ctx, q)
	})
	if err != nil {
		return nil, err
	}
	return newWatch(life, s.Recv), nil
}

// WatchKeys streams until ctx ends, Close of the stream or of the connection.
func (c *SeqConn) WatchKeys(ctx context.Context, q *seqpb.WatchKeysRequest) (*Watch[seqpb.KeyValues], error) {
	s, life, err := openStream(ctx, c.link, "WatchKeys", func(ctx context.Context) (seq.Seq_WatchKeysClient, error) {
		return c.c.WatchKeys(ctx, q)
	})
	if err != nil {
		return nil, err
	}
	return newWatch(life, s.Recv), nil
}

// Watch is a stream from the server. Recv's io.EOF is the server's regular end.
type Watch[T any] struct {
	life *lifetime
	recv func() (*T, error)
}

func newWatch[T any](life *lifetime, recv func() (*T, error)) *Watch[T] {
	life.resetWhenDone(func() error { _, err := recv(); return err })
	return &Watch[T]{life: life, recv: recv}
}

// Recv waits for the next message. After an error the stream is over.
func (w *Watch[T]) Recv() (m *T, err error) {
	err = w.life.receive(func() error { m, err = w.recv(); return err })
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Close ends the stream; a waiting Recv returns.
func (w *Watch[T]) Close() error {
	w.life.cancel()
	return nil
}

// StoreConn calls the Store service of one StoreSvr.
type StoreConn struct {
	*link
	c store.Client
}

// DialStore prepares a connection; the first call opens it.
func DialStore(addr string) (*StoreConn, error) {
	l, err := newLink(addr)
	if err != nil {
		return nil, err
	}
	c, err := store.NewClient(destination, l.opts...)
	if err != nil {
		return nil, err
	}
	return &StoreConn{l, c}, nil
}

func (c *StoreConn) Execute(ctx context.Context, q *seqpb.ExecuteRequest) (*seqpb.ExecuteReply, error) {
	return unary(ctx, c.link, "Execute", func(ctx context.Context, q *seqpb.ExecuteRequest) (*seqpb.ExecuteReply, error) {
		return c.c.Execute(ctx, q)
	}, q)
}

func (c *StoreConn) Read(ctx context.Context, q *seqpb.ReadRequest) (*seqpb.ReadReply, error) {
	return unary(ctx, c.link, "Read", func(ctx context.Context, q *seqpb.ReadRequest) (*seqpb.ReadReply, error) {
		return c.c.Read(ctx, q)
	}, q)
}

func (c *StoreConn) ReadGaps(ctx context.Context, q *seqpb.ReadGapsRequest) (*seqpb.ReadGapsReply, error) {
	return unary(ctx, c.link, "ReadGaps", func(ctx context.Context, q *seqpb.ReadGapsRequest) (*seqpb.ReadGapsReply, error) {
		return c.c.ReadGaps(ctx, q)
	}, q)
}

// Session opens the session stream. It ends with ctx, with CloseSend once the
// server has ended it too and Recv has said so, or with the connection.
func (c *StoreConn) Session(ctx context.Context) (*SessionStream, error) {
	s, life, err := openStream(ctx, c.link, "Session", func(ctx context.Context) (store.Store_SessionClient, error) {
		return c.c.Session(ctx)
	})
	if err != nil {
		return nil, err
	}
	life.resetWhenDone(func() error { _, err := s.Recv(); return err })
	return &SessionStream{life: life, s: s}, nil
}

// SessionStream is the AllocSvr's end of a session. One goroutine may send
// while another receives; sends are put in order here.
type SessionStream struct {
	life *lifetime
	s    store.Store_SessionClient
	mu   sync.Mutex
}

func (s *SessionStream) Send(m *seqpb.SessionUp) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.s.Send(m); err != nil {
		return classify("Session", s.life.addr, err, s.life.ctx.Err())
	}
	return nil
}

func (s *SessionStream) Recv() (m *seqpb.SessionDown, err error) {
	err = s.life.receive(func() error { m, err = s.s.Recv(); return err })
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (s *SessionStream) CloseSend() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.s.Close()
}

// PeerConn calls the Peer service of one AllocSvr.
type PeerConn struct {
	*link
	c peer.Client
}

// DialPeer prepares a connection; the first call opens it.
func DialPeer(addr string) (*PeerConn, error) {
	l, err := newLink(addr)
	if err != nil {
		return nil, err
	}
	c, err := peer.NewClient(destination, l.opts...)
	if err != nil {
		return nil, err
	}
	return &PeerConn{l, c}, nil
}

func (c *PeerConn) TakeWindow(ctx context.Context, q *seqpb.TakeWindowRequest) (*seqpb.TakeWindowReply, error) {
	return unary(ctx, c.link, "TakeWindow", func(ctx context.Context, q *seqpb.TakeWindowRequest) (*seqpb.TakeWindowReply, error) {
		return c.c.TakeWindow(ctx, q)
	}, q)
}

// AdminConn calls the Admin service of any node.
type AdminConn struct {
	*link
	c admin.Client
}

// DialAdmin prepares a connection; the first call opens it.
func DialAdmin(addr string) (*AdminConn, error) {
	l, err := newLink(addr)
	if err != nil {
		return nil, err
	}
	c, err := admin.NewClient(destination, l.opts...)
	if err != nil {
		return nil, err
	}
	return &AdminConn{l, c}, nil
}

func (c *AdminConn) Status(ctx context.Context, q *seqpb.StatusRequest) (*seqpb.StatusReply, error) {
	return unary(ctx, c.link, "Status", func(ctx context.Context, q *seqpb.StatusRequest) (*seqpb.StatusReply, error) {
		return c.c.Status(ctx, q)
	}, q)
}

func (c *AdminConn) Undrain(ctx context.Context, q *seqpb.DrainRequest) (*seqpb.UndrainReply, error) {
	return unary(ctx, c.link, "Undrain", func(ctx context.Context, q *seqpb.DrainRequest) (*seqpb.UndrainReply, error) {
		return c.c.Undrain(ctx, q)
	}, q)
}

func (c *AdminConn) Rebalance(ctx context.Context, q *seqpb.RebalanceRequest) (*seqpb.RebalanceReply, error) {
	return unary(ctx, c.link, "Rebalance", func(ctx context.Context, q *seqpb.RebalanceRequest) (*seqpb.RebalanceReply, error) {
		return c.c.Rebalance(ctx, q)
	}, q)
}

func (c *AdminConn) AddStore(ctx context.Context, q *seqpb.AddStoreRequest) (*seqpb.StoreChangeReply, error) {
	return unary(ctx, c.link, "AddStore", func(ctx context.Context, q *seqpb.AddStoreRequest) (*seqpb.StoreChangeReply, error) {
		return c.c.AddStore(ctx, q)
	}, q)
}

func (c *AdminConn) RemoveStore(ctx context.Context, q *seqpb.RemoveStoreRequest) (*seqpb.StoreChangeReply, error) {
	return unary(ctx, c.link, "RemoveStore", func(ctx context.Context, q *seqpb.RemoveStoreRequest) (*seqpb.StoreChangeReply, error) {
		return c.c.RemoveStore(ctx, q)
	}, q)
}

// Drain streams its progress.
func (c *AdminConn) Drain(ctx context.Context, q *seqpb.DrainRequest) (*Watch[seqpb.DrainProgress], error) {
	s, life, err := openStream(ctx, c.link, "Drain", func(ctx context.Context) (admin.Admin_DrainClient, error) {
		return c.c.Drain(ctx, q)
	})
	if err != nil {
		return nil, err
	}
	return newWatch(life, s.Recv), nil
}
