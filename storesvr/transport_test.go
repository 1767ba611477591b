package storesvr

import (
	"bytes"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
	"go.uber.org/zap"
)

func testLayer(t *testing.T, id, cluster, set string) *streamLayer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{ID: id, Cluster: cluster, Set: set, Logger: zap.NewNop()}
	l := newStreamLayer(ln, raft.ServerAddress(ln.Addr().String()), &cfg)
	t.Cleanup(func() { l.Close(); l.wg.Wait() })
	return l
}

func TestPeersOfOneSetConnect(t *testing.T) {
	a, b := testLayer(t, "n1", "c", "s1"), testLayer(t, "n2", "c", "s1")
	a.setNames(func(raft.ServerAddress) string { return "n2" })
	c, err := a.Dial(b.advertised, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	o, err := b.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 5)
	if _, err := io.ReadFull(o, buf); err != nil || string(buf) != "hello" {
		t.Fatalf("%q %v", buf, err)
	}
}

func TestPeersThatDoNotBelongAreRefusedAndToldWhy(t *testing.T) {
	b := testLayer(t, "n2", "c", "s1")
	for name, c := range map[string]struct {
		from *streamLayer
		want string
		says string
	}{
		"another cluster": {testLayer(t, "n1", "other", "s1"), "", `it is of cluster "other"`},
		"another set":     {testLayer(t, "n1", "c", "s9"), "", `it is of set "s9"`},
		"our own name":    {testLayer(t, "n2", "c", "s1"), "", `"n2", as this node is`},
		"another node":    {testLayer(t, "n1", "c", "s1"), "n3", `it wants "n3"`},
	} {
		c.from.setNames(func(raft.ServerAddress) string { return c.want })
		_, err := c.from.Dial(b.advertised, time.Second)
		var pe *PreambleError
		if !errors.As(err, &pe) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGarbageOnTheRaftPortIsRefusedInBoundedMemory(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{ID: "n1", Cluster: "c", Set: "s1", RaftAddr: ln.Addr().String(), Logger: zap.NewNop()}
	ln.Close()
	tr, err := NewTransport(cfg, cfg.RaftAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.(*Transport).Close()
	head := append([]byte(preambleMagic), 0, preambleVersion)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for name, b := range map[string][]byte{
		"garbage":         bytes.Repeat([]byte{0xde, 0xad}, 1<<20),
		"raft, no magic":  append([]byte{0}, bytes.Repeat([]byte{0xdd, 0xff, 0xff, 0xff, 0xff}, 1000)...),
		"newer version":   append([]byte(preambleMagic), 0, 99),
		"cut short":       head,
		"http":            []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"nobody":          append(head, 1, 'c', 2, 's', '1', 0, 0),
		"lengths too big": append(head, bytes.Repeat([]byte{255}, 4096)...),
	} {
		for range 20 {
			c, err := net.Dial("tcp", cfg.RaftAddr)
			if err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = c.Write(b) // the other end may have closed already
			c.(*net.TCPConn).CloseWrite()
			if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
				t.Fatalf("%s: %v", name, err)
			}
			c.Close()
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8<<20 {
		t.Errorf("%d bytes more after the garbage", grown)
	}
	select {
	case rpc := <-tr.Consumer():
		t.Fatalf("garbage reached raft: %+v", rpc)
	default:
	}
}

func TestASlowSenderDoesNotHoldASlotForLong(t *testing.T) {
	l := testLayer(t, "n1", "c", "s1")
	var conns []net.Conn
	for range handshakesMax {
		c, err := net.Dial("tcp", string(l.advertised))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	eventually(t, 5*time.Second, "all slots are taken", func() bool { return len(l.slots) == handshakesMax })
	// One too many is closed at once.
	c, err := net.Dial("tcp", string(l.advertised))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(2 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, errTimeout(err)) {
		t.Fatalf("the surplus connection is open: %v", err)
	}
	// One byte now and then does not extend the time.
	start := time.Now()
	conns[0].Write([]byte("S"))
	eventually(t, handshakeTimeout+3*time.Second, "the slots are free again", func() bool { return len(l.slots) == 0 })
	if took := time.Since(start); took > handshakeTimeout+2*time.Second {
		t.Errorf("slots were held for %v", took)
	}
}

// errTimeout is err itself if it is a timeout.
func errTimeout(err error) error {
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return err
	}
	return io.ErrNoProgress
}
