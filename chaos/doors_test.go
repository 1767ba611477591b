package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// door is an address that anybody can send anything to.
type door struct {
	name, addr string
	grpc       bool
}

// growthMax is how much a process may grow while it is sent rubbish.
const growthMax = 64 << 20

// knock sends rubbish to every door of the cluster. It may cost the connection, but never the process, its memory or the service.
func knock(t *testing.T, f *fleet) {
	before := map[string]int64{}
	for _, n := range append(f.Allocs(), f.Stores()...) {
		before[n] = memory(t, f, n)
	}
	for _, d := range f.doors() {
		for name, send := range rubbish() {
			t.Run(d.name+"/"+name, func(t *testing.T) { throw(t, d, send) })
		}
		if d.grpc {
			t.Run(d.name+"/unknown method", func(t *testing.T) {
				if status := callUnknown(t, d.addr); status != "12" {
					t.Errorf("grpc-status %q, want 12 (unimplemented)", status)
				}
			})
		}
	}
	t.Run("requests that are wrong", func(t *testing.T) { askWrongly(t, f) })

	for _, n := range append(f.Allocs(), f.Stores()...) {
		if after := memory(t, f, n); after > before[n]+growthMax {
			t.Errorf("%s grew from %d to %d MB", n, before[n]>>20, after>>20)
		}
	}
	c := f.client
	for uid := range uint64(20) {
		if _, err := c.Alloc(t.Context(), client.UID(900_000_000+uid)); err != nil {
			t.Errorf("not served after all that: %v", err)
		}
	}
}

// rubbish is what to send: each writes until it is done or the peer has had enough.
func rubbish() map[string]func(io.Writer) {
	rng := rand.New(rand.NewPCG(5, 5))
	random := make([]byte, 64<<10)
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	frame := func(length uint32, magic []byte, body int) func(io.Writer) {
		return func(w io.Writer) {
			head := append(binary.BigEndian.AppendUint32(nil, length), magic...)
			if _, err := w.Write(head); err != nil {
				return
			}
			for chunk := make([]byte, 1<<20); body > 0; body -= len(chunk) {
				if _, err := w.Write(chunk[:min(body, len(chunk))]); err != nil {
					return
				}
			}
		}
	}
	ttheader := []byte{0x10, 0, 0, 0, 0, 0, 0, 1, 0, 1}
	text := func(s string) func(io.Writer) {
		return func(w io.Writer) { _, _ = io.WriteString(w, s) }
	}
	return map[string]func(io.Writer){
		"garbage":              func(w io.Writer) { _, _ = w.Write(random) },
		"nothing":              func(io.Writer) {},
		"a truncated frame":    frame(1000, ttheader, 10),
		"a frame of 100 MB":    frame(100<<20, ttheader, 100<<20),
		"100 MB of zeros":      frame(0, nil, 100<<20),
		"an HTTP/1 request":    text("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"),
		"an HTTP/2 preface":    text("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff"),
		"a RESP array of 2^30": text("*1073741824\r\n$3\r\nGET\r\n"),
		"a RESP bulk of -5":    text("*2\r\n$-5\r\n"),
		"a line without end":   func(w io.Writer) { _, _ = w.Write(bytes.Repeat([]byte{'a'}, 8<<20)) },
	}
}

// throw sends rubbish, says that nothing more will come, and wants the connection to end.
func throw(t *testing.T, d door, send func(io.Writer)) {
	conn, err := net.DialTimeout("tcp", d.addr, 5*time.Second)
	must(t, err)
	defer func() { _ = conn.Close() }()
	must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	go func() {
		send(conn)
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	}()
	_, err = io.Copy(io.Discard, conn)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("the connection is still open after 20 s")
	}
}

// callUnknown calls a method that no service has, as any gRPC client would, and gives the status.
func callUnknown(t *testing.T, addr string) string {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: &p}
	defer tr.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/seqsvr.v1.Seq/Explode", bytes.NewReader([]byte{0, 0, 0, 0, 0}))
	must(t, err)
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	resp, err := tr.RoundTrip(req)
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.Trailer.Get("Grpc-Status") + resp.Header.Get("Grpc-Status")
}

// askWrongly sends well-formed messages that ask for what cannot be given.
func askWrongly(t *testing.T, f *fleet) {
	conn, err := rpc.DialSeqGRPC(f.p.Allocs[0].RPCAddr)
	must(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	uid := []uint64{42}
	before := f.current(t, 42)
	for name, req := range map[string]*seqpb.AllocRequest{
		"an unknown space":           {Space: "nope", Uids: uid},
		"no space":                   {Uids: uid},
		"a uid past the last":        {Space: "uid", Uids: []uint64{1 << 32}},
		"no key":                     {Space: "uid"},
		"names in a uid space":       {Space: "uid", Names: []string{"a"}},
		"uids in a name space":       {Space: "conv", Uids: uid},
		"an empty name":              {Space: "conv", Names: []string{""}},
		"a name of 129 bytes":        {Space: "conv", Names: []string{strings.Repeat("a", 129)}},
		"a name that is not UTF-8":   {Space: "conv", Names: []string{"\xff\xfe"}},
		"a count of 0":               {Space: "uid", Uids: uid, Counts: []uint32{0}},
		"a count past the limit":     {Space: "uid", Uids: uid, Counts: []uint32{1 << 31}},
		"counts that do not fit":     {Space: "uid", Uids: uid, Counts: []uint32{1, 2}},
		"a request id of 3 bytes":    {Space: "uid", Uids: uid, RequestIds: [][]byte{{1, 2, 3}}},
		"a request id of zeros":      {Space: "uid", Uids: uid, RequestIds: [][]byte{make([]byte, 16)}},
		"more keys than are allowed": {Space: "uid", Uids: make([]uint64, 200_000)},
	} {
		rep, err := conn.Alloc(ctx, req)
		if err == nil {
			t.Errorf("%s: answered %v", name, rep)
			continue
		}
		if err.Error() == "" {
			t.Errorf("%s: refused without a reason", name)
		}
		t.Logf("%s: %v", name, err)
	}
	if after := f.current(t, 42); after != before {
		t.Errorf("refused requests moved the counter from %d to %d", before, after)
	}
}

// current reads a uid through the SDK.
func (f *fleet) current(t *testing.T, uid uint64) int64 {
	n, err := f.client.Current(t.Context(), client.UID(uid))
	must(t, err)
	return n
}

// memory is the resident size of a node's process.
func memory(t *testing.T, f *fleet, node string) int64 {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", f.process(node).PID()))
	must(t, err)
	defer func() { _ = file.Close() }()
	for sc := bufio.NewScanner(file); sc.Scan(); {
		// VmRSS counts the arena's shared pages too; RssAnon is the process's own.
		if v, ok := strings.CutPrefix(sc.Text(), "RssAnon:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(v, "kB")), 10, 64)
			must(t, err)
			return kb << 10
		}
	}
	t.Fatalf("no resident size of %s", node)
	return 0
}
