package redis

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// byHand is a loop that moves only when it is told to, with one connection.
type byHand struct {
	*testing.T
	l    *loop
	c    *conn
	peer int
}

func loopByHand(t *testing.T, local Local) *byHand {
	t.Helper()
	s := &Server{
		cfg: Config{
			Local: local, Forward: elsewhereForward{}, Spaces: ids.DefaultSpaces, MaxWait: time.Minute, CallTimeout: time.Second, Logger: zap.NewNop(), linger: time.Minute,
		},
		ctx: context.Background(),
	}
	l, err := newLoop(s)
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.conns.Add(1)
	h := &byHand{t, l, &conn{s: s, l: l, fd: fds[0], authed: true, resp: 2}, fds[1]}
	l.join(h.c)
	t.Cleanup(func() {
		s.wg.Wait()
		l.drop(h.c)
		l.end()
		unix.Close(h.peer)
	})
	return h
}

// send has the peer send.
func (h *byHand) send(b []byte) {
	if n, err := unix.Write(h.peer, b); n != len(b) {
		h.Fatalf("%d of %d bytes are sent: %v", n, len(b), err)
	}
}

// take is what the peer has received.
func (h *byHand) take(b []byte) []byte {
	n, _ := unix.Read(h.peer, b)
	return b[:max(n, 0)]
}

// want has the loop move until the peer has received that.
func (h *byHand) want(want string) {
	h.Helper()
	var got []byte
	buf := make([]byte, 64<<10)
	for range 100 {
		if got = append(got, h.take(buf)...); len(got) >= len(want) {
			break
		}
		h.l.step()
	}
	if string(got) != want {
		h.Fatalf("got %q, want %q", got, want)
	}
}

// Warm and cold keys, those of another node, refusals, arrays and lines.
const medley = "*2\r\n$4\r\nINCR\r\n$1\r\n1\r\n" + "*2\r\n$4\r\nINCR\r\n$3\r\n650\r\n" + "INCR 5000\r\n" + "\r\n" + "*0\r\n" +
	"*3\r\n$6\r\nINCRBY\r\n$3\r\n650\r\n$2\r\n10\r\n" + "INCR x\r\n" + "*4\r\n$4\r\nMGET\r\n$1\r\n1\r\n$4\r\n5000\r\n$3\r\n650\r\n" +
	"GET 650\r\n" + "FOO\r\n" + "*2\r\n$4\r\nECHO\r\n$3\r\n\r\n*\r\n" + "incr 650\r\nPING\r\n"

const medleyReplies = ":1\r\n:1\r\n:1000001\r\n:11\r\n-ERR invalid key: uid \"x\" is not an integer in [0, 4294967295]\r\n" +
	"*3\r\n$1\r\n1\r\n$2\r\n77\r\n$2\r\n11\r\n$2\r\n11\r\n-ERR unknown command 'FOO'\r\n$3\r\n\r\n*\r\n:12\r\n+PONG\r\n"

func TestCommandsMayArriveInAnyPieces(t *testing.T) {
	for at := 1; at < len(medley); at++ {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			h := loopByHand(t, newCounters())
			h.send([]byte(medley[:at]))
			h.l.step()
			h.send([]byte(medley[at:]))
			h.want(medleyReplies)
			if len(h.c.rest) != 0 || !h.c.by.IsZero() {
				t.Errorf("%q is left, until %v", h.c.rest, h.c.by)
			}
		})
	}
	t.Run("byte by byte", func(t *testing.T) {
		h := loopByHand(t, newCounters())
		go func() {
			for i := range len(medley) {
				_, _ = unix.Write(h.peer, []byte{medley[i]})
			}
		}()
		var got []byte
		buf := make([]byte, 1<<10)
		for range 10 * len(medley) {
			if got = append(got, h.take(buf)...); len(got) >= len(medleyReplies) {
				break
			}
			h.l.step()
		}
		if string(got) != medleyReplies {
			t.Fatalf("got %q", got)
		}
	})
}

// countedForward notes how many calls came in one go.
type countedForward struct {
	elsewhereForward
	mu   sync.Mutex
	runs []int
}

func (f *countedForward) Alloc(ctx context.Context, space string, calls []Call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs = append(f.runs, len(calls))
	f.elsewhereForward.Alloc(ctx, space, calls)
}

func TestWhatWaitsInAPipelineWaitsTogether(t *testing.T) {
	f := &countedForward{}
	s, l := start(t, Config{Forward: f})
	c := raw(t, s)
	var in, want strings.Builder
	for i := range 32 {
		switch i % 4 {
		case 0:
			in.WriteString("INCR 1\r\n")
			fmt.Fprintf(&want, ":%d\r\n", i/4+1)
		case 1:
			fmt.Fprintf(&in, "INCR %d\r\n", 601+i)
			want.WriteString(":1\r\n")
		default:
			fmt.Fprintf(&in, "INCR %d\r\n", 5000+i)
			want.WriteString(":1000001\r\n")
		}
	}
	_, _ = io.WriteString(c, in.String()+"QUIT\r\n")
	got, err := io.ReadAll(c)
	if string(got) != want.String()+"+OK\r\n" {
		t.Errorf("%q %v", got, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if fmt.Sprint(l.runs, l.late, f.runs) != "[32] [8] [16]" {
		t.Errorf("allocated in runs of %v, waited in %v, forwarded %v", l.runs, l.late, f.runs)
	}
}

// Random pipelines, against a simple model of what each command answers.
func TestRandomPipelinesAreAnsweredInOrder(t *testing.T) {
	s, _ := start(t, Config{})
	var wg sync.WaitGroup
	for client := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(client)))
			c := raw(t, s)
			r := bufio.NewReader(c)
			last := map[int]int{}
			key := func() int { return 600*rng.IntN(2) + 10 + 10*client + rng.IntN(3) }
			value := func(k int) string {
				if last[k] == 0 {
					return "$-1\r\n"
				}
				return fmt.Sprintf("$%d\r\n%d\r\n", len(fmt.Sprint(last[k])), last[k])
			}
			for range 200 {
				var in, want bytes.Buffer
				for range 1 + rng.IntN(200) {
					k := key()
					switch rng.IntN(12) {
					case 0:
						fmt.Fprintf(&in, "INCR %d\r\n", 5000+k)
						want.WriteString(":1000001\r\n")
					case 1:
						fmt.Fprintf(&in, "GET %d\r\n", k)
						want.WriteString(value(k))
					case 2:
						fmt.Fprintf(&in, "MGET %d 6000 %d\r\n", k, k+1)
						want.WriteString("*3\r\n" + value(k) + "$2\r\n77\r\n" + value(k+1))
					case 3:
						in.WriteString("INCR 1 2\r\n")
						want.WriteString("-ERR wrong number of arguments for 'incr' command\r\n")
					case 4:
						in.WriteString("PING\r\n")
						want.WriteString("+PONG\r\n")
					case 5:
						fmt.Fprintf(&in, "*3\r\n$6\r\nINCRBY\r\n$%d\r\n%d\r\n$1\r\n7\r\n", len(fmt.Sprint(k)), k)
						last[k] += 7
						fmt.Fprintf(&want, ":%d\r\n", last[k])
					default:
						fmt.Fprintf(&in, "INCR %d\r\n", k)
						last[k]++
						fmt.Fprintf(&want, ":%d\r\n", last[k])
					}
				}
				for in.Len() > 0 {
					_, _ = c.Write(in.Next(1 + rng.IntN(500)))
				}
				got := make([]byte, want.Len())
				if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, want.Bytes()) {
					t.Errorf("got %q %v, want %q", got, err, want.Bytes())
					return
				}
			}
		})
	}
	wg.Wait()
}

// awaitConns waits until the server has n connections.
func awaitConns(t *testing.T, s *Server, n int64) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); s.conns.Load() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections are left, want %d", s.conns.Load(), n)
		}
	}
}

func TestAPeerMayLeaveWhileItsCommandWaits(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn) error{
		"closes": (*net.TCPConn).Close,
		"resets": func(c *net.TCPConn) error { _ = c.SetLinger(0); return c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			s, l := start(t, Config{})
			c := raw(t, s)
			_, _ = io.WriteString(c, "INCR 667\r\nINCR 1\r\n")
			<-l.entered
			_ = leave(c.(*net.TCPConn))
			awaitConns(t, s, 1) // it waits all the same: its command is under way
			close(l.block)
			awaitConns(t, s, 0)
		})
	}
	t.Run("sends no more", func(t *testing.T) {
		s, l := start(t, Config{})
		c := raw(t, s)
		_, _ = io.WriteString(c, "INCR 667\r\nINCR 1\r\nINC")
		<-l.entered
		_ = c.(*net.TCPConn).CloseWrite()
		close(l.block)
		if got, err := io.ReadAll(c); string(got) != ":1\r\n:1\r\n" || err != nil {
			t.Errorf("%q %v", got, err)
		}
		awaitConns(t, s, 0)
	})
}

// What is sent before the end of the stream is answered, also if more than one read is needed.
func TestAHalfClosedPeerGetsItsReplies(t *testing.T) {
	s, _ := start(t, Config{})
	c := raw(t, s)
	const n = 20_000
	go func() {
		_, _ = io.WriteString(c, strings.Repeat("INCR 1\r\n", n))
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if !strings.HasSuffix(string(got), fmt.Sprintf("\r\n:%d\r\n", n)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestAPeerThatDoesNotReadIsNotReadFrom(t *testing.T) {
	h := loopByHand(t, newCounters())
	in := []byte(strings.Repeat("INFO\r\n", 1000))
	sent := 0
	for len(h.c.unsent) == 0 {
		h.send(in)
		sent += 1000
		h.l.step()
	}
	const infoMax = 300
	for range 3 {
		if n := len(h.c.unsent); n > unsentMax+infoMax {
			t.Fatalf("%d bytes are kept for a peer that does not read", n)
		}
		// What the peer sends meanwhile stays where it is, but for what was read already.
		h.send(in)
		sent += 1000
		h.l.post(nil)
		h.l.step()
		if n := len(h.c.rest); n > readBytes {
			t.Fatalf("%d bytes are kept of what such a peer sent", n)
		}
	}
	if h.c.by.IsZero() {
		t.Error("it may do so for ever")
	}
	h.send([]byte("ECHO end\r\n"))
	got, buf := []byte{}, make([]byte, 64<<10)
	for !bytes.HasSuffix(got, []byte("$3\r\nend\r\n")) {
		if b := h.take(buf); len(b) > 0 {
			got = append(got, b...)
		} else {
			h.l.step()
		}
	}
	if n := bytes.Count(got, []byte("# Server")); n != sent {
		t.Errorf("%d replies to %d commands", n, sent)
	}
	if !h.c.by.IsZero() {
		t.Error("it is in time, and still has a deadline")
	}
}

func TestAPeerThatDoesNotReadIsCutOff(t *testing.T) {
	s, _ := start(t, Config{MaxWait: 100 * time.Millisecond})
	c := raw(t, s)
	in := []byte(strings.Repeat("INFO\r\n", 1000))
	for {
		if _, err := c.Write(in); err != nil {
			if os.IsTimeout(err) {
				t.Fatal("left open")
			}
			break
		}
	}
	awaitConns(t, s, 0)
}

func TestThousandsOfConnectionsComeAndGo(t *testing.T) {
	s, _ := start(t, Config{})
	fds := func() int {
		e, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(e)
	}
	before := fds()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 250 {
				c, err := net.Dial("tcp", s.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				_ = c.SetDeadline(time.Now().Add(10 * time.Second))
				switch j % 6 {
				case 0: // says nothing
				case 5: // and does not wait for the error
					_, _ = io.WriteString(c, "*999999\r\n$4\r\nMGET\r\n")
				case 1:
					_, _ = io.WriteString(c, "*2\r\n$4\r\nIN")
				case 2: // does not wait for the reply
					_, _ = io.WriteString(c, "INCR 601\r\nINCR 5000\r\n")
				default:
					_, _ = io.WriteString(c, "INCR 602\r\nPING\r\n")
					r := bufio.NewReader(c)
					a, _ := r.ReadString('\n')
					if b, err := r.ReadString('\n'); a[0] != ':' || b != "+PONG\r\n" {
						t.Errorf("client %d: %q %q %v", i, a, b, err)
					}
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	awaitConns(t, s, 0)
	if after := fds(); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

func TestStopAnswersWhatIsBehindTheCommandUnderWay(t *testing.T) {
	s, l := start(t, Config{})
	c := raw(t, s)
	_, _ = io.WriteString(c, "INCR 667\r\nINCR 1\r\nGET 650\r\nPING\r\n")
	<-l.entered
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop(context.Background()) }()
	<-s.accepting
	close(l.block)
	if got, err := io.ReadAll(c); string(got) != ":1\r\n:1\r\n$-1\r\n+PONG\r\n" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestAListenerOfOtherThanSocketsIsRefused(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	if _, err := detach(b); err == nil {
		t.Error("accepted")
	}
}

// steady has every number at once, and allocates nothing.
type steady struct{ last ids.Seq }

func (s *steady) AllocReady(asks []allocsvr.Ask) int {
	for i := range asks {
		a := &asks[i]
		a.Result, a.Err = allocsvr.Result{First: s.last + 1, Count: a.N}, nil
		s.last += ids.Seq(a.N)
	}
	return 0
}

func (s *steady) CurrentReady(reads []allocsvr.Read) int {
	for i := range reads {
		reads[i].Value, reads[i].Err = s.last, nil
	}
	return 0
}

func (s *steady) AllocEach(context.Context, []allocsvr.Ask, time.Duration) { panic("it need not wait") }
func (s *steady) CurrentEach(context.Context, []allocsvr.Read, time.Duration) {
	panic("it need not wait")
}

// However many commands come in a packet, they cost one wait, one read and one
// write, and the heap nothing.
func TestAWarmPacketCostsThreeSystemCallsAndNoAllocation(t *testing.T) {
	const name = "a_name_of_more_than_thirty_two_bytes"
	spaces := ids.DefaultSpaces()
	for title, in := range map[string]string{
		"one INCR":    "*2\r\n$4\r\nINCR\r\n$2\r\n42\r\n",
		"16 INCR":     strings.Repeat("*2\r\n$4\r\nINCR\r\n$2\r\n42\r\n", 16),
		"300 INCR":    strings.Repeat("*2\r\n$4\r\nINCR\r\n$2\r\n42\r\n", 300),
		"other warm":  "INCRBY 42 7\r\nGET 42\r\nMGET 1 2 3 4 5 6 7 8\r\nPING\r\nPING x\r\nECHO x\r\nSELECT 0\r\n",
		"long names":  "SELECT 1\r\nINCR " + name + "\r\nGET " + name + "\r\nSELECT 0\r\n",
		"blank lines": "\r\n\r\n*0\r\nPING\r\n",
	} {
		t.Run(title, func(t *testing.T) {
			h := loopByHand(t, &steady{last: 1 << 40})
			h.c.s.cfg.Spaces = func() []ids.Space { return spaces }
			b, buf := []byte(in), make([]byte, 64<<10)
			packet := func() {
				h.send(b)
				h.l.step()
				if len(h.take(buf)) == 0 {
					t.Fatal("no reply")
				}
			}
			packet()
			before, runs := h.l.calls, 0
			allocs := testing.AllocsPerRun(100, func() { packet(); runs++ })
			if allocs != 0 {
				t.Errorf("%v allocations", allocs)
			}
			if n := h.l.calls - before; n != 3*uint64(runs) {
				t.Errorf("%d system calls for %d packets", n, runs)
			}
		})
	}
}
