package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cli"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// dev is `seqsvr dev` running in this process.
type dev struct {
	listen, redis, http string
	stop                context.CancelFunc
	done                chan int
	stderr              bytes.Buffer
}

var readyLine = regexp.MustCompile(`^ready listen=(\S+) redis=(\S+) http=(\S+)$`)

func run(ctx context.Context, stdout io.Writer, stderr *bytes.Buffer, args ...string) int {
	root := &cobra.Command{Use: "seqsvr"}
	root.AddCommand(devCommand())
	root.SetOut(stdout)
	root.SetErr(stderr)
	return cli.Run(ctx, root, append([]string{"dev"}, args...), stderr)
}

func startDev(t *testing.T, args ...string) *dev {
	t.Helper()
	d := &dev{done: make(chan int, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	d.stop = cancel
	r, w := io.Pipe()
	begin := time.Now()
	go func() {
		code := run(ctx, w, &d.stderr, append([]string{"--listen", "127.0.0.1:0", "--redis", "127.0.0.1:0", "--http", "127.0.0.1:0"}, args...)...)
		w.Close()
		d.done <- code
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	m := readyLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
	if m == nil {
		cancel()
		t.Fatalf("no ready line but %q %v: exit %d %s", line, err, <-d.done, d.stderr.String())
	}
	t.Logf("ready after %v", time.Since(begin))
	d.listen, d.redis, d.http = m[1], m[2], m[3]
	t.Cleanup(cancel)
	return d
}

func (d *dev) end(t *testing.T) {
	t.Helper()
	d.stop()
	if code := <-d.done; code != 0 {
		t.Fatalf("exit %d: %s", code, d.stderr.String())
	}
}

func (d *dev) alloc(t *testing.T) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, []string{d.listen})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := c.Alloc(ctx, client.UID(7))
	if err != nil {
		t.Fatal(err)
	}
	return r.First
}

func TestDevServesAndLeavesNothingBehind(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	shm := arenas()
	d := startDev(t, "--step-policy", "adaptive", "--step-min", "7", "--step-max", "500")
	if n := d.alloc(t); n != 1 {
		t.Errorf("got %d", n)
	}
	d.wantSteps(t, "uid", 7, 500)
	d.end(t)
	if !strings.Contains(d.stderr.String(), "go run ./cmd/seqctl alloc 42") {
		t.Errorf("no commands to paste: %s", d.stderr.String())
	}
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "seqsvr-dev-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if now := arenas(); now != shm {
		t.Errorf("shared memory: %s before, %s after", shm, now)
	}
}

// wantSteps waits until the status, which comes with heartbeats, shows one raise of
// the least adaptive step.
func (d *dev) wantSteps(t *testing.T, space string, least, most uint64) {
	t.Helper()
	conn, err := rpc.DialAdmin(d.listen)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		rep, err := conn.Status(ctx, &seqpb.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		raises, numbers := uint64(0), uint64(0)
		for _, a := range rep.Sets[0].Allocs {
			for _, s := range a.Steps {
				if !s.Adaptive || s.Min != least || s.Max != most {
					t.Fatalf("%s has steps %+v", a.Id, s)
				}
				if s.Space == space {
					raises, numbers = raises+s.Raises, numbers+s.Numbers
				}
			}
		}
		if raises == 1 && numbers == least {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%d raises of %d numbers in all, want one of %d", raises, numbers, least)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func arenas() string {
	files, _ := filepath.Glob("/dev/shm/seqsvr-dev-*")
	return strings.Join(files, " ")
}

func TestDevKeepsItsStateAndOthersOut(t *testing.T) {
	dir := t.TempDir()
	for want := int64(1); want <= 3; want++ {
		d := startDev(t, "--data", dir)
		if n := d.alloc(t); n != want {
			t.Errorf("got %d, want %d", n, want)
		}
		var stderr bytes.Buffer
		if code := run(context.Background(), io.Discard, &stderr, "--data", dir, "--listen", "127.0.0.1:0", "--redis", "", "--http", ""); code != 1 || !strings.Contains(stderr.String(), "is in use by another cluster") {
			t.Errorf("a second one on the directory: exit %d, %s", code, stderr.String())
		}
		d.end(t)
	}
}

func TestDevServesWhereItIsTold(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var stderr bytes.Buffer
	code := run(context.Background(), io.Discard, &stderr, "--listen", ln.Addr().String(), "--redis", "", "--http", "")
	if code != 1 || !strings.Contains(stderr.String(), "address already in use: choose another") {
		t.Errorf("exit %d, %s", code, stderr.String())
	}
}

func TestDevRefusesWhatMakesNoSense(t *testing.T) {
	for _, args := range [][]string{
		{"--sets", "0"}, {"--stores", "0"}, {"--allocs", "0"}, {"--lease-ttl", "1ms"}, {"--raft-timeout", "401ms"}, {"--lease-ttl", "x"}, {"--listen", "nonsense"},
		{"--listen", ""}, {"--redis", "127.0.0.1:99999"}, {"--log-level", "loud"}, {"--step", "0"}, {"--step-policy", "clever"}, {"--step-min", "9", "--step-max", "8"}, {"more"},
	} {
		var stderr bytes.Buffer
		if code := run(context.Background(), io.Discard, &stderr, args...); code != 2 || !strings.HasPrefix(stderr.String(), "error: ") {
			t.Errorf("%q: exit %d, %q", args, code, stderr.String())
		}
	}
}
