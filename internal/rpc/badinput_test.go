package rpc

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/seqsvr/seqsvr/internal/rpc/frame"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func rawDial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// serves checks that the server answers a good call.
func serves(t *testing.T, addr string) {
	t.Helper()
	if _, err := dialSeq(t, addr).Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{Uids: []uint64{1}}); err != nil {
		t.Fatalf("the server no longer serves: %v", err)
	}
}

// closesOn writes what the peer would send and reports whether the server closed the connection.
func closesOn(t *testing.T, addr string, write func(c net.Conn)) bool {
	t.Helper()
	c := rawDial(t, addr)
	write(c)
	_, err := io.Copy(io.Discard, c)
	var ne net.Error
	return !errors.As(err, &ne) || !ne.Timeout()
}

func be(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

func TestBadInputCostsItsConnectionOnly(t *testing.T) {
	f := start(t, Options{HandshakeTimeout: 300 * time.Millisecond})
	random := make([]byte, 4096)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	cases := map[string][]byte{
		"random bytes":                        random,
		"an http/1 request":                   []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"a tls hello":                         []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaaaaaaaaaaaaaaaaaa"),
		"a redis command":                     []byte("*2\r\n$4\r\nINCR\r\n$2\r\n42\r\n"),
		"half a preface":                      []byte("PRI * HTTP/2.0\r\n"),
		"a preface and no settings":           []byte(http2.ClientPreface),
		"a preface and garbage":               append([]byte(http2.ClientPreface), random...),
		"nothing":                             {},
		"three bytes":                         {1, 2, 3},
		"a framed message of 4 GB":            append(be(0xffffffff), be(0x90010001)...),
		"a framed message of 100 MB":          append(be(100<<20), be(0x90010001)...),
		"a framed message cut off":            append(append(be(100), be(0x90010001)...), 0, 0, 0, 5, 'A'),
		"a method name of 4 GB":               bytes.Join([][]byte{be(100), be(0x90010001), be(0xffffffff)}, nil),
		"unframed thrift with a string of 2G": append(be(0x80010001), be(0x7fffffff)...),
		"framed thrift":                       bytes.Join([][]byte{be(100), be(0x80010001), be(0x7fffffff)}, nil),
		"ttheader with a huge header":         {0xff, 0xff, 0xff, 0xff, 0x10, 0x00, 0, 0, 0, 0, 0, 1, 0xff, 0xff},
		"ttheader cut off":                    {0, 0, 0, 100, 0x10, 0x00, 0, 0, 0, 0, 0, 1, 0, 1},
		"lean frames and garbage":             append([]byte(frame.Preface), random...),
		"lean frames and a server's frame":    frame.Append([]byte(frame.Preface), frame.End, 0),
		"a lean frame's head cut off":         append([]byte(frame.Preface), 1, 0, 0),
		"a lean frame cut off":                append([]byte(frame.Preface), frameOf(frame.Alloc, 1, make([]byte, 100))[:50]...),
		"a lean frame of 4 GB":                append([]byte(frame.Preface), frameAnnounced(frame.Alloc, 1, 1<<32-1)...),
		"a later version of lean frames":      []byte("seqlean\x02"),
		"telnet's interrupt":                  {0xff, 0xf4, 0xff, 0xfd, 0x06, 0, 0, 0},
	}
	before := heap()
	for name, b := range cases {
		t.Run(name, func(t *testing.T) {
			if !closesOn(t, f.addr, func(c net.Conn) { c.Write(b) }) {
				t.Error("the connection was left open")
			}
			serves(t, f.addr)
		})
	}
	if after := heap(); after > before+16<<20 {
		t.Errorf("the heap grew from %d to %d", before, after)
	}
}

func TestEndlessGarbageIsNotBuffered(t *testing.T) {
	f := start(t, Options{})
	before := heap()
	chunk := bytes.Repeat([]byte{0x42}, 1<<20)
	// 100 MB in one TTHeader "frame", and 100 MB of plain garbage.
	for _, head := range [][]byte{append(be(100<<20), be(0x90010001)...), {0x42}} {
		c := rawDial(t, f.addr)
		c.Write(head)
		sent := 0
		for range 100 {
			n, err := c.Write(chunk)
			sent += n
			if err != nil {
				break
			}
		}
		c.Close()
		t.Logf("took %d bytes before closing", sent)
		if sent > 32<<20 {
			t.Errorf("the server took %d bytes of garbage", sent)
		}
	}
	serves(t, f.addr)
	if after := heap(); after > before+16<<20 {
		t.Errorf("the heap grew from %d to %d", before, after)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// h2 is a raw HTTP/2 client that can misbehave.
type h2 struct {
	*http2.Framer
	c    net.Conn
	enc  *hpack.Encoder
	buf  bytes.Buffer
	next uint32
}

func dialH2(t *testing.T, addr string) *h2 {
	t.Helper()
	c := rawDial(t, addr)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	h := &h2{Framer: http2.NewFramer(c, c), c: c, next: 1}
	h.enc = hpack.NewEncoder(&h.buf)
	h.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *h2) open(t *testing.T, path string, extra ...string) uint32 {
	t.Helper()
	h.buf.Reset()
	fields := append([]string{":method", "POST", ":scheme", "http", ":path", path, ":authority", "x", "content-type", "application/grpc", "te", "trailers"}, extra...)
	for i := 0; i < len(fields); i += 2 {
		if err := h.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	id := h.next
	h.next += 2
	if err := h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.buf.Bytes(), EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	return id
}

// status reads until the stream ends and answers its grpc-status and message.
func (h *h2) status(t *testing.T, id uint32) (string, string) {
	t.Helper()
	for {
		f, err := h.ReadFrame()
		if err != nil {
			t.Fatalf("read: %v", err)
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if f.StreamID != id || !f.StreamEnded() {
				continue
			}
			var st, msg string
			for _, hf := range f.Fields {
				switch hf.Name {
				case "grpc-status":
					st = hf.Value
				case "grpc-message":
					msg = hf.Value
				}
			}
			return st, msg
		case *http2.RSTStreamFrame:
			return "rst", f.ErrCode.String()
		case *http2.GoAwayFrame:
			return "goaway", f.ErrCode.String()
		}
	}
}

func grpcMessage(b []byte) []byte {
	return append(append([]byte{0}, be(uint32(len(b)))...), b...)
}

func TestBadGRPCCallsAreRefusedWithAReason(t *testing.T) {
	f := start(t, Options{})
	const alloc = "/seqsvr.v1.Seq/Alloc"
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	z.Write(make([]byte, 100<<20))
	z.Close()
	packed := append(append([]byte{1}, be(uint32(bomb.Len()))...), bomb.Bytes()...)
	cases := []struct {
		name, path string
		extra      []string
		body       []byte
		end        bool
		status     string
	}{
		{"a message of 100 MB announced", alloc, nil, append([]byte{0}, be(100<<20)...), false, "8"},
		{"a message of 4 GB announced", alloc, nil, append([]byte{0}, be(0xffffffff)...), false, "8"},
		{"an unknown method", "/seqsvr.v1.Seq/Nothing", nil, grpcMessage(nil), true, "12"},
		{"an unknown service", "/other.Thing/Alloc", nil, grpcMessage(nil), true, "12"},
		{"a malformed message", alloc, nil, grpcMessage([]byte{0xff, 0xff, 0xff, 0xff}), true, "3"},
		{"a truncated message", alloc, nil, append([]byte{0}, append(be(100), 'x')...), true, "13"},
		{"a gzip bomb", alloc, []string{"grpc-encoding", "gzip"}, packed, true, "8"},
		{"broken gzip", alloc, []string{"grpc-encoding", "gzip"}, append(append([]byte{1}, be(4)...), 1, 2, 3, 4), true, "3"},
		{"an unknown compression", alloc, []string{"grpc-encoding", "zstd"}, append(append([]byte{1}, be(4)...), 1, 2, 3, 4), true, "12"},
		{"a wrong compression flag", alloc, nil, append([]byte{9}, append(be(1), 'x')...), true, "13"},
	}
	before := heap()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := dialH2(t, f.addr)
			id := h.open(t, c.path, c.extra...)
			for b := c.body; ; {
				n := min(len(b), 16384)
				if err := h.WriteData(id, c.end && n == len(b), b[:n]); err != nil {
					t.Fatal(err)
				}
				if b = b[n:]; len(b) == 0 {
					break
				}
			}
			st, msg := h.status(t, id)
			if st != c.status || msg == "" {
				t.Errorf("got status %s %q, want %s", st, msg, c.status)
			}
			t.Log(st, msg)
			serves(t, f.addr)
		})
	}
	if after := heap(); after > before+16<<20 {
		t.Errorf("the heap grew from %d to %d", before, after)
	}
}

func TestAFrameAboveTheFlowControlWindowIsNotBuffered(t *testing.T) {
	f := start(t, Options{})
	h := dialH2(t, f.addr)
	id := h.open(t, "/seqsvr.v1.Seq/Alloc")
	before := heap()
	chunk := make([]byte, 16384)
	if err := h.WriteData(id, false, append([]byte{0}, be(4<<20)...)); err != nil {
		t.Fatal(err)
	}
	for range 100 << 20 / len(chunk) {
		if err := h.WriteData(id, false, chunk); err != nil {
			break
		}
	}
	serves(t, f.addr)
	if after := heap(); after > before+16<<20 {
		t.Errorf("the heap grew from %d to %d", before, after)
	}
}

func TestOneConnectionTooManyIsClosed(t *testing.T) {
	f := start(t, Options{MaxConns: 3})
	for range 3 {
		rawDial(t, f.addr)
	}
	if !closesOn(t, f.addr, func(net.Conn) {}) {
		t.Error("the fourth connection was kept")
	}
}

func FuzzServerBytes(f *testing.F) {
	s, err := Listen("127.0.0.1:0", Services{Seq: newFakeSeq()}, Options{HandshakeTimeout: 50 * time.Millisecond})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Stop(context.Background()) })
	f.Add([]byte(http2.ClientPreface))
	f.Add(append(be(100), be(0x90010001)...))
	f.Add([]byte(frame.Preface))
	f.Add(append([]byte(frame.Preface), frameOf(frame.Alloc, 1, []byte{0x12, 1, 5})...))
	f.Add(append([]byte(frame.Preface), frameAnnounced(frame.Current, 1, 1<<31)...))
	f.Add([]byte{0, 0, 0, 100, 0x10, 0x00, 0, 0, 0, 0, 0, 1, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.Write(b)
		c.(*net.TCPConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.Copy(io.Discard, c); err != nil {
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				t.Fatalf("left open after %q", b)
			}
		}
	})
}
