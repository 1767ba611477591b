package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqsvr/seqsvr/chaos/check"
	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/internal/cli"
)

func run(args ...string) (code int, stdout, stderr string) {
	var o, e bytes.Buffer
	root := command()
	root.SetOut(&o)
	root.SetErr(&e)
	code = cli.Run(context.Background(), root, args, &e)
	return code, o.String(), e.String()
}

func save(t *testing.T, second int64) string {
	t.Helper()
	h := &history.History{Seed: 4, Ops: []history.Op{
		{Kind: history.Alloc, Key: "uid/1", N: 1, Call: 1, Return: 2, Outcome: history.OK, First: 1, Count: 1},
		{Kind: history.Alloc, Key: "uid/1", N: 1, Call: 3, Return: 4, Outcome: history.OK, First: second, Count: 1},
	}}
	path := filepath.Join(t.TempDir(), "history.jsonl")
	if err := h.Save(path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheckOfAGoodHistoryExitsZero(t *testing.T) {
	code, out, errs := run("check", save(t, 2))
	var r check.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	if code != 0 || !r.OK || r.Operations != 2 || r.Seed != 4 || errs != "" {
		t.Fatalf("exit %d, %+v, stderr %q", code, r, errs)
	}
}

func TestCheckOfABadHistoryExitsOneAndShowsIt(t *testing.T) {
	code, out, errs := run("check", save(t, 1), "--output", "table")
	if code != 1 || !strings.Contains(out, "VIOLATED") || !strings.Contains(errs, "1..1 were issued twice") {
		t.Fatalf("exit %d\n%s\n%s", code, out, errs)
	}
}

func TestUnreadableHistoryExitsOneWithTheLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h")
	if err := os.WriteFile(path, []byte("{\"history\":1}\nhello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := run("check", path)
	if code != 1 || out != "" || !strings.HasPrefix(errs, "error: "+path+": history, line 2") {
		t.Fatalf("exit %d\n%s\n%s", code, out, errs)
	}
}

func TestEarlierRunIsNotOverwritten(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "cluster"), 0o755); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := run("--duration", "1s", "--log-level", "error", "--report", dir); code != 1 || !strings.Contains(errs, "earlier run") {
		t.Fatalf("exit %d, %s", code, errs)
	}
}

func TestWrongUsageExitsTwo(t *testing.T) {
	for _, args := range [][]string{
		{"check"},
		{"check", "a", "b"},
		{"check", "a", "--output", "xml"},
		{"check", "a", "--step", "-1"},
		{"check", "a", "--nonsense"},
		{"check", "a", "--step", "x"},
		{"--faults", "meteor"},
		{"--duration", "0s"},
		{"--stores", "0"},
		{"--limit", "kill-alloc=soon"},
		{"--output", "xml"},
		{"--lease-ttl", "1ms"},
		{"nonsense"},
	} {
		if code, out, errs := run(args...); code != 2 || out != "" || !strings.HasPrefix(errs, "error: ") {
			t.Errorf("%v: exit %d\n%s\n%s", args, code, out, errs)
		}
	}
}
