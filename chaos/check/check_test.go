package check

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// script reads a history of key k, one operation a line:
//
//	1-2 alloc 1..3             called at 1, answered at 2 with 1..3
//	3-4 alloc 101 hole=4..100  with a discontinuity
//	5-6 alloc 7 id=a replayed
//	5-? alloc n=2              no answer
//	5-6 failed n=2 err=busy
//	7-8 read 3
//	fault NAME 3-4 losses=1 planned
//	ledger 4..100 advance
func script(t testing.TB, text string) *history.History {
	t.Helper()
	h := &history.History{Step: 100}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		switch f[0] {
		case "fault":
			x := history.Fault{Name: f[1]}
			scan(t, f[2], "%d-%d", &x.Start, &x.End)
			for _, a := range f[3:] {
				if a == "planned" {
					x.Planned = true
				} else {
					scan(t, a, "losses=%d", &x.Losses)
				}
			}
			h.Faults = append(h.Faults, x)
		case "ledger":
			g := history.Gap{Key: "k", Cause: strings.Join(f[2:], " ")}
			scan(t, f[1], "%d..%d", &g.From, &g.To)
			h.Ledger = append(h.Ledger, g)
		default:
			h.Ops = append(h.Ops, scriptOp(t, f))
		}
	}
	return h
}

func scriptOp(t testing.TB, f []string) history.Op {
	t.Helper()
	o := history.Op{Key: "k", Kind: history.Alloc, N: 1}
	if strings.HasSuffix(f[0], "-?") {
		scan(t, f[0], "%d-?", &o.Call)
	} else {
		scan(t, f[0], "%d-%d", &o.Call, &o.Return)
		o.Outcome = history.OK
	}
	switch f[1] {
	case "read":
		o.Kind, o.N = history.Current, 0
	case "failed":
		o.Outcome = history.Failed
	}
	for _, a := range f[2:] {
		name, value, _ := strings.Cut(a, "=")
		switch name {
		case "n":
			scan(t, value, "%d", &o.N)
			if o.Outcome == history.OK {
				o.Count = o.N
			}
		case "count":
			scan(t, value, "%d", &o.Count)
		case "hole":
			scan(t, value, "%d..%d", &o.HoleFrom, &o.HoleTo)
		case "id":
			o.Request = history.RequestID{value[0]}
		case "err":
			o.Err = value
		case "since":
			scan(t, value, "%d", &o.WindowSince)
		case "replayed":
			o.Replayed = true
		default:
			if o.Kind == history.Current {
				scan(t, a, "%d", &o.Value)
				continue
			}
			last := int64(0)
			if n, _ := fmt.Sscanf(a, "%d..%d", &o.First, &last); n < 2 {
				last = o.First
			}
			o.N = uint32(last - o.First + 1)
			o.Count = o.N
		}
	}
	return o
}

func scan(t testing.TB, s, format string, into ...any) {
	t.Helper()
	if _, err := fmt.Sscanf(s, format, into...); err != nil {
		t.Fatalf("script: %q is not %q: %v", s, format, err)
	}
}

func TestGoodHistoriesPass(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":                                       ``,
		"in turn":                                       "1-2 alloc 1\n3-4 alloc 2..4\n5-6 read 4\n7-8 alloc 5",
		"overlapping calls, any order":                  "1-10 alloc 2\n2-9 alloc 1\n3-8 alloc 3",
		"read of nothing yet":                           "1-2 read 0\n3-4 alloc 1",
		"read while allocating":                         "1-10 alloc 1\n2-3 read 0\n4-5 read 1",
		"answers lost":                                  "1-2 alloc 1\n3-? alloc n=1\n4-? alloc n=3\n5-6 alloc 5",
		"lost call took its numbers later":              "1-? alloc n=1\n2-3 alloc 1\n4-5 alloc 3",
		"read shows a lost call":                        "1-2 alloc 1\n3-? alloc n=2\n4-5 read 3\n6-7 alloc 4",
		"read shows a lost call that nothing follows":   "1-2 alloc 1\n3-? alloc n=2\n4-5 read 3",
		"retry of one id":                               "1-5 alloc 1 id=a\n2-6 alloc 1 id=a replayed\n7-8 alloc 2",
		"retry after a lost answer":                     "1-? alloc n=1 id=a\n2-3 alloc 2\n4-5 alloc 1 id=a replayed",
		"a late copy of a refused call took it":         "1-2 failed n=1 id=a err=busy\n3-4 read 1\n5-6 alloc 1 id=a replayed",
		"one id for two keys is the caller's business":  "1-2 alloc 1 id=a",
		"declared hole":                                 "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 alloc 101 hole=2..100\n7-8 alloc 102",
		"declared hole spans what was issued":           "1-2 alloc 1\n2-3 alloc 2\nfault machine-loss 3-4 losses=1\n5-6 alloc 101 hole=1..100",
		"read of the bound, then the hole":              "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 read 100\n7-8 alloc 101 hole=2..100",
		"read of the bound, nothing follows":            "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 read 100",
		"the answer that declared it was lost":          "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-? alloc n=1\n7-8 alloc 102\nledger 2..100 machine loss",
		"two losses":                                    "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 alloc 101 hole=2..100\nfault machine-loss 7-8 losses=1\n9-10 alloc 201 hole=102..200",
		"a read between two losses of one hole":         "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 read 17\nfault machine-loss 7-8 losses=1\n9-10 alloc 22 hole=2..21",
		"the first of two losses went unheard":          "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-? alloc n=1\n6-7 alloc 7\nfault machine-loss 8-9 losses=1\n10-11 alloc 22 hole=2..21",
		"the ledger has joined two holes":               "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 alloc 101 hole=2..100\nfault machine-loss 7-8 losses=1\n9-10 alloc 201 hole=102..200\nledger 2..200 machine loss",
		"lost calls inside the hole":                    "1-2 alloc 1\n3-? alloc n=5\nfault machine-loss 3-4 losses=1\n5-6 alloc 101 hole=2..100",
		"a window was lost":                             "1-2 alloc 1 id=a\nfault machine-loss 3-4 losses=1\n5-6 alloc 101 hole=2..100 id=a",
		"a window was lost, as the server says":         "3000000-3000001 alloc 1 id=a since=5\nfault machine-loss 3000002-3000003 losses=1\n5000000-5000001 alloc 101 hole=2..100 id=a since=4000000",
		"the server says that it forgot":                "1-2 alloc 1 id=a\n3000000-3000001 alloc 2 id=a since=5",
		"forgotten, and remembered again":               "3000000-3000001 alloc 1 id=a since=5\n6000000-6000001 alloc 2 id=a since=5000000\n7000000-7000001 alloc 2 id=a since=5000000 replayed",
		"taken unseen by a copy that came after a loss": "3000000-? alloc n=1 id=a\n3000002-3000003 alloc 1 id=a since=5 replayed\nfault machine-loss 3000004-3000005 losses=1\n3000006-3000007 alloc 3",
		"forgotten, and taken unseen":                   "1-? alloc n=1 id=a\n3000000-3000001 alloc 2 id=a since=5",
		"advanced by an operator":                       "1-2 alloc 1\n5-6 alloc 5001 hole=2..5000\nledger 2..5000 advance",
		"failed calls took nothing":                     "1-2 failed n=1 err=busy\n3-4 alloc 1",
		"the last number":                               "1-2 alloc 9223372036854775807 hole=1..9223372036854775806\nledger 1..9223372036854775806 advance",
		"planned move":                                  "fault drain 1-2 planned\n1-5 alloc 1\n6-7 alloc 2",
		"planned move and a refusal of a bad call":      "fault drain 1-2 planned\n1-5 failed n=1 err=invalid_argument",
		"an unknown n is not forced into one hole":      "1-? alloc n=2\n2-? alloc n=3\n3-4 alloc 3\n5-6 alloc 7",
	} {
		t.Run(name, func(t *testing.T) {
			if r := Check(script(t, text), Options{}); !r.OK {
				t.Fatal(r.Err())
			}
		})
	}
}

func TestBadHistoriesAreRejectedByTheRightGuarantee(t *testing.T) {
	cases := []struct {
		name, text string
		want       Kind
	}{
		{"duplicate", "1-2 alloc 1\n1-3 alloc 1", Duplicate},
		{"overlap of blocks", "1-9 alloc 1..5\n1-9 alloc 5..9", Duplicate},
		{"block inside a block", "1-9 alloc 1..9\n1-9 alloc 3..4", Duplicate},
		{"reorder", "1-2 alloc 2\n3-4 alloc 1", Reorder},
		{"reorder seen through a third", "1-2 alloc 3\n1-9 alloc 2\n4-5 alloc 1", Reorder},
		{"going back after a restart", "1-2 alloc 1..50\nfault kill 3-4\n5-6 alloc 20", Duplicate},
		{"hole", "1-2 alloc 1\n3-4 alloc 3", Undeclared},
		{"hole at the very start", "1-2 alloc 2", Undeclared},
		{"more missing than lost calls took", "1-2 alloc 1\n3-? alloc n=1\n4-5 alloc 4", Undeclared},
		{"one lost call cannot fill two holes", "1-? alloc n=1\n2-3 alloc 2\n4-5 alloc 4", Undeclared},
		{"a lost call took its numbers before it was called", "1-2 alloc 2\n3-? alloc n=1", Undeclared},
		{"a lost call takes all of its numbers or none", "1-? alloc n=3\n2-3 alloc 3", Undeclared},
		{"lost calls of the wrong sizes", "1-? alloc n=3\n1-? alloc n=5\n2-3 alloc 8\n4-5 alloc 9", Undeclared},
		{"a failed call took a number", "1-2 failed n=1\n3-4 alloc 2", Undeclared},
		{"declared too small", "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 alloc 101 hole=50..100", Undeclared},
		{"of two losses the first is not declared, and all heard", "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n6-7 alloc 7\nfault machine-loss 8-9 losses=1\n10-11 alloc 22 hole=2..21", Undeclared},
		{"an unheard call does not stand for a loss", "1-2 alloc 1\n5-? alloc n=1\n6-7 alloc 7\nfault machine-loss 8-9 losses=1\n10-11 alloc 22 hole=2..21", Undeclared},
		{"a hole that another declared does not cover what came before it", "1-2 alloc 1\n3-4 alloc 5\nfault machine-loss 5-6 losses=1\n7-8 alloc 11 hole=2..10", Undeclared},
		{"a read inside the hole of one loss", "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 read 17\n9-10 alloc 22 hole=2..21", Undeclared},
		{"a read inside a hole before its first loss", "1-2 alloc 1\n3-4 read 17\nfault machine-loss 5-6 losses=1\nfault machine-loss 7-8 losses=1\n9-10 alloc 22 hole=2..21", Undeclared},
		{"hole in the ledger, the first answer is silent", "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 alloc 101\nledger 2..100 machine loss", Unannounced},
		{"stale read", "1-2 alloc 1..2\n3-4 alloc 3\n5-6 read 2", StaleRead},
		{"read of nothing after an answer", "1-2 alloc 1\n3-4 read 0", StaleRead},
		{"reads going back", "1-9 alloc 1\n2-3 read 1\n4-5 read 0", StaleRead},
		{"read from the future", "1-2 read 1\n3-4 alloc 1", FutureRead},
		{"read before a refused call is tried again, anew", "1-2 failed n=1 id=a err=busy\n3-4 read 1\n5-6 alloc 1 id=a", FutureRead},
		{"read before a refused call", "1-2 read 1\n3-4 failed n=1 id=a err=busy\n5-6 alloc 1 id=a replayed", FutureRead},
		{"read of what nobody can have got", "1-2 alloc 1\n3-4 read 7", FutureRead},
		{"read of a lost call before it was called", "1-2 alloc 1\n3-4 read 2\n5-? alloc n=1", FutureRead},
		{"read past what a loss can explain", "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 read 200", FutureRead},
		{"torn read", "1-9 alloc 1..5\n2-3 read 3", TornRead},
		{"replay with another number", "1-2 alloc 1 id=a\n3-4 alloc 2 id=a replayed", Replay},
		{"replay with another number, not marked", "1-2 alloc 1 id=a\n3-4 alloc 2 id=a", Replay},
		{"replay with another number, and the server claims to remember", "3000000-3000001 alloc 1 id=a\n3000003-3000004 alloc 2 id=a since=5", Replay},
		{"a loss does not excuse a server that claims to remember", "3000000-3000001 alloc 1 id=a since=5\nfault machine-loss 3000002-3000003 losses=1\n5000000-5000001 alloc 101 hole=2..100 id=a since=5", Replay},
		{"nor does the first answer, if the second claims to remember", "3000000-3000001 alloc 1 id=a since=2999999\n3000003-3000004 alloc 2 id=a since=5", Replay},
		{"nor an answer that does not say, if a repetition does", "3000000-3000001 alloc 1 id=a\nfault machine-loss 3000002-3000003 losses=1\n3000004-3000005 alloc 101 hole=2..100 id=a\n5000000-5000001 alloc 101 id=a since=5 replayed", Replay},
		{"a loss after the second answer does not excuse it", "1-2 alloc 1 id=a\n3-4 alloc 2 id=a\nfault machine-loss 5-6 losses=1", Replay},
		{"a loss before the first call does not excuse the second answer", "fault machine-loss 1-2 losses=1\n4000000000-4000000001 alloc 1 id=a\n4000000002-4000000003 alloc 2 id=a", Replay},
		{"numbers taken unseen by a copy, and the server claims to remember", "3000000-? alloc n=1 id=a\nfault machine-loss 3000001-3000002 losses=1\n4000000000-4000000001 alloc 1 id=a since=5 replayed\n4000000002-4000000003 alloc 3", Undeclared},
		{"replay with another count", "1-2 alloc 1..2 id=a\n3-4 alloc 1 id=a replayed", Replay},
		{"two originals", "1-2 alloc 1 id=a\n3-4 alloc 1 id=a", Replay},
		{"replayed number given to another", "1-2 alloc 1 id=a\n3-4 alloc 1\n5-6 alloc 1 id=a replayed", Duplicate},
		{"retry takes a second number unseen", "1-? alloc n=1 id=a\n2-3 alloc 1 id=a replayed\n4-5 alloc 3", Undeclared},
		{"loss beyond a step", "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 alloc 102 hole=2..101\n7-8 alloc 103", ""},
		{"loss far beyond a step", "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 alloc 103 hole=2..102", ExcessLoss},
		{"a long call that has its answer excuses nothing", "1-2 alloc 1..500\nfault machine-loss 3-4 losses=1\n5-6 alloc 702 hole=501..701", ExcessLoss},
		{"a lost call's numbers beside a step", "1-2 alloc 1\n2-? alloc n=50\nfault machine-loss 3-4 losses=1\n5-6 alloc 152 hole=2..151", ""},
		{"more than a lost call's numbers beside a step", "1-2 alloc 1\n2-? alloc n=50\nfault machine-loss 3-4 losses=1\n5-6 alloc 153 hole=2..152", ExcessLoss},
		{"a raise for a call that gave up", "1-2 alloc 1\n1-2 failed n=300 err=busy\n1-2 failed n=200 err=busy\nfault machine-loss 3-4 losses=1\n5-6 alloc 402 hole=2..401", ""},
		{"more than a raise for a call that gave up", "1-2 alloc 1\n1-2 failed n=300 err=busy\n1-2 failed n=200 err=busy\nfault machine-loss 3-4 losses=1\n5-6 alloc 403 hole=2..402", ExcessLoss},
		{"a raise for a call that was answered elsewhere", "1-2 alloc 1\n2-9 alloc 402..701 hole=2..401\nfault machine-loss 3-4 losses=1", ""},
		{"a raise for a call after the loss", "1-2 alloc 1\n5-9 alloc 402..701 hole=2..401\nfault machine-loss 3-4 losses=1", ExcessLoss},
		{"two holes, one loss", "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 alloc 101 hole=2..100\n9-10 alloc 201 hole=102..200", ExcessLoss},
		{"loss before any fault", "1-2 alloc 1\n3-4 alloc 101 hole=2..100\nfault machine-loss 5-6 losses=1", ExcessLoss},
		{"loss in a planned operation", "1-2 alloc 1\nfault drain 3-4 planned\n5-6 alloc 101 hole=2..100", ExcessLoss},
		{"loss in a process crash", "1-2 alloc 1\nfault kill-alloc 3-4\n5-6 alloc 101 hole=2..100", ExcessLoss},
		{"never served again", "1-2 alloc 1\nfault kill-alloc 3-4\n5-6 failed n=1 err=unavailable", Unavailable},
		{"failed call in a planned operation", "fault drain 1-2 planned\n1-5 failed n=1 err=busy\n6-7 alloc 1", FailedCall},
		{"lost call in a planned operation", "fault drain 1-2 planned\n1-? alloc n=1\n6-7 alloc 1", FailedCall},
		{"number zero", "1-2 alloc 0..0", Malformed},
		{"more than was asked for", "1-2 alloc 1 count=2", Malformed},
		{"past the last number", "1-2 alloc 9223372036854775807 n=2", Malformed},
		{"negative read", "1-2 read -1", Malformed},
		{"replayed without an id", "1-2 alloc 1 replayed", Malformed},
		{"discontinuity that does not end at prev", "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 alloc 101 hole=2..99", Malformed},
		{"discontinuity backwards", "1-2 alloc 9 hole=10..8", Malformed},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := Check(script(t, c.text), Options{})
			if c.want == "" {
				if !r.OK {
					t.Fatalf("refused: %v", r.Err())
				}
				return
			}
			if r.OK || !r.Has(c.want) {
				t.Fatalf("want %q; got %v", c.want, r.Err())
			}
		})
	}
}

// Whether many different counts can fill a hole exactly is not searched without end.
func TestSearchForLostCallsIsBounded(t *testing.T) {
	var text strings.Builder
	for i := range 40 {
		fmt.Fprintf(&text, "%d-? alloc n=%d\n", i+1, 100+2*i)
	}
	text.WriteString("50-51 alloc 1002\n") // 1001 are missing, and all counts are even
	r := Check(script(t, text.String()), Options{})
	if !r.OK || r.Unproven != 1 {
		t.Fatalf("unproven %d, %v", r.Unproven, r.Err())
	}
}

func TestUnavailabilityIsMeasuredPerFaultAndLimited(t *testing.T) {
	ms := int64(time.Millisecond)
	h := &history.History{
		Faults: []history.Fault{
			{Name: "kill-alloc", Start: 1000 * ms, End: 1000 * ms},
			{Name: "lose-alloc", Start: 3000 * ms, End: 3000 * ms},
			{Name: "drain", Start: 20_000 * ms, End: 20_010 * ms},
		},
	}
	ok := func(key string, call, ret, first int64) {
		h.Ops = append(h.Ops, history.Op{Kind: history.Alloc, Key: key, N: 1, Call: call * ms, Return: ret * ms, Outcome: history.OK, First: first, Count: 1})
	}
	failed := func(key string, call, ret int64) {
		h.Ops = append(h.Ops, history.Op{Kind: history.Alloc, Key: key, N: 1, Call: call * ms, Return: ret * ms, Outcome: history.Failed, Err: "busy"})
	}
	ok("a", 500, 501, 1)
	failed("a", 990, 1100)
	failed("a", 1200, 1300)
	ok("a", 1400, 1690, 2) // 700 ms after the first call that found it down
	ok("a", 3001, 5001, 3) // of the loss, though the kill was not long ago
	ok("a", 20_005, 20_015, 4)
	ok("b", 900, 901, 1) // idle through the fault: no one waited
	ok("b", 9_000, 9_001, 2)

	r := Check(h, Options{Limits: map[string]time.Duration{"kill-alloc": 800 * time.Millisecond}})
	if !r.OK {
		t.Fatal(r.Err())
	}
	if got := r.MaxUnavailableMS; got["kill-alloc"] != 700 || got["lose-alloc"] != 2000 || got["drain"] != 10 {
		t.Fatalf("unavailable %v, want kill-alloc 700, lose-alloc 2000 and drain 10", got)
	}
	r = Check(h, Options{Limits: map[string]time.Duration{"kill-alloc": 600 * time.Millisecond}})
	if r.OK || !r.Has(Unavailable) {
		t.Fatalf("700 ms passed a limit of 600 ms: %+v", r)
	}
}

func TestReportCountsWhatTheContractAsksFor(t *testing.T) {
	h := script(t, "1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 alloc 101 hole=2..100\n7-8 alloc 101\n9-? alloc n=1")
	h.Seed, h.Skipped = 99, []string{"netem"}
	r := Check(h, Options{Keep: 1})
	if r.Seed != 99 || r.Operations != 4 || r.Faults["machine-loss"] != 1 || !slices.Equal(r.Skipped, []string{"netem"}) ||
		r.Duplicates != 1 || r.DeclaredGaps != 1 || r.NumbersLost != 99 || r.Unknown != 1 || r.OK {
		t.Fatalf("got %+v", r)
	}
	if len(r.Violations) != 1 {
		t.Fatalf("kept %d violations, want 1", len(r.Violations))
	}
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{`"seed":99`, `"operations":4`, `"faults":{"machine-loss":1}`, `"skipped":["netem"]`, `"duplicates":1`,
		`"order_violations":0`, `"undeclared_gaps":0`, `"declared_gaps":1`, `"numbers_lost":99`, `"max_unavailable_ms":{`, `"ok":false`} {
		if !strings.Contains(b.String(), field) {
			t.Errorf("%s is not in %s", field, b.String())
		}
	}
}

// A million operations are checked in seconds, also with many calls in the air.
func TestMillionOperationsInSeconds(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	const keys, each = 200, 5000
	rng := rand.New(rand.NewPCG(1, 2))
	h := &history.History{Ops: make([]history.Op, 0, keys*each)}
	for k := range keys {
		key := fmt.Sprintf("uid/%d", k)
		for i := range each {
			at := int64(i) * 10
			h.Ops = append(h.Ops, history.Op{Kind: history.Alloc, Key: key, N: 1, Call: at - rng.Int64N(50) + 50, Return: at + 51 + rng.Int64N(50), Outcome: history.OK, First: int64(i) + 1, Count: 1})
		}
	}
	rng.Shuffle(len(h.Ops), func(i, j int) { h.Ops[i], h.Ops[j] = h.Ops[j], h.Ops[i] })
	for i := range 20 {
		h.Faults = append(h.Faults, history.Fault{Name: "kill", Start: int64(i) * 2500, End: int64(i)*2500 + 1})
	}
	start := time.Now()
	r := Check(h, Options{})
	if !r.OK {
		t.Fatal(r.Err())
	}
	took := time.Since(start)
	t.Logf("%d operations checked in %v", len(h.Ops), took.Round(time.Millisecond))
	if took > 30*time.Second {
		t.Fatalf("took %v", took)
	}
}
