package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func TestStatusAsJSONAndTable(t *testing.T) {
	f := startFake(t)
	golden(t, f.addr, []struct{ args, want string }{
		{"status --output json", `{"cluster":"demo","cluster_id":"id-1","sets":[{"name":"s1","ranges":["uid:0-4294967296"],` +
			`"stores":[{"id":"n1","addr":"10.0.0.1:7110","raft_addr":"10.0.0.1:7120","role":"leader","applied":500,"voter":true,"last_contact_ms":0},` +
			`{"id":"n2","addr":"10.0.0.2:7110","raft_addr":"10.0.0.2:7120","role":"follower","applied":498,"voter":true,"last_contact_ms":31}],` +
			`"allocs":[{"id":"a1","addr":"10.0.0.3:7100","state":"serving","sections":1024,"keys":7,"rate":1.25,"lease_ms":1700,"session":4,"version":"v1","steps":[` +
			`{"space":"uid","policy":"fixed","min":10000,"max":10000,"raises":2,"mean_step":10000},` +
			`{"space":"conv","policy":"adaptive","min":10,"max":5000,"target_ms":600000,"raises":0,"mean_step":0}]}],` +
			`"route_version":12,"sections":1024,"unowned":0,"moving":0}],"map_version":1,"route_version":12,"moves":[],"problems":[]}` + "\n"},
		{"status", `cluster demo  id-1  routes 12

set s1  1024 sections, 0 unowned, 0 moving  routes 12
  range uid:0-4294967296

STORE  ADDR           ROLE      APPLIED  LAG  CONTACT
n1     10.0.0.1:7110  leader        500    0        -
n2     10.0.0.2:7110  follower      498    2     31ms

ALLOC  ADDR           STATE    SECTIONS  KEYS  RATE/S  LEASE
a1     10.0.0.3:7100  serving      1024     7     1.2   1.7s

SPACE  STEPS                    ALLOCS  RAISES   MEAN
conv   adaptive 10-5000, 10m0s       1       0      -
uid    fixed 10000                   1       2  10000
`},
		{"nodes --output json", `{"id":"n1","tier":"store","set":"s1","addr":"10.0.0.1:7110","role":"leader","raft_addr":"10.0.0.1:7120","voter":true,"applied":500}
{"id":"n2","tier":"store","set":"s1","addr":"10.0.0.2:7110","role":"follower","raft_addr":"10.0.0.2:7120","voter":true,"applied":498}
{"id":"a1","tier":"alloc","set":"s1","addr":"10.0.0.3:7100","state":"serving","sections":1024,"lease_ms":1700,"version":"v1"}
`},
		{"nodes", `NODE  TIER   SET  ADDR           STATE     SECTIONS
n1    store  s1   10.0.0.1:7110  leader
n2    store  s1   10.0.0.2:7110  follower
a1    alloc  s1   10.0.0.3:7100  serving       1024
`},
	})
}

func TestWhatIsWrongIsSaidFirst(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*seqpb.SetStatus)
		want   []string
	}{
		{"nothing", func(*seqpb.SetStatus) {}, []string{}},
		{"unowned sections", func(s *seqpb.SetStatus) { s.Unowned = 12 }, []string{"set s1: 12 of 1024 sections have no owner"}},
		{"no leader, so leases are not known", func(s *seqpb.SetStatus) { s.Stores[0].Role, s.Allocs[0].LeaseMs = "follower", 0 },
			[]string{"set s1: no leader: new keys, raises and moves wait; are a majority of its stores running?"}},
		{"expired lease", func(s *seqpb.SetStatus) { s.Allocs[0].LeaseMs = 0 }, []string{"set s1: the lease of a1 has run out"}},
		{"silent owner", func(s *seqpb.SetStatus) { s.Allocs[0].State = "silent" }, []string{"set s1: a1 is silent, its lease ends in 1.7s"}},
		{"lagging follower", func(s *seqpb.SetStatus) { s.Stores[0].Applied = 50_498 }, []string{"set s1: store n2 is 50000 entries behind"}},
		{"follower that does not answer", func(s *seqpb.SetStatus) { s.Stores[1].Applied = 0 }, []string{"set s1: store n2 does not say how far it is"}},
		{"silent follower", func(s *seqpb.SetStatus) { s.Stores[1].LastContactMs, s.Stores[1].Applied = 75_400, 0 },
			[]string{"set s1: store n2 is silent for 1m15s: is it running?"}},
		{"nobody to serve", func(s *seqpb.SetStatus) { s.Allocs, s.Unowned = nil, 1024 },
			[]string{"set s1: 1024 of 1024 sections have no owner", "set s1: no allocsvr: start one"}},
	} {
		rep := healthy()
		c.change(rep.Sets[0])
		if got := statusOf(rep).Problems; !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if got := statusOf(&seqpb.StatusReply{}).Problems; len(got) != 1 {
		t.Errorf("a cluster without sets: %q", got)
	}

	f := startFake(t, func(f *fake) { f.status.Sets[0].Unowned = 12 })
	_, out, _ := ctl(f.addr, "status")
	if lines := strings.Split(out, "\n"); lines[1] != "! set s1: 12 of 1024 sections have no owner" {
		t.Error(out)
	}
	var a app
	a.colours = true
	if a.badIf(true, "12 unowned") != "\x1b[1;31m12 unowned\x1b[0m" || a.badIf(false, 3) != "3" {
		t.Error("not in colour")
	}
}

func step(moved, remaining uint32, done bool) *seqpb.DrainProgress {
	return &seqpb.DrainProgress{Node: "a1", Moved: moved, Remaining: remaining, Done: done, Ms: uint64(moved), Lost: 0}
}

func TestDrain(t *testing.T) {
	f := startFake(t)
	f.drains <- []*seqpb.DrainProgress{step(0, 512, false), step(200, 312, false), step(512, 0, true)}
	f.drains <- []*seqpb.DrainProgress{step(512, 0, true)}
	golden(t, f.addr, []struct{ args, want string }{
		{"drain a1 --output json", `{"node":"a1","moved":512,"ms":512,"lost":0}` + "\n"},
		{"drain a1", "NODE  MOVED   MS  LOST\na1      512  512     0\n"},
		{"undrain a1 --output json", `{"node":"a1","draining":false}` + "\n"},
		{"undrain a1", "a1 takes sections again\n"},
	})
}

func TestADrainIsFollowedThroughLeaders(t *testing.T) {
	f := startFake(t)
	notLeader := &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_NOT_LEADER, Message: "the leader is n2"}
	f.drains <- []*seqpb.DrainProgress{step(0, 512, false), step(200, 312, false)} // ends too early
	f.drains <- []*seqpb.DrainProgress{step(10, 302, false), {Node: "a1", Refusal: notLeader}}
	f.drains <- []*seqpb.DrainProgress{step(302, 0, true)}
	code, out, errs := ctl(f.addr, "drain", "a1", "--output", "json")
	if code != 0 || errs != "" || out != `{"node":"a1","moved":512,"ms":512,"lost":0}`+"\n" {
		t.Errorf("%d %s %s", code, out, errs)
	}
}

func TestALongDrainTellsProgressOnStderr(t *testing.T) {
	f := startFake(t)
	code, out, errs := timely(f.addr, 1500*time.Millisecond, "drain", "a1")
	if code != 1 || out != "" || !strings.HasPrefix(errs, "drain a1: 3 of 8 sections moved after 1s\nerror: ") {
		t.Errorf("%d %q %q", code, out, errs)
	}
}

func TestAnElectionIsWaitedFor(t *testing.T) {
	f := startFake(t)
	for range 2 {
		f.refusals <- &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_NOT_READY, Message: "no leader yet"}
	}
	if code, _, errs := ctl(f.addr, "undrain", "a1"); code != 0 || len(f.calledFor()) != 3 {
		t.Errorf("%d %s %q", code, errs, f.calledFor())
	}
	for range 10 {
		f.refusals <- &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_NOT_LEADER, Message: "there is no leader"}
	}
	if code, out, errs := timely(f.addr, 300*time.Millisecond, "status"); code != 1 || out != "" || errs != "error: refused: there is no leader: try again\n" {
		t.Errorf("%d %q %q", code, out, errs)
	}
}

func TestARefusalIsNotRepeated(t *testing.T) {
	for _, command := range []string{"drain a9", "undrain a9", "rebalance", "status", "nodes remove-store n9", "nodes add-store n9 --raft h:1 --addr h:2"} {
		f := startFake(t)
		f.refusals <- &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_INVALID, Message: `there is no "a9"`}
		code, out, errs := ctl(f.addr, strings.Fields(command)...)
		if code != 1 || out != "" || errs != "error: refused: there is no \"a9\": see seqctl nodes\n" || len(f.calledFor()) != 1 {
			t.Errorf("%s: %d %q %q %q", command, code, out, errs, f.calledFor())
		}
	}
}

func TestWhatMayHaveBeenDoneIsNotDoneAgain(t *testing.T) {
	f := startFake(t, func(f *fake) { f.hang = make(chan struct{}) })
	code, _, errs := ctl(f.addr+",127.0.0.1:1", "rebalance", "--timeout", "400ms")
	if code != 1 || !strings.HasPrefix(errs, "error: no answer from "+f.addr+" in time") || len(f.calledFor()) != 1 {
		t.Errorf("%d %q %q", code, errs, f.calledFor())
	}
}

func TestRebalance(t *testing.T) {
	f := startFake(t, func(f *fake) { f.rebalance = &seqpb.RebalanceReply{Moves: 1, Plan: []string{"section 3: a1 → a2"}} })
	golden(t, f.addr, []struct{ args, want string }{
		{"rebalance --dry-run --output json", `{"moves":1,"dry_run":true,"moving":0,"plan":["section 3: a1 → a2"]}` + "\n"},
		{"rebalance --dry-run", "1 sections would move\n  section 3: a1 → a2\n"},
		{"rebalance", "1 sections move\n  section 3: a1 → a2\n"},
	})
	if want := []string{"rebalance true", "rebalance true", "rebalance false"}; !slices.Equal(f.calledFor(), want) {
		t.Error(f.calledFor())
	}
	golden(t, startFake(t).addr, []struct{ args, want string }{
		{"rebalance --output json", `{"moves":0,"dry_run":false,"moving":0,"plan":[]}` + "\n"},
		{"rebalance", "nothing to move: the sections are spread\n"},
	})
	golden(t, startFake(t, func(f *fake) { f.rebalance = &seqpb.RebalanceReply{Moving: 55} }).addr, []struct{ args, want string }{
		{"rebalance", "nothing more to move: 55 sections are on the move already\n"},
	})
}

func TestChangingTheStores(t *testing.T) {
	f := startFake(t)
	golden(t, f.addr, []struct{ args, want string }{
		{"nodes add-store n2 --raft h:1 --addr h:2 --output json", `{"members":["n1@r1","n2@r2"]}` + "\n"},
		{"nodes remove-store n2", "MEMBER\nn1@r1\n"},
	})
	if want := []string{"add n2 h:1 h:2", "remove n2"}; !slices.Equal(f.calledFor(), want) {
		t.Error(f.calledFor())
	}
}

func TestWatchPrintsChangesUntilInterrupted(t *testing.T) {
	f := startFake(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out := newLines()
	ended := make(chan int)
	go func() {
		ended <- runUntil(ctx, []string{"--server", f.addr, "watch", "--output", "json"}, nil, out, out)
	}()
	next := func() (e event) {
		t.Helper()
		select {
		case line := <-out.c:
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("nothing printed")
		}
		return e
	}
	if e := next(); e.Event != eventTable || e.Set != "s1" || e.Owners["a1"] != 4 || *e.Unowned != 0 || e.Time == "" {
		t.Errorf("%+v", e)
	}
	f.moves <- f.table(2, 2)
	if e := next(); e.Event != eventMoved || e.Version != 2 || e.From != "a1" || e.To != "a2" || !slices.Equal(e.Sections, []uint32{0}) {
		t.Errorf("%+v", e)
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("exit %d", code)
	}
	if code, text, errs := timely(f.addr, 300*time.Millisecond, "watch"); code != 0 || errs != "" || !strings.HasSuffix(text, "  set s1  routes 1  a1 4\n") {
		t.Errorf("%d %q %q", code, text, errs)
	}
}

// lines is a writer whose lines can be waited for.
type lines struct{ c chan string }

func newLines() lines { return lines{make(chan string, 10)} }

func (l lines) Write(b []byte) (int, error) { l.c <- string(b); return len(b), nil }
