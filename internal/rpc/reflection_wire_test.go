package rpc

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// openReflection opens a stream as any gRPC client would. Requests are written to in.
func openReflection(t *testing.T, addr, version string) (rep *http.Response, in *io.PipeWriter) {
	t.Helper()
	h := &http.Transport{Protocols: new(http.Protocols)}
	h.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(h.CloseIdleConnections)
	body, in := io.Pipe()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/grpc.reflection."+version+".ServerReflection/ServerReflectionInfo", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	go func() { _, _ = in.Write(framed(ask(askServices, "*"))) }()
	if rep, err = h.RoundTrip(req); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rep.Body.Close() })
	return rep, in
}

func framed(m []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
}

func readFramed(t *testing.T, r io.Reader) []byte {
	t.Helper()
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		t.Fatal(err)
	}
	m := make([]byte, binary.BigEndian.Uint32(head[1:]))
	if _, err := io.ReadFull(r, m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestReflectionIsServedInBothVersions(t *testing.T) {
	s, err := Listen("127.0.0.1:0", Services{Seq: newFakeSeq()}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Stop(context.Background()) }()
	for _, version := range []string{"v1", "v1alpha"} {
		rep, in := openReflection(t, s.Addr().String(), version)
		if got := readFramed(t, rep.Body); !strings.Contains(string(got), "seqsvr.v1.Seq") {
			t.Fatalf("%s: services %q", version, got)
		}
		_, _ = in.Write(framed(ask(askFileOfSymbol, "seqsvr.v1.Seq.Alloc")))
		if got := readFramed(t, rep.Body); len(told(t, told(t, got, tellFiles)[0], 1)) == 0 {
			t.Fatalf("%s: no file for a method", version)
		}
		in.Close()
		if rest, err := io.ReadAll(rep.Body); len(rest) != 0 || err != nil {
			t.Errorf("%s: after the end: %q %v", version, rest, err)
		}
		if status := rep.Trailer.Get("Grpc-Status"); status != "0" {
			t.Errorf("%s: status %q %q", version, status, rep.Trailer.Get("Grpc-Message"))
		}
	}
}

func TestReflectionTakesNoLargeRequest(t *testing.T) {
	s, err := Listen("127.0.0.1:0", Services{Seq: newFakeSeq()}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Stop(context.Background()) }()
	rep, in := openReflection(t, s.Addr().String(), "v1")
	readFramed(t, rep.Body)
	_, _ = in.Write(framed(ask(askFileByName, strings.Repeat("x", reflectionRequestMax))))
	_, _ = io.ReadAll(rep.Body)
	if status := rep.Trailer.Get("Grpc-Status"); status != "8" {
		t.Errorf("status %q %q, want 8, resource exhausted", status, rep.Trailer.Get("Grpc-Message"))
	}
}

func TestStopEndsAnOpenReflectionStream(t *testing.T) {
	s, err := Listen("127.0.0.1:0", Services{Seq: newFakeSeq()}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	rep, _ := openReflection(t, s.Addr().String(), "v1")
	readFramed(t, rep.Body)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Error(err)
	}
}
