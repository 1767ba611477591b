package rpc

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/grpc"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// A client's connections must go when it closes them, and not when the server
// does: nodes come and go while a client runs, and each would leave one behind.
func TestCloseLeavesNoConnection(t *testing.T) {
	f := start(t, Options{})
	for _, c := range []struct {
		name string
		use  func(t *testing.T, c *SeqConn)
	}{
		{"after a call", func(t *testing.T, c *SeqConn) {
			if _, err := c.GetRoutes(context.Background(), &seqpb.RoutesRequest{}); err != nil {
				t.Fatal(err)
			}
		}},
		{"after a call that ran out of time", func(t *testing.T, c *SeqConn) {
			if _, err := c.Alloc(timeout(t, 20*time.Millisecond), &seqpb.AllocRequest{Space: "wait"}); err == nil {
				t.Fatal("answered")
			}
		}},
		{"with a stream that was read", func(t *testing.T, c *SeqConn) {
			if w, err := c.WatchRoutes(context.Background(), &seqpb.RoutesRequest{}); err != nil {
				t.Fatal(err)
			} else if _, err := w.Recv(); err != nil {
				t.Fatal(err)
			}
		}},
		{"with a stream that is being read", func(t *testing.T, c *SeqConn) {
			w, err := c.WatchRoutes(context.Background(), &seqpb.RoutesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				for {
					if _, err := w.Recv(); err != nil {
						return
					}
				}
			}()
			time.Sleep(10 * time.Millisecond)
		}},
		{"right after the context of a stream that is being read", func(t *testing.T, c *SeqConn) {
			ctx, cancel := context.WithCancel(context.Background())
			w, err := c.WatchRoutes(ctx, &seqpb.RoutesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Recv(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error)
			go func() { _, err := w.Recv(); ended <- err }()
			time.Sleep(10 * time.Millisecond)
			cancel()
			<-ended
		}},
		{"with a stream whose messages nobody takes", func(t *testing.T, c *SeqConn) {
			if w, err := c.WatchKeys(context.Background(), &seqpb.WatchKeysRequest{}); err != nil {
				t.Fatal(err)
			} else if _, err := w.Recv(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := DialSeqGRPC(f.addr)
			if err != nil {
				t.Fatal(err)
			}
			c.use(t, conn)
			conn.conns.mu.Lock()
			open := slices.Collect(maps.Keys(conn.conns.open))
			conn.conns.mu.Unlock()
			if len(open) == 0 {
				t.Fatal("nothing was connected")
			}
			conn.Close()
			for _, o := range open {
				if err := o.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
					t.Errorf("a connection is still open: %v", err)
				}
			}
		})
	}
}

// A server that stops closes connections that it has not begun to serve, or its
// kernel does. The calls that opened them are surely not executed.
func TestACallOnAConnectionThatIsNeverServedIsNotSent(t *testing.T) {
	preface := len(grpc.ClientPreface)
	for name, end := range map[string]func(c *net.TCPConn){
		"closed at once": func(*net.TCPConn) {},
		"closed after the preface": func(c *net.TCPConn) {
			_, _ = io.ReadFull(c, make([]byte, preface))
		},
		"reset after the preface": func(c *net.TCPConn) {
			_, _ = io.ReadFull(c, make([]byte, preface))
			_ = c.SetLinger(0)
		},
		"kept without a word": func(c *net.TCPConn) {
			b, err := io.ReadAll(c)
			if err != nil || len(b) > preface {
				t.Errorf("%d bytes came to a server that had said nothing, %v", len(b), err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var ends sync.WaitGroup
			ends.Go(func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					ends.Go(func() {
						end(c.(*net.TCPConn))
						c.Close()
					})
				}
			})
			c, err := DialSeqGRPC(ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Alloc(timeout(t, 30*time.Second), &seqpb.AllocRequest{Uids: []uint64{1}}); !NotSent(err) {
				t.Errorf("answered %v", err)
			}
			c.Close()
			ln.Close()
			ends.Wait()
		})
	}
}
