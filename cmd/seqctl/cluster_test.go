package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/cluster"
)

// startCluster runs real stores and AllocSvrs in this process.
func startCluster(t *testing.T) string {
	t.Helper()
	c, err := cluster.Start(cluster.Options{Dir: t.TempDir(), StopLinger: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return c.Endpoints().RPC
}

func TestCommandsAgainstARealCluster(t *testing.T) {
	server := startCluster(t)
	golden(t, server, []struct{ args, want string }{
		{"alloc 42 --output json", `{"key":"42","first":1,"count":1,"prev":0,"discontinuity":false,"replayed":false}` + "\n"},
		{"alloc 42 -n 100 --output json", `{"key":"42","first":2,"count":100,"prev":1,"discontinuity":false,"replayed":false}` + "\n"},
		{"alloc 4294967295 --output json", `{"key":"4294967295","first":1,"count":1,"prev":0,"discontinuity":false,"replayed":false}` + "\n"},
		{"current 42 43 --output json", "{\"key\":\"42\",\"current\":101}\n{\"key\":\"43\",\"current\":0}\n"},
		{"diff 42=100", "KEY  LAST  CURRENT  MISSING\n42    100      101        1\n"},
		{"gaps 42 --output json", `{"key":"42","gaps":[]}` + "\n"},
		{"--space conv --output json alloc -- -1", `{"key":"-1","first":1,"count":1,"prev":0,"discontinuity":false,"replayed":false}` + "\n"},
	})

	t.Run("a request id makes a call repeatable", func(t *testing.T) {
		for _, replayed := range []bool{false, true} {
			_, out, errs := ctl(server, "--space", "conv", "alloc", "si_1", "--request-id", messageID, "--output", "json")
			var r allocJSON
			if err := json.Unmarshal([]byte(out), &r); err != nil || r.First != 1 || r.Replayed != replayed || r.WindowSince == "" {
				t.Errorf("%s %s %v", out, errs, err)
			}
		}
	})

	t.Run("nothing wrong allocates", func(t *testing.T) {
		for _, c := range refusals {
			if code, out, errs := ctl(server, c.args...); code != 2 || out != "" || !strings.Contains(errs, c.says) {
				t.Errorf("%q: exit %d, %q, %q", c.args, code, out, errs)
			}
		}
		golden(t, server, []struct{ args, want string }{{"current 42 --output json", "{\"key\":\"42\",\"current\":101}\n"}})
	})

	t.Run("a healthy cluster has no problems", func(t *testing.T) {
		_, out, errs := ctl(server, "status", "--output", "json")
		var j statusJSON
		if err := json.Unmarshal([]byte(out), &j); err != nil || len(j.Problems) > 0 || len(j.Sets) != 1 || len(j.Sets[0].Stores) != 3 || len(j.Sets[0].Allocs) != 2 {
			t.Errorf("%s %s %v", out, errs, err)
		}
		if _, out, _ := ctl(server, "nodes", "--output", "json"); strings.Count(out, "\n") != 5 || strings.Count(out, tierAlloc) != 2 {
			t.Error(out)
		}
	})

	t.Run("a drain moves everything and loses nothing", func(t *testing.T) {
		code, out, errs := ctl(server, "drain", "a1", "--output", "json")
		var d drainJSON
		if err := json.Unmarshal([]byte(out), &d); code != 0 || err != nil || d.Node != "a1" || d.Moved == 0 || d.Lost != 0 {
			t.Fatalf("%d %s %s %v", code, out, errs, err)
		}
		if _, out, _ := ctl(server, "route", "42", "--output", "json"); !strings.Contains(out, `"owner":"a2"`) {
			t.Errorf("route after the drain: %s", out)
		}
		golden(t, server, []struct{ args, want string }{
			{"alloc 42 --output json", `{"key":"42","first":102,"count":1,"prev":101,"discontinuity":false,"replayed":false}` + "\n"},
			{"undrain a1", "a1 takes sections again\n"},
		})
		if code, _, errs := ctl(server, "drain", "a9"); code != 1 || errs != "error: refused: there is no allocsvr \"a9\": see seqctl nodes\n" {
			t.Errorf("an unknown node: %d %s", code, errs)
		}
		if code, out, errs := ctl(server, "rebalance", "--dry-run", "--output", "json"); code != 0 || !strings.HasPrefix(out, `{"moves":`) {
			t.Errorf("%d %s %s", code, out, errs)
		}
	})
}
