package redis

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// arrayOf is a command of n arguments after its name.
func arrayOf(name string, n int, arg func(i int) string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n$%d\r\n%s\r\n", n+1, len(name), name)
	for i := range n {
		a := arg(i)
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.String()
}

// Clients write a command whole before they read; what they hear then is the
// reason, not a reset.
func TestACommandBeyondTheLimitsIsToldWhy(t *testing.T) {
	uid := func(i int) string { return fmt.Sprint(4_000_000_000 + i) }
	long := func(n int) func(int) string {
		return func(int) string { return strings.Repeat("x", n) }
	}
	for name, c := range map[string]struct{ in, want string }{
		"one key too many":        {arrayOf("MGET", 10_001, uid), "a command and at most 10000 arguments"},
		"the longest names":       {arrayOf("MGET", 10_001, long(128)), "a command and at most 10000 arguments"},
		"a hundred thousand keys": {arrayOf("MGET", 100_000, uid), "a command and at most 10000 arguments"},
		"too long in all":         {arrayOf("MGET", 3000, long(1000)), "command of more than"},
		"a large value":           {arrayOf("SET", 2, long(1<<20)), "invalid bulk length: at most 1024 bytes"},
		"a large line":            {"MGET" + strings.Repeat(" 1", 1<<20) + "\r\n", "too big inline request"},
		"behind a good one":       {"INCR 650\r\n" + arrayOf("MGET", 20_000, uid), "a command and at most 10000 arguments"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := start(t, Config{})
			conn := raw(t, s)
			if _, err := io.WriteString(conn, c.in); err != nil {
				t.Fatalf("it cannot be sent whole: %v", err)
			}
			got, err := io.ReadAll(conn)
			reply := strings.TrimPrefix(string(got), ":1\r\n")
			if !strings.HasPrefix(reply, "-ERR Protocol error: ") || !strings.Contains(reply, c.want) || !strings.HasSuffix(reply, "\r\n") || err != nil {
				t.Errorf("got %q %v", got, err)
			}
			conn.Close()
			awaitConns(t, s, 0)
		})
	}
}

func TestAPeerThatSendsForEverAfterItsLastReplyIsCutOff(t *testing.T) {
	for name, c := range map[string]struct {
		maxWait time.Duration
		last    string
		piece   int
		pause   time.Duration
	}{
		"by the amount":           {time.Hour, "*1000000\r\n", 64 << 10, 0},
		"by the time":             {100 * time.Millisecond, "*1000000\r\n", 1, time.Millisecond},
		"by the time, after QUIT": {100 * time.Millisecond, "QUIT\r\n", 1, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := start(t, Config{MaxWait: c.maxWait})
			conn := raw(t, s)
			_ = conn.(*net.TCPConn).SetWriteBuffer(64 << 10)
			_, err := io.WriteString(conn, c.last)
			for piece := make([]byte, c.piece); err == nil; time.Sleep(c.pause) {
				_, err = conn.Write(piece)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("left open")
			}
			awaitConns(t, s, 0)
		})
	}
}

// Of what a peer sends after its last reply nothing is kept.
func TestWhatComesAfterTheLastReplyIsNotKept(t *testing.T) {
	h := loopByHand(t, newCounters())
	h.send([]byte("*1000000\r\n$4\r\nMGET\r\n$1\r\n1\r\n"))
	h.want("-ERR Protocol error: invalid multibulk length: a command and at most 10000 arguments are accepted\r\n")
	piece := make([]byte, readBytes)
	for sent := 0; h.c.fd >= 0; {
		if n := cap(h.c.rest) + cap(h.c.unsent) + cap(h.c.parser.spans); n != 0 {
			t.Fatalf("%d bytes are kept", n)
		}
		if h.c.by.IsZero() {
			t.Fatal("it may go on for ever")
		}
		if sent > discardMax {
			t.Fatal("it may send without end")
		}
		h.send(piece)
		sent += len(piece)
		h.l.step()
	}
	if h.l.open != 0 || len(h.l.late) != 0 {
		t.Errorf("%d connections, %d of them late", h.l.open, len(h.l.late))
	}
}
