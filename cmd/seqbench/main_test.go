package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seqsvr/seqsvr/internal/cluster"
)

func seqbench(args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = runUntil(context.Background(), args, &o, &e)
	return code, o.String(), e.String()
}

func TestWrongUsageIsExitTwo(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"--target http", "not available yet"},
		{"--target carrier-pigeon", "want one of native"},
		{"--mode fast", "want one of single"},
		{"--target grpc --mode coalesced", "sends each call by itself"},
		{"--target inproc --server 127.0.0.1:1", "has its own cluster"},
		{"--target redis --server 127.0.0.1:1,127.0.0.1:2", "name one"},
		{"--server nowhere", "want HOST:PORT"},
		{"--callers 0", "--callers 0: want 1 to"},
		{"--keys 100000000", "add --no-verify"},
		{"--batch 7", "is for --mode batch"},
		{"--rate -1", "--rate -1"},
		{"--duration ten", "want a duration like 5s"},
		{"--duration 0s", "more than nothing"},
		{"--db 3", "--target redis"},
		{"extra", "see seqbench --help"},
	} {
		if code, out, errs := seqbench(strings.Fields(c.args)...); code != 2 || out != "" || !strings.HasPrefix(errs, "error: ") || !strings.Contains(errs, c.says) {
			t.Errorf("%s: exit %d, %q, %q", c.args, code, out, errs)
		}
	}
}

func TestNoServerIsExitOneWithARemedy(t *testing.T) {
	for _, target := range []string{"native", "grpc", "redis"} {
		code, out, errs := seqbench("--target", target, "--server", "127.0.0.1:1", "--timeout", "300ms")
		if code != 1 || out != "" || !strings.Contains(errs, "answered at 127.0.0.1:1") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: exit %d, %q, %q", target, code, out, errs)
		}
	}
	if code, _, errs := seqbench("--histogram", "/nowhere/at/all"); code != 1 || !strings.Contains(errs, "--histogram") {
		t.Errorf("exit %d, %q", code, errs)
	}
}

func TestEveryTargetAndModeAgainstARealCluster(t *testing.T) {
	c, err := cluster.Start(cluster.Options{Dir: t.TempDir(), Redis: "127.0.0.1:0", StopLinger: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	rpc, redis := c.Endpoints().RPC, c.Endpoints().Redis
	const common = "--callers 4 --keys 300 --timeout 30s --duration 200ms --warmup 0s --output json --first-key"
	for i, args := range []string{
		"--target native --mode single --server " + rpc,
		"--target native --mode batch --batch 50 --server " + rpc,
		"--target native --mode coalesced --dist zipf --server " + rpc,
		"--target native --mode coalesced --rate 500 --server " + rpc,
		"--target native --mode batch --space conv --touch --server " + rpc,
		"--target grpc --mode single --server " + rpc,
		"--target grpc --mode batch --touch --server " + rpc,
		"--target grpc --mode batch --space conv --server " + rpc,
		"--target redis --mode single --server " + redis,
		"--target redis --mode batch --touch --server " + redis,
		"--target redis --mode coalesced --server " + redis,
		"--target redis --mode single --space conv --db 1 --server " + redis,
		"--target inproc --mode single --touch",
		"--target inproc --mode batch --space conv",
	} {
		t.Run(args, func(t *testing.T) {
			// Keys of its own, so that a call that another left behind does no harm.
			all := append(strings.Fields(args+" "+common), strconv.Itoa(1_000_000*i))
			code, out, errs := seqbench(all...)
			var r reportJSON
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				t.Fatalf("exit %d: %v: %s %s", code, err, out, errs)
			}
			if code != 0 || errs != "" || !r.Verified || r.Errors != 0 || r.Allocations == 0 || r.PerSecond <= 0 || r.Latency.P50 <= 0 || r.Latency.Max < r.Latency.P50 {
				t.Errorf("exit %d: %s %s", code, out, errs)
			}
		})
	}
	t.Run("counters need not be new", func(t *testing.T) {
		for range 2 {
			if code, out, errs := seqbench("--server", rpc, "--mode", "coalesced", "--keys", "10", "--callers", "4", "--warmup", "0s", "--duration", "100ms"); code != 0 || !strings.Contains(out, "yes: no duplicate") {
				t.Errorf("exit %d: %s %s", code, out, errs)
			}
		}
	})
	t.Run("what is wrong with the keys or the node is said", func(t *testing.T) {
		for _, c := range []struct {
			args, says string
			code       int
		}{
			{"--space nowhere --server " + rpc, `there is no space "nowhere"`, 2},
			{"--first-key 4294967295 --server " + rpc, "the largest of space uid", 2},
			{"--target grpc --server " + strings.Replace(rpc, "127.0.0.1", "localhost", 1), "name one of 127.0.0.1", 1},
			{"--target redis --space conv --server " + redis, "could not be read", 1},
		} {
			if code, out, errs := seqbench(append(strings.Fields(c.args), "--duration", "10ms")...); code != c.code || out != "" || !strings.Contains(errs, c.says) {
				t.Errorf("%s: exit %d, %q, %q", c.args, code, out, errs)
			}
		}
	})
}

func TestJSONHasTheFieldsOfTheContract(t *testing.T) {
	var out bytes.Buffer
	if err := (&reportJSON{}).print(&out, "json"); err != nil {
		t.Fatal(err)
	}
	for _, f := range strings.Fields("target mode callers batch keys seconds allocations per_second errors latency_us p50 p90 p99 p99_9 max verified") {
		if !strings.Contains(out.String(), fmt.Sprintf("%q:", f)) {
			t.Errorf("no %s in %s", f, out.String())
		}
	}
}

func TestFiguresForPeople(t *testing.T) {
	for ns, want := range map[int64]string{7: "7ns", 1234: "1.23µs", 45678: "45.7µs", 12345678: "12.3ms", 1234567890: "1.23s"} {
		if got := duration(ns); got != want {
			t.Errorf("%d ns: %s, want %s", ns, got, want)
		}
	}
	for x, want := range map[float64]string{0: "0", 999: "999", 1000: "1 000", 1234567.4: "1 234 567"} {
		if got := thousands(x); got != want {
			t.Errorf("%v: %s, want %s", x, got, want)
		}
	}
}

func TestNothingIsLeftRunning(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	if r, errs, err := benched(t, &fake{}, config{callers: 8, keys: 10, duration: 20 * time.Millisecond}); err != nil || !r.Verified {
		t.Errorf("%v %s", err, errs)
	}
}
