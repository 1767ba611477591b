package cluster

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/client"
)

// programs are built once for all tests of the package.
var programs = buildOnce()

func buildOnce() func(t *testing.T) string {
	var dir string
	return func(t *testing.T) string {
		t.Helper()
		if dir == "" {
			d, err := os.MkdirTemp("", "seqsvr-bin-")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			if err := BuildPrograms(ctx, d, "storesvr", "allocsvr"); err != nil {
				t.Fatal(err)
			}
			dir = d
		}
		return dir
	}
}

func startProcesses(t *testing.T, o ProcessOptions) *Processes {
	t.Helper()
	o.Bin, o.Dir = programs(t), t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	begin := time.Now()
	p, err := StartProcesses(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %v", time.Since(begin))
	t.Cleanup(func() {
		if t.Failed() {
			var b strings.Builder
			p.Logs(&b, 8<<10)
			t.Log(b.String())
		}
		p.Stop()
	})
	return p
}

func TestProcesses(t *testing.T) {
	p := startProcesses(t, ProcessOptions{Redis: true})
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cl, err := client.Dial(ctx, p.Addrs())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	want := int64(0)
	last := time.Now()
	next := func(what string) {
		t.Helper()
		begin := time.Now()
		defer func() {
			t.Logf("%s: %v, served after %v", what, begin.Sub(last).Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
			last = time.Now()
		}()
		for _, uid := range []uint64{1, 70_000} {
			r, err := cl.Alloc(ctx, client.UID(uid))
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if r.First != want+1 || r.Discontinuity != nil {
				t.Fatalf("%s: got %+v, want %d", what, r, want+1)
			}
		}
		want++
	}
	next("at first")
	for _, m := range p.Allocs {
		if err := m.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		next("after kill -9 and restart of " + m.ID)
	}
	leader, err := p.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := leader.Kill(); err != nil {
		t.Fatal(err)
	}
	next("with the leader killed")
	if err := leader.StartReady(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.Allocs[0].Pause(); err != nil {
		t.Fatal(err)
	}
	if err := p.Allocs[0].Resume(); err != nil {
		t.Fatal(err)
	}
	for _, m := range p.all() {
		if err := m.Term(ctx); err != nil {
			t.Fatalf("SIGTERM: %v", err)
		}
		if err := m.StartReady(ctx); err != nil {
			t.Fatal(err)
		}
		next("after an orderly restart of " + m.ID)
	}
	if _, err := p.AddAlloc(ctx); err != nil {
		t.Fatal(err)
	}
	next("after one more joined")
}

func TestAProcessThatCannotStartSaysWhy(t *testing.T) {
	_, err := StartProcesses(context.Background(), ProcessOptions{
		Bin: programs(t), Dir: t.TempDir(), Stores: 1, Allocs: 1,
		Settings: func(node string) map[string]string {
			if node == "a1" {
				return map[string]string{"stpe": "5"}
			}
			return nil
		},
	})
	if err == nil || !strings.Contains(err.Error(), `unknown key "stpe"`) {
		t.Fatalf("%v", err)
	}
}

func TestADirectoryOfAnotherClusterIsRefused(t *testing.T) {
	name := "one"
	p := startProcesses(t, ProcessOptions{Stores: 1, Allocs: 1, Settings: func(string) map[string]string {
		return map[string]string{"cluster": name}
	}})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s1 := p.Stores[0]
	if err := s1.Term(ctx); err != nil {
		t.Fatal(err)
	}
	name = "two"
	if err := s1.StartReady(ctx); err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(err.Error(), `"one"`) {
		t.Fatalf("%v", err)
	}
	name = "one"
	if err := s1.StartReady(ctx); err != nil {
		t.Fatalf("the refusal left something behind: %v", err)
	}
}
