package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func TestAClusterThatIsNotThereIsSaidAtOnce(t *testing.T) {
	for _, args := range [][]string{{"status"}, {"alloc", "1"}, {"drain", "a1"}, {"watch"}, {"nodes"}} {
		began := time.Now()
		code, out, errs := ctl("127.0.0.1:1", args...)
		const want = `error: no server answered at 127.0.0.1:1: start one with "go run ./cmd/seqsvr dev" or pass --server` + "\n"
		if code != 1 || out != "" || errs != want {
			t.Errorf("%q: exit %d, %q, %q", args, code, out, errs)
		}
		if d := time.Since(began); d > 2*time.Second {
			t.Errorf("%q took %v", args, d)
		}
	}
	if _, _, errs := ctl("127.0.0.1:1, 127.0.0.1:2", "status"); !strings.HasPrefix(errs, "error: no server answered at 127.0.0.1:1, 127.0.0.1:2: start") {
		t.Error(errs)
	}
}

func TestTheServerIsTakenFromTheEnvironmentToo(t *testing.T) {
	f := startFake(t)
	t.Setenv(serverVariable, f.addr)
	if code, out, errs := ctl("", "current", "1", "--output", "json"); code != 0 || out != "{\"key\":\"1\",\"current\":0}\n" {
		t.Errorf("%d %q %q", code, out, errs)
	}
	if code, _, _ := ctl("127.0.0.1:1", "current", "1"); code != 1 {
		t.Error("the flag does not count more")
	}
}

func TestOneServerThatAnswersIsEnough(t *testing.T) {
	f := startFake(t)
	mute, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	for _, server := range []string{"127.0.0.1:1," + f.addr, f.addr + ",127.0.0.1:1", mute.Addr().String() + "," + f.addr} {
		for _, args := range [][]string{{"alloc", "1"}, {"status"}, {"undrain", "a1"}} {
			code, errs := 1, ""
			for range 4 { // a machine that stands still may use up the time
				if code, _, errs = ctl(server, append(args, "--timeout", "3s")...); code == 0 {
					break
				}
			}
			if code != 0 {
				t.Errorf("%s %q: %d %s", server, args, code, errs)
			}
		}
	}
}

func TestAServerThatIsNoneOfOursOrNotReadyIsNamed(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	at := mute.Addr().String()
	for _, c := range []struct{ command, says string }{
		{"alloc 1", "error: no seqsvr answered at " + at},
		{"status", "error: no answer from " + at + " in time"},
	} {
		if code, out, errs := timely(at, 300*time.Millisecond, strings.Fields(c.command)...); code != 1 || out != "" || !strings.HasPrefix(errs, c.says) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: %d %q %q", c.command, code, out, errs)
		}
	}
	f := startFake(t, func(f *fake) { f.routes = func() *seqpb.RouteTable { return nil } })
	if code, _, errs := timely(f.addr, 300*time.Millisecond, "alloc", "1"); code != 1 || !strings.HasPrefix(errs, "error: the server at "+f.addr+" does not serve yet: this node has no routes yet") {
		t.Errorf("%d %q", code, errs)
	}
}

func TestAnInterruptionEndsACommand(t *testing.T) {
	f := startFake(t, func(f *fake) {
		f.hang = make(chan struct{})
		f.routes = func() *seqpb.RouteTable { return nil }
	})
	for _, c := range []struct{ command, says string }{
		{"alloc 1", "error: interrupted: nothing was done"},
		{"status", "error: interrupted: nothing was changed"},
		{"rebalance", "error: interrupted: it may or may not have been done: see seqctl status"},
		{"drain a1", "error: interrupted: the drain of a1 goes on in the cluster"},
		{"nodes remove-store n1", "error: interrupted: the change may go on"},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(100*time.Millisecond, cancel)
		began := time.Now()
		code, out, errs := ctlUntil(ctx, f.addr, strings.Fields(c.command)...)
		if code != 1 || out != "" || !strings.HasPrefix(errs, c.says) || time.Since(began) > 3*time.Second {
			t.Errorf("%s: %d %q %q after %v", c.command, code, out, errs, time.Since(began))
		}
	}
}
