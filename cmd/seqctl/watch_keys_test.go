package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// watching runs a watch-keys until the test interrupts it.
type watching struct {
	t     *testing.T
	out   lines
	end   context.CancelFunc
	ended chan int
	errs  *strings.Builder
}

func watchKeys(t *testing.T, args ...string) *watching {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watching{t: t, out: newLines(), end: cancel, ended: make(chan int, 1), errs: &strings.Builder{}}
	go func() { w.ended <- runUntil(ctx, args, nil, w.out, w.errs) }()
	return w
}

func (w *watching) next() string {
	w.t.Helper()
	select {
	case line := <-w.out.c:
		return line
	case code := <-w.ended:
		w.t.Fatalf("ended with %d: %s", code, w.errs)
	case <-time.After(10 * time.Second):
		w.t.Fatal("nothing printed")
	}
	return ""
}

// interrupt is what Ctrl-C does.
func (w *watching) interrupt() {
	w.t.Helper()
	w.end()
	select {
	case code := <-w.ended:
		if code != 0 || w.errs.Len() > 0 {
			w.t.Errorf("exit %d, stderr %q", code, w.errs)
		}
	case <-time.After(10 * time.Second):
		w.t.Error("an interrupt does not end it")
	}
}

func (w *watching) want(key string, current int64, missed bool) {
	w.t.Helper()
	line := w.next()
	var e keyEventJSON
	if err := json.Unmarshal([]byte(line), &e); err != nil || strings.Count(line, "\n") != 1 {
		w.t.Fatalf("%q: %v", line, err)
	}
	if _, err := time.Parse(time.RFC3339Nano, e.Time); err != nil || e.Key != key || e.Current != current || e.Missed != missed {
		w.t.Errorf("%s: want %s at %d, missed %v", line, key, current, missed)
	}
}

func TestWatchedKeysAreLinesOfJSON(t *testing.T) {
	f := startFake(t)
	for _, flag := range []string{"--json", "--output=json"} {
		w := watchKeys(t, "--server", f.addr, "--space", "conv", "watch-keys", flag, "--", "a=b", "-7 \x1b")
		w.want("a=b", 1, false)
		w.want("-7 \x1b", 2, false)
		f.news <- &seqpb.KeyValues{Index: []uint32{1}, Current: []uint64{9}}
		w.want("-7 \x1b", 9, false)
		f.news <- &seqpb.KeyValues{Index: []uint32{0}, Current: []uint64{1 << 62}, Missed: 3}
		w.want("a=b", 1<<62, true)
		w.interrupt()
	}
}

func TestWatchedKeysAreLinesForPeople(t *testing.T) {
	f := startFake(t)
	w := watchKeys(t, "--server", f.addr, "watch-keys", "42")
	want := func(pattern string) {
		t.Helper()
		if line := w.next(); !regexp.MustCompile(`^\d\d:\d\d:\d\d\.\d{3}  ` + pattern + "\n$").MatchString(line) {
			t.Errorf("%q is not %q", line, pattern)
		}
	}
	want("42  1")
	f.news <- &seqpb.KeyValues{Index: []uint32{0}, Current: []uint64{6}}
	want(`42  6  \+5`)
	f.news <- &seqpb.KeyValues{Index: []uint32{0}, Current: []uint64{8}, Missed: 1}
	want(`42  8  \+2  values in between were missed`)
	w.interrupt()
	if code, text, errs := timely(f.addr, 300*time.Millisecond, "watch-keys", "42"); code != 0 || errs != "" || !strings.HasSuffix(text, "  42  1\n") {
		t.Errorf("%d %q %q", code, text, errs)
	}
}

// They go on being tried, so the watch does not end. A line is of as many keys as
// were found to be so together.
func TestKeysThatNoNodeTakesAreToldOnStderr(t *testing.T) {
	t.Parallel()
	f := startFake(t, func(f *fake) { f.full = wire.Refusef(seqpb.Code_CODE_BUSY, "7 keys are watched here at most") })
	ctx, end := context.WithCancel(t.Context())
	defer end()
	ended, errs := make(chan int, 1), newLines()
	var out strings.Builder
	go func() {
		ended <- runUntil(ctx, []string{"--server", f.addr, "watch-keys", "42", "43", "44"}, nil, &out, errs)
	}()
	says := regexp.MustCompile(`^error: key uid/4[234]: busy at .*: 7 keys are watched here at most: it goes on being tried(; and ([12]) more keys?)?\n$`)
	for told := 0; told < 3; told++ {
		select {
		case line := <-errs.c:
			m := says.FindStringSubmatch(line)
			if m == nil {
				t.Fatalf("%q", line)
			}
			more, _ := strconv.Atoi(m[2])
			told += more
		case code := <-ended:
			t.Fatalf("ended with %d", code)
		case <-time.After(20 * time.Second):
			t.Fatalf("%d keys are told", told)
		}
	}
	end()
	if code := <-ended; code != 0 || out.Len() > 0 {
		t.Errorf("exit %d, output %q", code, out.String())
	}
}

func TestMoreKeysAreCounted(t *testing.T) {
	for n, want := range []string{"", "; and 1 more key", "; and 2 more keys"} {
		if got := andMore(n); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

func TestAWatchOfKeysRefusesWhatIsWrong(t *testing.T) {
	f := startFake(t, func(f *fake) {
		f.routes = func() *seqpb.RouteTable { return nil }
	})
	for _, c := range []struct {
		args, says string
		code       int
	}{
		{"watch-keys", "no key given", 2},
		{"watch-keys abc", `key "abc" is no uid`, 2},
		{"watch-keys 1 --json=maybe", "must be true or false", 2},
		{"watch-keys 1", "does not serve yet", 1},
	} {
		code, out, errs := timely(f.addr, time.Second, strings.Fields(c.args)...)
		if code != c.code || out != "" || !strings.HasPrefix(errs, "error: ") || !strings.Contains(errs, c.says) {
			t.Errorf("%s: %d %q %q", c.args, code, out, errs)
		}
	}
}

// A pipe whose reader has gone ends the watch at the next value, and says so.
func TestAWatchWhoseOutputIsClosedEnds(t *testing.T) {
	f := startFake(t)
	r, out := io.Pipe()
	ended := make(chan int)
	var errs strings.Builder
	go func() {
		ended <- run([]string{"--server", f.addr, "watch-keys", "42"}, nil, out, &errs)
	}()
	if _, err := r.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	r.Close()
	f.news <- &seqpb.KeyValues{Index: []uint32{0}, Current: []uint64{6}}
	select {
	case code := <-ended:
		if code != 1 || !strings.HasPrefix(errs.String(), "error: the output could not be written") {
			t.Errorf("%d %q", code, errs.String())
		}
	case <-time.After(10 * time.Second):
		t.Fatal("still running")
	}
}

func TestWatchedKeysOfARealClusterAreFollowedOverADrain(t *testing.T) {
	server := startCluster(t)
	w := watchKeys(t, "--server", server, "watch-keys", "1", "300", "--json")
	seen := map[string]int64{}
	until := func(key string, n int64) {
		t.Helper()
		for seen[key] < n {
			var e keyEventJSON
			if err := json.Unmarshal([]byte(w.next()), &e); err != nil {
				t.Fatal(err)
			}
			seen[e.Key] = e.Current
		}
	}
	var wg sync.WaitGroup
	for round := range 3 {
		wg.Go(func() { ctl(server, "alloc", "1", "300", "-n", "10") })
		wg.Wait()
		until("1", int64(10*(round+1)))
		until("300", int64(10*(round+1)))
		node := fmt.Sprintf("a%d", 1+round%2)
		if code, _, errs := ctl(server, "drain", node); code != 0 {
			t.Fatal(errs)
		}
		if code, _, errs := ctl(server, "undrain", node); code != 0 {
			t.Fatal(errs)
		}
	}
	w.interrupt()
}
