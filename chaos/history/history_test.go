package history

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func sample() *History {
	return &History{
		Seed: 7, Step: 100, Skipped: []string{"netem"},
		Ops: []Op{
			{Client: 0, Kind: Alloc, Key: "uid/42", N: 3, Call: 5, Return: 9, Outcome: OK, First: 1, Count: 3, Request: RequestID{1, 2, 15: 9}, WindowSince: 3},
			{Client: 1, Kind: Alloc, Key: "conv/<a&b>", N: 1, Call: 6, Outcome: Unknown},
			{Client: 1, Kind: Alloc, Key: "uid/42", N: 1, Call: 10, Return: 12, Outcome: OK, First: 101, Count: 1, HoleFrom: 4, HoleTo: 100, Replayed: true},
			{Client: 2, Kind: Current, Key: "uid/42", Call: 13, Return: 14, Outcome: OK, Value: 101},
			{Client: 2, Kind: Alloc, Key: "uid/42", N: 1, Call: 15, Return: 16, Outcome: Failed, Err: "busy"},
		},
		Faults: []Fault{{Name: "machine-loss", Node: "a1", Start: 8, End: 9, Losses: 1}},
		Ledger: []Gap{{Key: "uid/42", From: 4, To: 100, Cause: "machine loss"}},
	}
}

func TestSavedHistoryLoadsUnchanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h.jsonl")
	want := sample()
	if err := want.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
}

func TestBadFilesAreRefusedWithTheLine(t *testing.T) {
	var buf bytes.Buffer
	if err := sample().Write(&buf); err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(buf.String(), "\n"), "\n")
	last := len(lines) - 1
	with := func(i int, s string) string {
		c := append([]string(nil), lines...)
		c[i] = s
		return strings.Join(c, "")
	}
	cases := []struct {
		name, in, want string
		line           int
	}{
		{"empty", "", "empty", 1},
		{"not a history", "{\"seq\":1}\n", "not a history", 1},
		{"binary", "\x00\x01\x02", "not a history", 1},
		{"another version", with(0, "{\"history\":2}\n"), "version 2", 1},
		{"cut between lines", strings.Join(lines[:last], ""), "cut", last},
		{"cut inside a line", strings.Join(lines[:2], "") + lines[2][:20], "unexpected EOF", 3},
		{"a line lost", strings.Join(append(append([]string(nil), lines[:3]...), lines[4:]...), ""), "announced", last},
		{"a line after the end", buf.String() + lines[1], "follows", last + 2},
		{"unknown field", with(1, "{\"client\":0,\"op\":\"alloc\",\"key\":\"k\",\"n\":1,\"call\":1,\"outcome\":\"unknown\",\"x\":1}\n"), "unknown field", 2},
		{"unknown op", with(1, "{\"client\":0,\"op\":\"put\",\"key\":\"k\",\"call\":1,\"outcome\":\"ok\"}\n"), `unknown op "put"`, 2},
		{"unknown outcome", with(1, "{\"client\":0,\"op\":\"alloc\",\"key\":\"k\",\"n\":1,\"call\":1,\"outcome\":\"maybe\"}\n"), "unknown outcome", 2},
		{"no key", with(1, "{\"client\":0,\"op\":\"alloc\",\"n\":1,\"call\":1,\"outcome\":\"unknown\"}\n"), "needs a key", 2},
		{"no n", with(1, "{\"client\":0,\"op\":\"alloc\",\"key\":\"k\",\"call\":1,\"outcome\":\"unknown\"}\n"), "n ≥ 1", 2},
		{"answered before it was called", with(1, "{\"client\":0,\"op\":\"alloc\",\"key\":\"k\",\"n\":1,\"call\":5,\"return\":4,\"outcome\":\"ok\"}\n"), "before call", 2},
		{"bad request id", with(1, "{\"client\":0,\"op\":\"alloc\",\"key\":\"k\",\"n\":1,\"call\":5,\"outcome\":\"unknown\",\"request\":\"zz\"}\n"), "not a UUID", 2},
		{"fault without a name", with(6, "{\"fault\":\"\",\"start\":1,\"end\":2}\n"), "needs a name", 7},
		{"fault that ends before it starts", with(6, "{\"fault\":\"x\",\"start\":3,\"end\":2}\n"), "start ≤ end", 7},
		{"empty gap", with(7, "{\"gap\":\"k\",\"from\":3,\"to\":2}\n"), "from ≤ to", 8},
		{"some other object", with(1, "{\"x\":1}\n"), "neither", 2},
		{"endless line", lines[0] + strings.Repeat("x", lineBytesMax+1), "longer than", 2},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(c.in))
			var bad *BadFileError
			if !errors.As(err, &bad) {
				t.Fatalf("got %v, want a BadFileError", err)
			}
			if bad.Line != c.line || !strings.Contains(bad.Reason, c.want) {
				t.Fatalf("got line %d: %s; want line %d: …%s…", bad.Line, bad.Reason, c.line, c.want)
			}
		})
	}
}

func TestLoadingAMissingFileNamesIt(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "none") {
		t.Fatalf("got %v", err)
	}
}

func FuzzRead(f *testing.F) {
	var buf bytes.Buffer
	if err := sample().Write(&buf); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	f.Add([]byte(`{"history":1}` + "\n" + `{"end":0}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := h.Write(&out); err != nil {
			t.Fatal(err)
		}
		again, err := Read(&out)
		if err != nil {
			t.Fatalf("what was read cannot be read again: %v", err)
		}
		if fmt.Sprint(h) != fmt.Sprint(again) {
			t.Fatalf("got  %v\nwant %v", again, h)
		}
	})
}

func TestStampsAreUniqueAndOrderedAlsoInOneInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRecorder()
		a, b := r.Client(), r.Client()
		first := a.Call(Op{Kind: Alloc, Key: "k", N: 1})
		a.Return(first, Op{Outcome: OK, First: 1, Count: 1})
		b.Call(Op{Kind: Alloc, Key: "k", N: 1})
		ops := r.History().Ops
		if ops[0].Return >= ops[1].Call {
			t.Fatalf("answered at %d, then called at %d: the order is lost", ops[0].Return, ops[1].Call)
		}
	})
}

func TestConcurrentRecordingLosesNothing(t *testing.T) {
	r := NewRecorder()
	const clients, each = 8, 500
	var wg sync.WaitGroup
	for range clients {
		l := r.Client()
		for range 2 {
			wg.Go(func() {
				for range each {
					id := l.Call(Op{Kind: Alloc, Key: "k", N: 1})
					l.Return(id, Op{Outcome: OK, First: 1, Count: 1})
				}
			})
		}
	}
	wg.Wait()
	h := r.History()
	if len(h.Ops) != clients*2*each {
		t.Fatalf("%d operations, want %d", len(h.Ops), clients*2*each)
	}
	seen := map[int64]bool{}
	for _, o := range h.Ops {
		if o.Outcome != OK || o.Return <= o.Call || seen[o.Call] || seen[o.Return] {
			t.Fatalf("bad record %+v", o)
		}
		seen[o.Call], seen[o.Return] = true, true
	}
}

func TestWindowSinceBecomesAStamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRecorder()
		time.Sleep(time.Second)
		since := time.Now()
		l := r.Client()
		for _, at := range []time.Time{since, since.Add(-time.Hour), {}} {
			id := l.Call(Op{Kind: Alloc, Key: "k", N: 1})
			a := Op{Outcome: OK, First: 1, Count: 1}
			if !at.IsZero() {
				a.WindowSince = at.UnixNano()
			}
			l.Return(id, a)
		}
		ops := r.History().Ops
		if ops[0].WindowSince != int64(time.Second) || ops[1].WindowSince != 1 || ops[2].WindowSince != 0 {
			t.Fatalf("got %d, %d, %d", ops[0].WindowSince, ops[1].WindowSince, ops[2].WindowSince)
		}
	})
}

func TestUnansweredOperationIsUnknownAndLastingFaultEndsNow(t *testing.T) {
	r := NewRecorder()
	l := r.Client()
	l.Call(Op{Kind: Alloc, Key: "k", N: 1, Outcome: OK})
	end := r.Fault(Fault{Name: "pause"})
	h := r.History()
	if h.Ops[0].Outcome != Unknown {
		t.Fatalf("outcome %v, want unknown", h.Ops[0].Outcome)
	}
	if h.Faults[0].End <= h.Faults[0].Start {
		t.Fatalf("fault %+v has no end", h.Faults[0])
	}
	end()
	if after := r.History(); after.Faults[0].End == 0 {
		t.Fatal("ending the fault was not recorded")
	}
}
