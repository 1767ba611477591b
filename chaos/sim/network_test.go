package sim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// echo answers Alloc with the uids it was asked for, and counts the calls.
type echo struct {
	seqpb.Seq
	calls atomic.Int32
	took  time.Duration
}

func (e *echo) Alloc(ctx context.Context, req *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
	e.calls.Add(1)
	time.Sleep(e.took)
	return &seqpb.AllocReply{First: req.Uids}, nil
}

func (e *echo) WatchRoutes(req *seqpb.RoutesRequest, s seqpb.Seq_WatchRoutesServer) error {
	for v := uint64(1); v <= 20; v++ {
		if err := s.Send(&seqpb.RouteTable{MapVersion: v}); err != nil {
			return err
		}
	}
	return nil
}

// bench is a network with one server "a" and one caller "c".
func bench(t *testing.T, f func(n *Network, srv *echo, proc *process, c seqConn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, newRing(1000))
		srv := &echo{}
		p := n.start("a")
		n.listen(p, services{seq: srv})
		f(n, srv, p, seqConn{net: n, from: n.start("c"), addr: "a:1"})
		n.close()
	})
}

var ask = &seqpb.AllocRequest{Space: "uid", Uids: []uint64{7}}

func TestOnlyADeadTargetRefusesACall(t *testing.T) {
	bench(t, func(n *Network, srv *echo, proc *process, c seqConn) {
		if rep, err := c.Alloc(context.Background(), ask); err != nil || rep.First[0] != 7 {
			t.Fatalf("got %v, %v", rep, err)
		}
		n.kill(proc, false)
		if _, err := c.Alloc(context.Background(), ask); !errors.Is(err, ErrRefused) {
			t.Fatalf("dead target: %v", err)
		}
		if srv.calls.Load() != 1 {
			t.Fatalf("%d calls reached the server", srv.calls.Load())
		}
	})
}

func TestALostReplyLeavesTheOutcomeOpen(t *testing.T) {
	bench(t, func(n *Network, srv *echo, _ *process, c seqConn) {
		n.Hook(func(m *Message) Verdict { return Verdict{Drop: m.Reply} })
		if _, err := c.Alloc(context.Background(), ask); !errors.Is(err, ErrTimeout) {
			t.Fatalf("got %v", err)
		}
		if srv.calls.Load() != 1 {
			t.Fatalf("%d calls reached the server", srv.calls.Load())
		}
	})
}

func TestACrashDuringACallResetsIt(t *testing.T) {
	bench(t, func(n *Network, srv *echo, proc *process, c seqConn) {
		srv.took = 100 * time.Millisecond
		time.AfterFunc(50*time.Millisecond, func() { n.kill(proc, false) })
		if _, err := c.Alloc(context.Background(), ask); !errors.Is(err, ErrReset) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestACopyArrivesLaterAndItsReplyIsDropped(t *testing.T) {
	bench(t, func(n *Network, srv *echo, _ *process, c seqConn) {
		again := make(chan struct{})
		n.Hook(func(m *Message) Verdict {
			if m.Reply {
				return Verdict{Exact: true}
			}
			return Verdict{Again: again}
		})
		if _, err := c.Alloc(context.Background(), ask); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if srv.calls.Load() != 1 {
			t.Fatalf("%d calls before the release", srv.calls.Load())
		}
		close(again)
		time.Sleep(time.Second)
		if srv.calls.Load() != 2 {
			t.Fatalf("%d calls after the release", srv.calls.Load())
		}
	})
}

func TestAPausedHostAnswersWhenItRunsAgain(t *testing.T) {
	bench(t, func(n *Network, srv *echo, _ *process, c seqConn) {
		n.pause("a")
		if _, err := c.Alloc(context.Background(), ask); !errors.Is(err, ErrTimeout) {
			t.Fatalf("got %v", err)
		}
		if srv.calls.Load() != 0 {
			t.Fatal("a paused host served a call")
		}
		n.resume("a")
		time.Sleep(time.Second)
		if srv.calls.Load() != 1 {
			t.Fatal("the held request was not delivered")
		}
	})
}

func TestAOneWayPartitionStopsOneDirection(t *testing.T) {
	bench(t, func(n *Network, srv *echo, _ *process, c seqConn) {
		n.cut("a", "c")
		if _, err := c.Alloc(context.Background(), ask); !errors.Is(err, ErrTimeout) {
			t.Fatalf("got %v", err)
		}
		if srv.calls.Load() != 1 {
			t.Fatal("the other direction is cut too")
		}
	})
}

func TestAStreamIsOrderedAndEnds(t *testing.T) {
	bench(t, func(n *Network, _ *echo, _ *process, c seqConn) {
		w := rough()
		w.Straggle = 0.5
		n.setWeather(w)
		var s *watchClient
		var err error
		for range 20 {
			if s, err = c.watch(context.Background(), &seqpb.RoutesRequest{}); err == nil {
				break
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		for v := uint64(1); v <= 20; v++ {
			rt, err := s.Recv()
			if err != nil || rt.MapVersion != v {
				t.Fatalf("message %d: %v, %v", v, rt, err)
			}
		}
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			t.Fatalf("at the end: %v", err)
		}
	})
}

// holder keeps a stream open and counts what comes.
type holder struct {
	echo
	ended chan error
}

func (h *holder) WatchRoutes(_ *seqpb.RoutesRequest, s seqpb.Seq_WatchRoutesServer) error {
	<-s.Context().Done()
	h.ended <- s.Context().Err()
	return nil
}

func TestAStreamBreaksWhenEitherProcessDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, newRing(1000))
		h := &holder{ended: make(chan error, 9)}
		srv, caller := n.start("a"), n.start("c")
		n.listen(srv, services{seq: h})
		s, err := seqConn{n, caller, "a:1"}.watch(context.Background(), &seqpb.RoutesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		n.kill(srv, false)
		if _, err := s.Recv(); !errors.Is(err, ErrReset) {
			t.Fatalf("server died: %v", err)
		}
		<-h.ended

		srv = n.start("a")
		n.listen(srv, services{seq: h})
		if _, err = (seqConn{n, caller, "a:1"}).watch(context.Background(), &seqpb.RoutesRequest{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		n.kill(caller, false)
		<-h.ended
		n.close()
	})
}

func TestALongPartitionBreaksAStreamAndAShortOneOnlyDelaysIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, newRing(1000))
		a, b := newEnd(context.Background()), newEnd(context.Background())
		l := newLane[seqpb.RouteTable](n, "a", "b", "x", a, b)
		l.patience = time.Second
		n.fly(l.pump)
		n.cut("a", "b")
		time.AfterFunc(900*time.Millisecond, func() { n.heal("a", "b") })
		start := time.Now()
		if err := l.send(&seqpb.RouteTable{MapVersion: 5}); err != nil {
			t.Fatal(err)
		}
		if m, err := l.recv(); err != nil || m.MapVersion != 5 || time.Since(start) < 900*time.Millisecond {
			t.Fatalf("got %v, %v after %s", m, err, time.Since(start))
		}
		n.cut("a", "b")
		if err := l.send(&seqpb.RouteTable{MapVersion: 6}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.recv(); !errors.Is(err, ErrReset) {
			t.Fatalf("got %v", err)
		}
		if err := l.send(&seqpb.RouteTable{}); !errors.Is(err, ErrTimeout) {
			t.Fatalf("sender: %v", err)
		}
		n.close()
	})
}

// counter is the smallest Raft state machine.
type counter struct{ n atomic.Int32 }

func (c *counter) Apply(*raft.Log) any                 { c.n.Add(1); return nil }
func (c *counter) Snapshot() (raft.FSMSnapshot, error) { return nil, errors.New("none") }
func (c *counter) Restore(io.ReadCloser) error         { return nil }

func TestRaftElectsAndReplicatesOverTheNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(3, newRing(1000))
		n.setWeather(rough())
		names := []string{"s1", "s2", "s3"}
		var peers raft.Configuration
		for _, s := range names {
			peers.Servers = append(peers.Servers, raft.Server{ID: raft.ServerID(s), Address: raft.ServerAddress(s + ":1")})
		}
		var nodes []*raft.Raft
		var fsms []*counter
		for _, s := range names {
			p := n.start(s)
			tr := newRaftTransport(n, p, s+":1")
			n.listen(p, services{raft: tr})
			st := raft.NewInmemStore()
			cfg := raft.DefaultConfig()
			cfg.LocalID = raft.ServerID(s)
			cfg.Logger = hclog.NewNullLogger()
			snaps := raft.NewInmemSnapshotStore()
			if err := raft.BootstrapCluster(cfg, st, st, snaps, tr, peers); err != nil {
				t.Fatal(err)
			}
			f := &counter{}
			r, err := raft.NewRaft(cfg, f, st, st, snaps, tr)
			if err != nil {
				t.Fatal(err)
			}
			nodes, fsms = append(nodes, r), append(fsms, f)
		}
		applied := 0
		for i := 0; applied < 50 && i < 2000; i++ {
			for _, r := range nodes {
				if r.State() == raft.Leader && r.Apply(bytes.Repeat([]byte{1}, 10), time.Second).Error() == nil {
					applied++
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		for i, f := range fsms {
			if n := int(f.n.Load()); n < applied || applied < 50 {
				t.Errorf("node %d applied %d of %d", i, n, applied)
			}
		}
		for _, r := range nodes {
			r.Shutdown()
		}
		n.close()
		for _, r := range nodes {
			_ = r.Shutdown().Error()
		}
	})
}
