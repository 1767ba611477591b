package redis

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counters owns the keys below 1000 and all names; the forwarder has the others.
type counters struct {
	mu      sync.Mutex
	last    map[ids.Key]ids.Seq
	entered chan struct{}
	block   chan struct{}
	runs    []int // how many came in one go
	late    []int // and how many had to wait together
}

func newCounters() *counters {
	return &counters{last: map[ids.Key]ids.Seq{}, entered: make(chan struct{}), block: make(chan struct{})}
}

func (l *counters) owns(k ids.Key) bool { return k.Space != 1 || k.Hi < 1000 }

// AllocReady answers all but what blocks.
func (l *counters) AllocReady(asks []allocsvr.Ask) (waiting int) {
	l.mu.Lock()
	l.runs = append(l.runs, len(asks))
	l.mu.Unlock()
	for i := range asks {
		a := &asks[i]
		if a.Result, a.Err = (allocsvr.Result{}), allocsvr.ErrWouldWait; l.waits(a.Key) {
			waiting++
			continue
		}
		a.Result, a.Err = l.one(context.Background(), a.Key, a.N)
	}
	return waiting
}

// waits: the keys of 600 to 699 are never ready.
func (l *counters) waits(k ids.Key) bool { return k.Space == 1 && k.Hi/100 == 6 }

func (l *counters) AllocEach(ctx context.Context, asks []allocsvr.Ask, wait time.Duration) {
	l.mu.Lock()
	l.late = append(l.late, len(asks))
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for i := range asks {
		asks[i].Result, asks[i].Err = l.one(ctx, asks[i].Key, asks[i].N)
	}
}

func (l *counters) one(ctx context.Context, k ids.Key, n uint32) (allocsvr.Result, error) {
	switch {
	case k.Space == 1 && k.Hi == 666:
		return allocsvr.Result{}, wire.Refusef(seqpb.Code_CODE_BUSY, "too many\r\n+requests")
	case k.Space == 1 && k.Hi == 667:
		close(l.entered)
		select {
		case <-l.block:
		case <-ctx.Done():
			return allocsvr.Result{}, ctx.Err()
		}
	case n > 1_000_000:
		return allocsvr.Result{}, wire.Refusef(seqpb.Code_CODE_INVALID_ARGUMENT, "count %d is outside [1, 1000000]", n)
	case !l.owns(k):
		return allocsvr.Result{}, wire.Refusef(seqpb.Code_CODE_NOT_OWNER, "not here")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.last[k] + 1
	l.last[k] += ids.Seq(n)
	return allocsvr.Result{First: first, Count: n}, nil
}

func (l *counters) CurrentReady(reads []allocsvr.Read) (waiting int) {
	l.CurrentEach(context.Background(), reads, 0)
	for i := range reads {
		if l.waits(reads[i].Key) {
			reads[i].Err = allocsvr.ErrWouldWait
			waiting++
		}
	}
	return waiting
}

func (l *counters) CurrentEach(_ context.Context, reads []allocsvr.Read, _ time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range reads {
		r := &reads[i]
		r.Value, r.Err = 0, nil
		if !l.owns(r.Key) {
			r.Err = wire.Refusef(seqpb.Code_CODE_NOT_OWNER, "not here")
			continue
		}
		r.Value = l.last[r.Key]
	}
}

type elsewhereForward struct{}

func (elsewhereForward) Alloc(_ context.Context, _ string, calls []Call) {
	for i := range calls {
		if c := &calls[i]; c.Key == "4294967295" {
			c.Err = wire.Refusef(seqpb.Code_CODE_UNAVAILABLE, "no owner")
		} else {
			c.Value = 1_000_000 + int64(c.N)
		}
	}
}

func (elsewhereForward) Current(_ context.Context, _ string, calls []Call) {
	for i := range calls {
		calls[i].Value = 77
	}
}

func start(t *testing.T, cfg Config) (*Server, *counters) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newCounters()
	cfg.Local, cfg.Spaces, cfg.Version = l, ids.DefaultSpaces, "test"
	if cfg.Forward == nil {
		cfg.Forward = elsewhereForward{}
	}
	s, err := Serve(ln, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Stop(ctx)
	})
	return s, l
}

func newClient(t *testing.T, s *Server, o goredis.Options) *goredis.Client {
	t.Helper()
	o.Addr, o.MaxRetries = s.Addr().String(), -1
	c := goredis.NewClient(&o)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestAStandardClientWorks(t *testing.T) {
	s, _ := start(t, Config{})
	ctx := context.Background()
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			c := newClient(t, s, goredis.Options{Protocol: protocol})
			key := fmt.Sprint(protocol)
			if v, err := c.Get(ctx, key).Result(); err != goredis.Nil {
				t.Errorf("GET of an untouched key: %q %v", v, err)
			}
			if v, err := c.Incr(ctx, key).Result(); v != 1 || err != nil {
				t.Errorf("INCR: %d %v", v, err)
			}
			if v, err := c.IncrBy(ctx, key, 100).Result(); v != 101 || err != nil {
				t.Errorf("INCRBY: %d %v", v, err)
			}
			if v, err := c.Get(ctx, key).Result(); v != "101" || err != nil {
				t.Errorf("GET: %q %v", v, err)
			}
			if v, err := c.MGet(ctx, key, "500").Result(); err != nil || fmt.Sprint(v) != "[101 <nil>]" {
				t.Errorf("MGET: %v %v", v, err)
			}
			if v, err := c.Ping(ctx).Result(); v != "PONG" || err != nil {
				t.Errorf("PING: %q %v", v, err)
			}
			if v, err := c.Echo(ctx, "a b").Result(); v != "a b" || err != nil {
				t.Errorf("ECHO: %q %v", v, err)
			}
			if v, err := c.Info(ctx).Result(); err != nil || !strings.Contains(v, "db1:name=conv,kind=name") {
				t.Errorf("INFO: %q %v", v, err)
			}
		})
	}
}

func TestSelectPicksTheSpace(t *testing.T) {
	s, _ := start(t, Config{})
	ctx := context.Background()
	c := newClient(t, s, goredis.Options{DB: 1})
	if v, err := c.Incr(ctx, "si_1001_1002").Result(); v != 1 || err != nil {
		t.Errorf("%d %v", v, err)
	}
	if err := newClient(t, s, goredis.Options{DB: 2}).Incr(ctx, "1").Err(); err == nil || !strings.Contains(err.Error(), "0 is uid, 1 is conv") {
		t.Errorf("%v", err)
	}
}

func TestKeysOwnedElsewhereAreForwarded(t *testing.T) {
	s, _ := start(t, Config{})
	ctx := context.Background()
	c := newClient(t, s, goredis.Options{})
	if v, err := c.IncrBy(ctx, "5000", 3).Result(); v != 1_000_003 || err != nil {
		t.Errorf("%d %v", v, err)
	}
	if v, err := c.Get(ctx, "5000").Result(); v != "77" || err != nil {
		t.Errorf("%q %v", v, err)
	}
}

func TestWhatCannotBeDoneIsAnErrorWithAReason(t *testing.T) {
	s, l := start(t, Config{})
	c := newClient(t, s, goredis.Options{})
	for _, cmd := range []struct {
		args []any
		want string
	}{
		{[]any{"INCR", "abc"}, `ERR invalid key: uid "abc" is not an integer`},
		{[]any{"INCR", "-1"}, "ERR invalid key"},
		{[]any{"INCR", ""}, "ERR invalid key"},
		{[]any{"INCR", "4294967296"}, "ERR invalid key"},
		{[]any{"GET", "1.5"}, "ERR invalid key"},
		{[]any{"MGET", "1", "x"}, "ERR invalid key"},
		{[]any{"INCRBY", "1", "0"}, "ERR increment must be 1 or more"},
		{[]any{"INCRBY", "1", "-5"}, "ERR increment must be 1 or more"},
		{[]any{"INCRBY", "1", "x"}, "ERR value is not an integer"},
		{[]any{"INCRBY", "1", "1e3"}, "ERR value is not an integer"},
		{[]any{"INCRBY", "1", "9223372036854775807"}, "ERR increment is too large"},
		{[]any{"INCRBY", "1", "2000000"}, "count 2000000 is outside"},
		{[]any{"INCR", "666"}, "TRYAGAIN busy: too many  +requests"},
		{[]any{"INCR", "4294967295"}, "TRYAGAIN"},
		{[]any{"INCR"}, "ERR wrong number of arguments for 'incr' command"},
		{[]any{"INCR", "1", "2"}, "ERR wrong number of arguments"},
		{[]any{"SET", "1", "2"}, "ERR unknown command 'SET'"},
		{[]any{"a\r\n+OK", "2"}, `ERR unknown command 'a\r\n+OK'`},
		{[]any{strings.Repeat("x", 100)}, "ERR unknown command"},
		{[]any{"DECR", "1"}, "ERR unknown command"},
		{[]any{"SELECT", "x"}, "ERR DB index"},
		{[]any{"AUTH", "x"}, "ERR Client sent AUTH, but no password is set"},
		{[]any{"HELLO", "4"}, "NOPROTO"},
		{[]any{"CLIENT", "KILL", "x"}, "ERR unknown subcommand"},
	} {
		err := c.Do(context.Background(), cmd.args...).Err()
		if err == nil || !strings.HasPrefix(err.Error(), strings.TrimSuffix(cmd.want, "…")) && !strings.Contains(err.Error(), cmd.want) {
			t.Errorf("%q: %v, want %q", cmd.args, err, cmd.want)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.last) != 0 {
		t.Errorf("a refused command allocated: %v", l.last)
	}
}

func TestAPasswordIsDemanded(t *testing.T) {
	s, _ := start(t, Config{Password: "open sesame"})
	ctx := context.Background()
	if err := newClient(t, s, goredis.Options{}).Incr(ctx, "1").Err(); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("without: %v", err)
	}
	if err := newClient(t, s, goredis.Options{Password: "guess"}).Incr(ctx, "1").Err(); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("wrong: %v", err)
	}
	for _, protocol := range []int{2, 3} {
		c := newClient(t, s, goredis.Options{Password: "open sesame", Protocol: protocol})
		if err := c.Incr(ctx, "1").Err(); err != nil {
			t.Errorf("right: %v", err)
		}
	}
}

func TestPipelinesAreAnsweredInOrder(t *testing.T) {
	s, _ := start(t, Config{})
	c := newClient(t, s, goredis.Options{})
	p := c.Pipeline()
	var cmds []*goredis.IntCmd
	for range 1000 {
		cmds = append(cmds, p.Incr(context.Background(), "9"))
	}
	if _, err := p.Exec(context.Background()); err != nil {
		t.Fatal(err)
	}
	for i, cmd := range cmds {
		if cmd.Val() != int64(i+1) {
			t.Fatalf("reply %d is %d", i, cmd.Val())
		}
	}
}

// All kinds of commands in one packet: each reply belongs to its command.
func TestAMixedPipelineIsAnsweredInOrder(t *testing.T) {
	s, l := start(t, Config{})
	c := raw(t, s)
	_, _ = io.WriteString(c, "INCR 1\r\nINCR 5000\r\nINCR x\r\nINCR 1\r\nGET 1\r\nMGET 1 5000 2\r\nINCRBY 1 10\r\nINCRBY 1 0\r\n"+
		"INCR 4294967295\r\nINCR 2\r\nFOO\r\nINCR 1 2\r\nINCR 1\r\nSELECT 1\r\nINCR 1\r\nINCR 1\r\nquit\r\n")
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		":1", ":1000001", "-ERR invalid key", ":2", "$1", "2", "*3", "$1", "2", "$2", "77", "$-1", ":12", "-ERR increment must",
		"-TRYAGAIN", ":1", "-ERR unknown", "-ERR wrong number", ":13", "+OK", ":1", ":2", "+OK",
	}
	lines := strings.Split(strings.TrimSuffix(string(got), "\r\n"), "\r\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d: %q", len(lines), len(want), lines)
	}
	for i := range want {
		if !strings.HasPrefix(lines[i], want[i]) {
			t.Errorf("line %d is %q, want %q", i, lines[i], want[i])
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if fmt.Sprint(l.runs) != "[2 1 1 2 1 2]" {
		t.Errorf("allocations were made in runs of %v", l.runs)
	}
}

func raw(t *testing.T, s *Server) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

func TestMalformedInputEndsTheConnectionWithAReason(t *testing.T) {
	s, _ := start(t, Config{})
	for name, c := range map[string]struct{ in, want string }{
		"bulk of 1 GB":        {"*2\r\n$4\r\nINCR\r\n$1073741824\r\n", "-ERR Protocol error: invalid bulk length"},
		"negative bulk":       {"*1\r\n$-1\r\n", "-ERR Protocol error: invalid bulk length"},
		"a billion arguments": {"*1000000000\r\n", "-ERR Protocol error: invalid multibulk length"},
		"no bulk":             {"*1\r\nINCR\r\n", "-ERR Protocol error: expected '$'"},
		"bulk without end":    {"*1\r\n$4\r\nPINGxx", "-ERR Protocol error: bulk string without"},
		"endless line":        {strings.Repeat("a", 20_000), "-ERR Protocol error: too big inline"},
		"binary":              {"\x16\x03\x01\x02\x00\n", "-ERR Protocol error"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := raw(t, s)
			_, _ = io.WriteString(conn, c.in)
			got, err := io.ReadAll(conn)
			if !strings.HasPrefix(string(got), c.want) {
				t.Errorf("got %q %v", got, err)
			}
		})
	}
}

func TestInlineCommandsWork(t *testing.T) {
	s, _ := start(t, Config{})
	c := raw(t, s)
	_, _ = io.WriteString(c, "\r\n  incr   3 \nPING\r\nquit\r\nINCR 3\r\n")
	got, err := io.ReadAll(c)
	if string(got) != ":1\r\n+PONG\r\n+OK\r\n" {
		t.Errorf("%q %v", got, err)
	}
}

func TestEndlessInputIsNotBuffered(t *testing.T) {
	s, _ := start(t, Config{})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	arg := append([]byte("$1000\r\n"), append(bytes.Repeat([]byte{'x'}, 1000), '\r', '\n')...)
	for range 10 {
		c := raw(t, s)
		// What the kernel holds for the client the server did not take: megabytes of its own accord.
		_ = c.(*net.TCPConn).SetWriteBuffer(64 << 10)
		_, _ = io.WriteString(c, "*10000\r\n")
		sent := 0
		for range 10_000 {
			n, err := c.Write(arg)
			sent += n
			if err != nil {
				break
			}
		}
		if sent > 8<<20 {
			t.Errorf("the server took %d bytes of one command", sent)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if after.HeapAlloc > before.HeapAlloc+16<<20 {
		t.Errorf("the heap grew from %d to %d", before.HeapAlloc, after.HeapAlloc)
	}
}

func TestASlowCommandIsCutOff(t *testing.T) {
	s, _ := start(t, Config{MaxWait: 100 * time.Millisecond})
	c := raw(t, s)
	_, _ = io.WriteString(c, "*2\r\n$4\r\nIN")
	if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("left open")
	}
	idle := raw(t, s)
	time.Sleep(300 * time.Millisecond)
	_, _ = io.WriteString(idle, "PING\r\n")
	if line, err := bufio.NewReader(idle).ReadString('\n'); line != "+PONG\r\n" {
		t.Errorf("an idle connection was cut off: %q %v", line, err)
	}
}

func TestStopFinishesTheCommandUnderWay(t *testing.T) {
	s, l := start(t, Config{})
	c := newClient(t, s, goredis.Options{})
	idle := raw(t, s)
	got := make(chan error, 1)
	go func() { got <- c.Incr(context.Background(), "667").Err() }()
	<-l.entered
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop(context.Background()) }()
	if _, err := io.ReadAll(idle); err != nil {
		t.Errorf("idle connection: %v", err)
	}
	select {
	case <-stopped:
		t.Fatal("stopped with a command under way")
	default:
	}
	close(l.block)
	if err := <-got; err != nil {
		t.Errorf("the command under way: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestStopGivesUpWhenItsContextEnds(t *testing.T) {
	s, l := start(t, Config{})
	c := newClient(t, s, goredis.Options{})
	got := make(chan error, 1)
	go func() { got <- c.Incr(context.Background(), "667").Err() }()
	<-l.entered
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := s.Stop(ctx); err == nil {
		t.Error("a clean stop with a command stuck")
	}
	if err := <-got; err == nil {
		t.Error("the stuck command succeeded")
	}
}

func TestOneConnectionTooManyIsTold(t *testing.T) {
	s, _ := start(t, Config{MaxConns: 2})
	for range 2 {
		c := raw(t, s)
		_, _ = io.WriteString(c, "PING\r\n")
		_, _ = bufio.NewReader(c).ReadString('\n')
	}
	got, _ := io.ReadAll(raw(t, s))
	if !strings.HasPrefix(string(got), "-ERR max number of clients") {
		t.Errorf("%q", got)
	}
}

// Whatever is sent, and in whatever pieces, the commands are the same.
func FuzzReader(f *testing.F) {
	f.Add([]byte("*2\r\n$4\r\nINCR\r\n$1\r\n1\r\n"), 3)
	f.Add([]byte("PING a\r\n"), 1)
	f.Add([]byte("*1\r\n$0\r\n\r\n\r\n*0\r\nget  1\n"), 2)
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		whole, werr := parseAll(t, b, len(b))
		pieces, perr := parseAll(t, b, max(1, piece))
		if fmt.Sprint(whole) != fmt.Sprint(pieces) || fmt.Sprint(werr) != fmt.Sprint(perr) {
			t.Fatalf("whole: %q %v; in pieces of %d: %q %v", whole, werr, piece, pieces, perr)
		}
	})
}

// parseAll has the commands of b, which arrives in pieces.
func parseAll(t *testing.T, b []byte, piece int) (commands []string, err error) {
	var p parser
	var args [][]byte
	from := 0
	for to := 0; to < len(b); {
		to = min(len(b), to+piece)
		for from < to {
			var n int
			if args, n, err = p.next(b[from:to:to], args); err != nil {
				return commands, err
			}
			if n == 0 {
				break
			}
			from += n
			total := 0
			for _, a := range args {
				total += len(a)
			}
			if total > maxCommand || total > n || len(args) > maxArgs {
				t.Fatalf("%d arguments of %d bytes out of %d", len(args), total, n)
			}
			commands = append(commands, fmt.Sprintf("%q", args))
		}
	}
	return commands, nil
}
