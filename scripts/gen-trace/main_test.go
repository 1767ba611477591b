package main

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/seqsvr/seqsvr/internal/testdata"
)

func TestCommittedTraceIsWhatThisProgramWrites(t *testing.T) {
	committed, err := testdata.ChatTraceText()
	if err != nil {
		t.Fatal(err)
	}
	var now bytes.Buffer
	if err := testdata.WriteTrace(&now, generate(defaults())); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(committed, now.Bytes()) {
		t.Fatal("the committed trace differs: go run ./scripts/gen-trace, and commit its output")
	}
}

func TestTraceIsPlausible(t *testing.T) {
	tr, err := testdata.ChatTrace()
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.Conversations) != 2000 || tr.Messages != 60_000 {
		t.Fatalf("%d conversations, %d messages", len(tr.Conversations), tr.Messages)
	}
	retries, groups, most := 0, 0, 0
	for i, s := range tr.Sends {
		if s.Retry {
			retries++
		}
		if i > 0 && s.At < tr.Sends[i-1].At {
			t.Fatalf("send %d is before the one before it", i)
		}
	}
	for _, c := range tr.Conversations {
		if c.Members > 2 {
			groups++
		}
		if c.Messages == 0 {
			t.Fatalf("conversation %s is silent", c.Name)
		}
		most = max(most, c.Messages)
	}
	t.Logf("%d sends, %d of them retries; %d groups; the busiest conversation has %d messages", len(tr.Sends), retries, groups, most)
	if share := float64(retries) / float64(len(tr.Sends)); share < 0.05 || share > 0.2 {
		t.Errorf("share of retries is %.2f", share)
	}
	if groups < 400 || groups > 800 {
		t.Errorf("%d groups", groups)
	}
	if most < 20*tr.Messages/2000 {
		t.Errorf("the busiest conversation has %d messages: no heavy tail", most)
	}
	ids := map[[16]byte]bool{}
	for m := range tr.Messages {
		ids[tr.RequestID(m)] = true
	}
	if len(ids) != tr.Messages {
		t.Errorf("%d request ids for %d messages", len(ids), tr.Messages)
	}
}

func TestTraceReadsBackAsWritten(t *testing.T) {
	p := defaults()
	p.conversations, p.messages = 20, 300
	want := generate(p)
	var b bytes.Buffer
	if err := testdata.WriteTrace(&b, want); err != nil {
		t.Fatal(err)
	}
	got, err := testdata.ReadTrace(&b)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatal("what was read is not what was written")
	}
}

func TestBadTracesAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"empty":                {"", "line 0"},
		"another file":         {"hello\n", "line 1: not a trace"},
		"another version":      {"seqtrace 2 1 1 1\n", "line 1: not a trace"},
		"unknown line":         {"seqtrace 1 1 1 1\nx 1\n", "line 2: neither"},
		"no such member":       {"seqtrace 1 1 1 1\nc a 2\nm 0 0 2\n", "line 3: no such"},
		"no such conversation": {"seqtrace 1 1 1 1\nc a 2\nm 0 1 0\n", "line 3: no such"},
		"retry of nothing":     {"seqtrace 1 1 1 1\nc a 2\nr 0 0\n", "line 3: a retry"},
		"time going back":      {"seqtrace 1 1 1 1\nc a 2\nm -1 0 0\n", "line 3: neither"},
		"cut":                  {"seqtrace 1 1 1 2\nc a 2\nm 0 0 0\n", "the trace is cut"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := testdata.ReadTrace(strings.NewReader(c.in)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want …%s…", err, c.want)
			}
		})
	}
}
