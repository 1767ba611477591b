package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func twoSets(f *fake) {
	f.sets = &seqpb.SetListReply{MapVersion: 5, Sets: []*seqpb.SetSummary{
		{Name: "s1", Directory: true, Ranges: []string{"uid:1000-4294967296"}, Stores: []string{"10.0.0.1:7110"}, StoresUp: 1, Health: "ok", AllocsUp: 2, Keys: 7, Rate: 1.25, Moves: []uint64{3}},
		{Name: "s2", Ranges: []string{"uid:0-1000"}, Stores: []string{"10.0.0.4:7110", "10.0.0.5:7110"}, StoresUp: 0, Health: "unreachable", Moves: []uint64{3}},
	}, Unassigned: []string{"conv:0-10"}}
}

// moveAt is how a move of half of the keys stands.
func moveAt(state string, keys uint64) *seqpb.MoveStatus {
	m := &seqpb.MoveStatus{
		Id: 3, From: "s1", To: "s2", Ranges: []string{"uid:0-1000"}, State: state, Keys: keys, KeysTotal: 100, Parts: 2,
		KeysPerSecond: 50, EtaSeconds: 2, FrozenMaxMs: 31, FrozenP99Ms: 30, StartedMs: 1000,
	}
	if state == moveDone {
		m.EndedMs, m.Checksum, m.Moved, m.EtaSeconds = 3500, "00ff", []string{"uid:0-1000"}, 0
	}
	return m
}

func TestSetsAsJSONAndTable(t *testing.T) {
	golden(t, startFake(t, twoSets).addr, []struct{ args, want string }{
		{"set list", `SET             HEALTH       STORES  ALLOCS  KEYS  RATE/S  MOVES  OWNS
s1 (directory)  ok              1/1       2     7     1.2  3      uid:1000-4294967296
s2              unreachable     0/2       0     0     0.0  3      uid:0-1000
! no set owns conv:0-10
`},
		{"set list --output json", `{"map_version":5,"sets":[{"name":"s1","directory":true,"health":"ok","ranges":["uid:1000-4294967296"],"stores":["10.0.0.1:7110"],` +
			`"stores_up":1,"allocs_up":2,"keys":7,"rate":1.25,"moves":["3"]},{"name":"s2","directory":false,"health":"unreachable","ranges":["uid:0-1000"],` +
			`"stores":["10.0.0.4:7110","10.0.0.5:7110"],"stores_up":0,"allocs_up":0,"keys":0,"rate":0,"moves":["3"]}],"unassigned":["conv:0-10"]}` + "\n"},
	})
}

func TestSetCallsReachTheCluster(t *testing.T) {
	for _, c := range []struct{ args, call, out string }{
		{"set create s2 --stores 10.0.0.4:7110,10.0.0.5:7110", "create s2 10.0.0.4:7110,10.0.0.5:7110", "set map version 7\n"},
		{"set create s2 --stores h:1 --output json", "create s2 h:1", `{"set":"s2","map_version":7}` + "\n"},
		{"set retire s2 --yes", "retire s2", "set map version 8\n"},
		{"set abort 3 --yes --output json", "abort 3", `"state":"aborting"`},
		{"set abort 3 --target-lost --yes --output json", "abort 3 target lost", `"state":"aborting"`},
		{"set move --from s1 --to s2 --range 0-1000 --dry-run --output json", "move s1 s2 1:0..999 dry", `"state":"aborting"`},
		{"--space conv set move --from s1 --to s2 --range 0-18446744073709551616 --dry-run", "move s1 s2 2:0..18446744073709551615 dry", "s1"},
		{"set move --from s1 --to s2 --range 5- --dry-run", "move s1 s2 1:5..4294967295 dry", "s1"},
		{"set move --from s1 --to s2 --all --dry-run", "move s1 s2 dry", "s1"},
	} {
		f := startFake(t, twoSets, func(f *fake) { f.moving = []*seqpb.MoveStatus{moveAt("aborting", 10)} })
		code, out, errs := ctl(f.addr, strings.Fields(c.args)...)
		if code != 0 || !strings.Contains(out, c.out) || !slices.Contains(f.calledFor(), c.call) {
			t.Errorf("seqctl %s: exit %d, %q, %q; called %q, want %q", c.args, code, out, errs, f.calledFor(), c.call)
		}
	}
}

func TestAMoveIsFollowedToItsEnd(t *testing.T) {
	f := startFake(t, func(f *fake) {
		f.moving = []*seqpb.MoveStatus{moveAt("copying", 0), moveAt("frozen", 40), moveAt("committed", 80), moveAt("done", 100)}
	})
	code, out, errs := ctl(f.addr, strings.Fields("set move --from s1 --to s2 --range 0-1000 --yes --output json")...)
	want := `{"id":"3","from":"s1","to":"s2","ranges":["uid:0-1000"],"state":"done","keys":100,"keys_total":100,"parts":2,"frozen_ms":31,` +
		`"frozen_p99_ms":30,"keys_per_second":50,"eta_seconds":0,"seconds":2.5,"checksum":"00ff","moved":["uid:0-1000"]}` + "\n"
	if code != 0 || out != want {
		t.Errorf("exit %d, %s\nwant %s", code, out, want)
	}
	if !strings.Contains(errs, "move 3: copying, 0 of about 100 keys, 50 keys/s, 2s left") {
		t.Errorf("progress %q", errs)
	}
}

func TestAMoveThatWasAbortedIsAFailure(t *testing.T) {
	f := startFake(t, func(f *fake) {
		end := moveAt("aborted", 40)
		end.Reason, end.Moved = "the checksums differ", []string{"uid:0-400"}
		f.moving = []*seqpb.MoveStatus{moveAt("copying", 0), end}
	})
	code, out, errs := ctl(f.addr, strings.Fields("set move --from s1 --to s2 --range 0-1000 --yes --output json")...)
	if code != 1 || !strings.Contains(out, `"state":"aborted"`) || !strings.Contains(errs, "error: move 3 was aborted: the checksums differ: uid:0-400 stays with set s2") {
		t.Errorf("exit %d, %q, %q", code, out, errs)
	}
}

func TestAnInterruptedMoveGoesOn(t *testing.T) {
	f := startFake(t, func(f *fake) { f.moving = []*seqpb.MoveStatus{moveAt("copying", 0)} })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for !slices.Contains(f.calledFor(), "moves 3") {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	code, _, errs := ctlUntil(ctx, f.addr, strings.Fields("set move --from s1 --to s2 --range 0-1000 --yes")...)
	if code != 1 || !strings.Contains(errs, "the move goes on: watch it with seqctl set status 3, or stop it with seqctl set abort 3") ||
		slices.Contains(f.calledFor(), "abort 3") {
		t.Errorf("exit %d, %q, called %q", code, errs, f.calledFor())
	}
}

func TestWrongUsageOfSets(t *testing.T) {
	f := startFake(t)
	for args, want := range map[string]string{
		"set create":                     "want the name of one Set",
		"set create s2":                  "--stores is missing",
		"set create s2 --stores nowhere": "want HOST:PORT",
		"set retire s2":                  "pass --yes",
		"set move --from s1":             "--from and --to are needed",
		"set move --from s1 --to s1 --range 0-1 --yes":                 "a move needs two Sets",
		"set move --from s1 --to s2 --yes":                             "either --range LO-HI or --all",
		"set move --from s1 --to s2 --all --range 0-1 --yes":           "either --range LO-HI or --all",
		"set move --from s1 --to s2 --range 5-5 --yes":                 "empty, HI is exclusive",
		"set move --from s1 --to s2 --range 0-1000":                    "pass --yes",
		"set move --from s1 --to s2 --range 0-1 --yes --space nowhere": "there is no space",
		"set status x":      "no id of a move",
		"set abort":         "want the id of one move",
		"set abort 0 --yes": "no id of a move",
	} {
		code, _, errs := ctl(f.addr, strings.Fields(args)...)
		if code != 2 || !strings.Contains(errs, want) {
			t.Errorf("seqctl %s: exit %d, %q, want %q", args, code, errs, want)
		}
	}
	if calls := f.calledFor(); len(calls) > 0 {
		t.Errorf("called %q", calls)
	}
}

// The Set that is asked is shown even when another one is dead.
func TestStatusShowsAllSets(t *testing.T) {
	other := startFake(t, func(f *fake) { f.status.Sets[0].Name = "s2" })
	dead := "127.0.0.1:1"
	f := startFake(t, func(f *fake) {
		f.status.MapVersion = 5
		f.sets = &seqpb.SetListReply{MapVersion: 5, Sets: []*seqpb.SetSummary{
			{Name: "s1"}, {Name: "s2", Stores: []string{dead, other.addr}}, {Name: "s3", Stores: []string{dead}, Ranges: []string{"uid:0-10"}},
		}}
	})
	code, out, errs := ctl(f.addr, "status")
	if strings.Contains(out, "set s3: no leader") || strings.Contains(out, "set s3: no allocsvr") {
		t.Errorf("of a set that does not answer more is said than is known: %s", out)
	}
	if code != 0 || !strings.Contains(out, "set s1 ") || !strings.Contains(out, "set s2 ") || !strings.Contains(out, "set s3 ") ||
		!strings.Contains(out, "! set s3: none of its stores ("+dead+") answers") {
		t.Errorf("exit %d, %s %s", code, out, errs)
	}
}

// What moves is seen at a glance, and what keeps it from ending is said with what to do.
func TestMovesUnderWayAreSeenWhereverSetsAre(t *testing.T) {
	stuck := moveAt("copying", 40)
	stuck.Reason, stuck.EtaSeconds = "no store took the call", 0
	ending := moveAt("aborting", 40)
	ending.EtaSeconds = 0
	aborted := moveAt("aborted", 40)
	aborted.KeysTotal, aborted.EtaSeconds, aborted.Reason = 0, 0, "an operator wanted it"
	for _, c := range []struct {
		args   string
		moving *seqpb.MoveStatus
		want   []string
	}{
		{"set list", moveAt("frozen", 40), []string{"3 to s2 frozen", "3 from s1 frozen"}},
		{"set list", moveAt("done", 100), []string{"  3      uid:1000-4294967296"}}, // it has ended since
		{"status", moveAt("sealed", 40), []string{"move 3 from s1 to s2: sealed, 40 of about 100 keys, 50 keys/s, 2s left\n"}},
		{"status", stuck, []string{"! move 3 from s1 to s2 does not get on: no store took the call\n", "move 3 from s1 to s2: copying, 40 of about 100 keys, 50 keys/s: no store"}},
		{"status", ending, []string{"! move 3 from s1 to s2 waits for set s2 to let go: bring a majority of its stores back; only if they are lost for good: seqctl set abort 3 --target-lost\n"}},
		{"set status", stuck, []string{"copying    40  100      2         31      50     -  uid:0-1000"}},
		{"set status", aborted, []string{"aborted    40   -      2         31       -     -  uid:0-1000  an operator wanted it"}},
	} {
		f := startFake(t, twoSets, func(f *fake) {
			f.status.MapVersion = 5
			f.sets.Sets[1].Stores = []string{"127.0.0.1:1"}
			f.moving = []*seqpb.MoveStatus{c.moving}
		})
		code, out, errs := ctl(f.addr, strings.Fields(c.args)...)
		for _, want := range c.want {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("seqctl %s of a move that is %s: exit %d, want %q in\n%s%s", c.args, c.moving.State, code, want, out, errs)
			}
		}
	}
}

// An answer that was lost between two servers is no refusal of the first one.
func TestWhatWasLostBetweenServersIsAskedAgainIfThatDoesNoHarm(t *testing.T) {
	lost := &rpc.Error{Answered: true, Code: seqpb.Code_CODE_UNKNOWN_RESULT, Addr: "a", Method: "SetMove", Text: "connection reset"}
	if !passing(lost, adminCall{repeatable: true}) || passing(lost, adminCall{}) {
		t.Error("asked again where it does harm, or not where it does none")
	}
	text := explain(lost, "a", adminCall{interrupted: "the move may have started: see seqctl set status"}).Error()
	if strings.Contains(text, "version") || !strings.HasSuffix(text, "the move may have started: see seqctl set status") {
		t.Error(text)
	}
}

// A directory without a leader is no server of another version.
func TestADirectoryWithoutALeaderIsSaidToBeOne(t *testing.T) {
	err := explain(&rpc.Error{Answered: true, Code: seqpb.Code_CODE_NOT_READY, Text: "no leader"}, "a", adminCall{})
	if text := err.Error(); strings.Contains(text, "version") || !strings.Contains(text, "try again") {
		t.Error(text)
	}
}
