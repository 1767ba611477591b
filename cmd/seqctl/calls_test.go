package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

const messageID = "6f1c1a52-3b0e-4a3c-9d55-0a9b6f2b7c11"

// golden runs command lines in turn against one server.
func golden(t *testing.T, server string, cases []struct{ args, want string }) {
	t.Helper()
	for _, c := range cases {
		code, out, errs := ctl(server, strings.Fields(c.args)...)
		if code != 0 || out != c.want || errs != "" {
			t.Errorf("%s: exit %d, stderr %q\n got: %s\nwant: %s", c.args, code, errs, out, c.want)
		}
	}
}

func TestCallsAsJSON(t *testing.T) {
	f := startFake(t, func(f *fake) { f.gaps = []*seqpb.Gap{{From: 58, To: 10000, Cause: "machine loss"}} })
	golden(t, f.addr, []struct{ args, want string }{
		{"--output json alloc 42", `{"key":"42","first":1,"count":1,"prev":0,"discontinuity":false,"replayed":false}` + "\n"},
		{"alloc 42 -n 100 --output json", `{"key":"42","first":2,"count":100,"prev":1,"discontinuity":false,"replayed":false}` + "\n"},
		{"alloc 7 42 7 --output json", `{"key":"7","first":1,"count":1,"prev":0,"discontinuity":false,"replayed":false}
{"key":"42","first":102,"count":1,"prev":101,"discontinuity":false,"replayed":false}
{"key":"7","first":2,"count":1,"prev":1,"discontinuity":false,"replayed":false}
`},
		{"alloc 9 --output json --request-id " + messageID, `{"key":"9","first":1,"count":1,"prev":0,"discontinuity":false,"replayed":false,"window_since":"2023-11-14T22:13:20Z"}` + "\n"},
		{"alloc 9 --output json --request-id " + messageID, `{"key":"9","first":1,"count":1,"prev":0,"discontinuity":false,"replayed":true,"window_since":"2023-11-14T22:13:20Z"}` + "\n"},
		{"current 42 43 --output json", "{\"key\":\"42\",\"current\":102}\n{\"key\":\"43\",\"current\":0}\n"},
		{"diff 42=100 42=102 42=200 --output json", `{"key":"42","last":100,"current":102,"missing":2}
{"key":"42","last":102,"current":102,"missing":0}
{"key":"42","last":200,"current":102,"missing":0,"ahead":98}
`},
		{"gaps 42 --output json", `{"key":"42","gaps":[{"from":58,"to":10000,"cause":"machine loss"}]}` + "\n"},
		{"route 300 --output json", `{"key":"300","set":"s1","section":1,"epoch":3,"owner":"a1","addr":"` + f.addr + `","version":1}` + "\n"},
		{"--space conv --output json alloc a=b", `{"key":"a=b","first":1,"count":1,"prev":0,"discontinuity":false,"replayed":false}` + "\n"},
		{"--space conv --output json diff a=b=0", `{"key":"a=b","last":0,"current":1,"missing":1}` + "\n"},
		{"--space conv --output json current -- -1", `{"key":"-1","current":0}` + "\n"},
	})
}

func TestCallsAsTablesByDefault(t *testing.T) {
	f := startFake(t, func(f *fake) { f.gaps = []*seqpb.Gap{{From: 58, To: 10000, Cause: "machine loss"}} })
	golden(t, f.addr, []struct{ args, want string }{
		{"alloc 42 7 -n 100", "KEY  FIRST  LAST  COUNT  PREV\n42       1   100    100     0\n7        1   100    100     0\n"},
		{"alloc 9 --request-id " + messageID, "KEY  FIRST  LAST  COUNT  PREV\n9        1     1      1     0\n"},
		{"alloc 9 --request-id " + messageID, "KEY  FIRST  LAST  COUNT  PREV  NOTE\n9        1     1      1     0  replayed\n"},
		{"current 42", "KEY  CURRENT\n42       100\n"},
		{"diff 42=90 42=101", "KEY  LAST  CURRENT  MISSING  NOTE\n42     90      100       10\n42    101      100        0  ahead by 1: such numbers were never issued\n"},
		{"gaps 42", "KEY  FROM     TO  CAUSE\n42     58  10000  machine loss\n"},
	})
	if _, out, _ := ctl(f.addr, "--space", "conv", "current", "a\x1b[31m\nb"); !strings.Contains(out, `"a\x1b[31m\nb"`) || strings.Count(out, "\n") != 2 {
		t.Errorf("a name with controls: %q", out)
	}
}

func TestAKeyWithoutGapsAndAHoleAreTold(t *testing.T) {
	f := startFake(t, func(f *fake) { f.hole = &seqpb.Discontinuity{From: 58, To: 10000} })
	golden(t, f.addr, []struct{ args, want string }{
		{"gaps 42 --output json", `{"key":"42","gaps":[]}` + "\n"},
		{"gaps 42", "key 42 has no declared holes\n"},
		{"alloc 42 --output json", `{"key":"42","first":10001,"count":1,"prev":10000,"discontinuity":true,"replayed":false,"hole":{"from":58,"to":10000}}` + "\n"},
		{"alloc 42", "KEY  FIRST   LAST  COUNT   PREV  NOTE\n42   10001  10001      1  10000  58 to 10000 may never have been issued\n"},
	})
}

func TestGoodKeysArePrintedThoughOthersFail(t *testing.T) {
	f := startFake(t, func(f *fake) {
		f.fail = map[string]*seqpb.Failure{"2": {Code: seqpb.Code_CODE_EXHAUSTED, Message: "2^63-1 was issued"}}
	})
	for _, command := range []string{"alloc", "current"} {
		code, out, errs := ctl(f.addr, command, "1", "2", "3", "--output", "json")
		if code != 1 || strings.Count(out, "\n") != 2 || !strings.HasPrefix(out, `{"key":"1"`) || !strings.Contains(out, "\n"+`{"key":"3"`) {
			t.Errorf("%s: exit %d, %s", command, code, out)
		}
		if !strings.HasPrefix(errs, "error: key uid/2: exhausted") || !strings.Contains(errs, "2^63-1 was issued") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: %q", command, errs)
		}
	}
	if code, out, errs := ctl(f.addr, "alloc", "2"); code != 1 || out != "" || !strings.HasPrefix(errs, "error: ") {
		t.Errorf("all bad: %d %q %q", code, out, errs)
	}
}

// refusals are command lines that are wrong, with what must be said.
var refusals = []struct {
	args []string
	says string
	// server: only a server can tell.
	server bool
}{
	{args: []string{"alloc", "-1"}, says: "a uid is never negative"},
	{args: []string{"alloc", "--", "-1"}, says: `key "-1" is no uid`},
	{args: []string{"current", "-1"}, says: "a uid is never negative"},
	{args: []string{"alloc", ""}, says: `key "" is empty`},
	{args: []string{"alloc", "1.5"}, says: `key "1.5" is no uid`},
	{args: []string{"alloc", "abc"}, says: `key "abc" is no uid`},
	{args: []string{"alloc", "9999999999999999999999"}, says: "is no uid"},
	{args: []string{"alloc", "4294967296"}, says: "outside [0, 4294967295]", server: true},
	{args: []string{"alloc", "42", "abc"}, says: `key "abc" is no uid`},
	{args: []string{"alloc", "42", "4294967296"}, says: "outside [0, 4294967295]", server: true},
	{args: []string{"alloc"}, says: "no key given"},
	{args: []string{"alloc", "42", "-n", "0"}, says: `-n "0": want a whole number from 1`},
	{args: []string{"alloc", "42", "-n", "-5"}, says: `-n "-5": want a whole number from 1`},
	{args: []string{"alloc", "42", "-n", "99999999999"}, says: "want a whole number from 1 to 4294967295"},
	{args: []string{"alloc", "42", "-n", "x"}, says: "want a whole number"},
	{args: []string{"alloc", "42", "-n", "2000000"}, says: "want 1 to 1000000", server: true},
	{args: []string{"alloc", "42", "--request-id", "x"}, says: "want a UUID"},
	{args: []string{"alloc", "42", "--request-id", ""}, says: "want a UUID"},
	{args: []string{"alloc", "42", "--request-id", "00000000-0000-0000-0000-000000000000"}, says: "want a UUID other than zero"},
	{args: []string{"alloc", "42", "--space", "nope"}, says: `there is no space "nope": the cluster has uid, conv`, server: true},
	{args: []string{"alloc", "42", "--space", ""}, says: "--space is empty"},
	{args: []string{"--space", "conv", "alloc", ""}, says: `key "" is empty`},
	{args: []string{"--space", "conv", "alloc", strings.Repeat("a", 129)}, says: "has 129 bytes: at most 128"},
	{args: []string{"--space", "conv", "alloc", "\xff"}, says: "not valid UTF-8"},
	{args: []string{"--space", "conv", "alloc", "-x"}, says: `goes after "--"`},
	{args: []string{"alloc", "42", "--output", "xml"}, says: "want table or json"},
	{args: []string{"alloc", "42", "--timeout", "-1s"}, says: "--timeout -1s: want more than nothing"},
	{args: []string{"alloc", "42", "--timeout", "soon"}, says: `--timeout "soon": want a duration like 5s`},
	{args: []string{"alloc", "42", "--server", "x"}, says: "want HOST:PORT"},
	{args: []string{"alloc", "42", "--server", ","}, says: "--server is empty"},
	{args: []string{"alloc", "42", "--bogus"}, says: "unknown flag: --bogus: see seqctl alloc --help"},
	{args: []string{"diff", "42"}, says: "want KEY=LAST"},
	{args: []string{"diff", "=1"}, says: `key "" is empty`},
	{args: []string{"diff", "42="}, says: "LAST must be a whole number"},
	{args: []string{"diff", "42=-1"}, says: "LAST must be a whole number"},
	{args: []string{"diff", "42=9223372036854775808"}, says: "LAST must be a whole number"},
	{args: []string{"gaps"}, says: "want one key, got 0"},
	{args: []string{"gaps", "1", "2"}, says: "want one key, got 2"},
	{args: []string{"route"}, says: "want one key"},
	{args: []string{"drain"}, says: "want the name of one node"},
	{args: []string{"undrain", ""}, says: "want the name of one node"},
	{args: []string{"nodes", "add-store", "n4"}, says: `--raft ""`},
	{args: []string{"nodes", "add-store", "n4", "--raft", "a:1", "--addr", "b"}, says: `--addr "b"`},
	{args: []string{"nodes", "bogus"}, says: "unknown command"},
	{args: []string{"status", "now"}, says: "now"},
	{args: []string{"bogus"}, says: `unknown command "bogus"`},
}

func TestWrongUsageIsExit2AndAllocatesNothing(t *testing.T) {
	f := startFake(t)
	for _, c := range refusals {
		code, out, errs := ctl(f.addr, c.args...)
		if code != 2 || out != "" || !strings.HasPrefix(errs, "error: ") || !strings.Contains(errs, c.says) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: exit %d, stdout %q, stderr %q; want 2 and %q", c.args, code, out, errs, c.says)
		}
	}
	if n := f.issued("42"); n != 0 {
		t.Errorf("refused calls allocated %d numbers", n)
	}
}

func TestWhatNeedsNoServerIsRefusedWithoutOne(t *testing.T) {
	for _, c := range refusals {
		want := 2
		if c.server {
			want = 1
		}
		// The server comes first, so that a case's own --server counts.
		if code, _, errs := ctl("127.0.0.1:1", c.args...); code != want {
			t.Errorf("%q: exit %d, want %d: %s", c.args, code, want, errs)
		}
	}
}

type full struct{ io.Writer }

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestOutputThatIsLostIsAFailure(t *testing.T) {
	f := startFake(t)
	for _, format := range []string{"table", "json"} {
		var errs strings.Builder
		code := run([]string{"--server", f.addr, "alloc", "42", "--output", format}, nil, full{}, &errs)
		if code != 1 || !strings.HasPrefix(errs.String(), "error: the output could not be written: no space left") {
			t.Errorf("exit %d %q", code, errs.String())
		}
	}
}

func TestEveryCommandHasHelpWithExamples(t *testing.T) {
	root := rootCommand(newApp(io.Discard, io.Discard))
	commands := root.Commands()
	for _, c := range root.Commands() {
		commands = append(commands, c.Commands()...)
	}
	for _, c := range commands {
		path := strings.Fields(c.CommandPath())[1:]
		code, out, errs := ctl("", append(path, "--help")...)
		if code != 0 || errs != "" || !strings.Contains(out, "Usage:") || !strings.Contains(out, "Examples:") || !strings.Contains(out, "--output") {
			t.Errorf("%s --help: %d %q\n%s", c.CommandPath(), code, errs, out)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, out, _ := ctl("", "completion", shell); code != 0 || !strings.Contains(out, "seqctl") {
			t.Errorf("completion %s: %d", shell, code)
		}
	}
}
