package dedupe

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/internal/ids"
)

const killEnv = "SEQSVR_DEDUPE_KILL_TEST"

func killPath() string { return os.Getenv(killEnv) }

func killOptions(path string) arena.Options {
	return arena.Options{Cluster: "test", Node: "a1", BootID: "boot-1", Path: path, MaxBytes: 16 << 20}
}

// killTable is small, so that pages are dropped and moved all the time.
func killTable(a *arena.Arena) *Table { return testTable(a, 6*pageEntries) }

const killKeys = 3

// answerUntilKilled is the child: it asks for one number after another, each with
// an id that counts on from the argument.
func answerUntilKilled(path string) {
	die := func(err error) {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(3)
	}
	var first [8]byte
	if _, err := io.ReadFull(os.Stdin, first[:]); err != nil {
		die(err)
	}
	a, table, err := resumeOrStart(path)
	if err != nil {
		die(err)
	}
	for id := binary.LittleEndian.Uint64(first[:]); ; id++ {
		k := uid(id % killKeys * 256)
		o, err := table.Begin(sectionOf(k), k, reqID(id), 1, start+id)
		if err != nil {
			die(err)
		}
		got := o.First
		if o.Kind == Miss {
			if got, err = carryOut(a, o.Token, k, 1, start+id); err != nil {
				die(err)
			}
		}
		var out [16]byte
		binary.LittleEndian.PutUint64(out[:], id)
		binary.LittleEndian.PutUint64(out[8:], uint64(got))
		if _, err := os.Stdout.Write(out[:]); err != nil {
			die(err)
		}
	}
}

func resumeOrStart(path string) (*arena.Arena, *Table, error) {
	a, err := arena.Open(killOptions(path))
	if err != nil {
		return nil, nil, err
	}
	table := killTable(a)
	switch _, err := a.Previous(); {
	case errors.Is(err, arena.ErrNone):
		if err := a.Reset(testIdentity, testSections, testSpaces); err != nil {
			return nil, nil, err
		}
		for s := range ids.Section(testSections) {
			if err := a.OpenSection(s, 1); err != nil {
				return nil, nil, err
			}
		}
	case err != nil:
		return nil, nil, err
	default:
		if err := a.Adopt(4); err != nil {
			return nil, nil, err
		}
	}
	return a, table, nil
}

// Requests go on through deaths in mid-flight, each retried until it is answered:
// every number of every key is some request's, exactly once, so not one is lost to
// a caller that did not hear its answer.
func TestKilledProcessesAnswerEachRequestOnce(t *testing.T) {
	dir := t.TempDir()
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
		if dir, err = os.MkdirTemp("/dev/shm", "seqsvr-test"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	path := filepath.Join(dir, "arena")
	rounds := 40
	if testing.Short() || raceEnabled {
		rounds = 5
	}
	next := uint64(0) // id to be asked next
	var last [killKeys]ids.Seq
	for round := range rounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killEnv+"="+path)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The last answers may have been on their way: ask some again.
		again := min(next, 20)
		if _, err := in.Write(binary.LittleEndian.AppendUint64(nil, next-again)); err != nil {
			t.Fatal(err)
		}
		expect := next - again
		r := bufio.NewReader(out)
		for n := 0; ; n++ {
			if n == 200+round*61 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			var rec [16]byte
			if _, err := io.ReadFull(r, rec[:]); err != nil {
				break
			}
			id, first := binary.LittleEndian.Uint64(rec[:]), ids.Seq(binary.LittleEndian.Uint64(rec[8:]))
			if id != expect {
				t.Fatalf("request %d, want %d", id, expect)
			}
			expect++
			// Requests are dealt out in turn, so each has one right answer.
			if want := ids.Seq(id/killKeys + 1); first != want {
				t.Fatalf("round %d: request %d got %d, want %d", round, id, first, want)
			}
			if id >= next {
				next = id + 1
			}
			last[id%killKeys] = max(last[id%killKeys], first)
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() == 3 {
			t.Fatalf("round %d: the child ended by itself: %v", round, err)
		}
		if err := in.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Fatal(err)
		}
	}
	a, table, err := resumeOrStart(path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(true)
	for id := next - 20; id < next; id++ {
		k := uid(id % killKeys * 256)
		if o, err := table.Begin(sectionOf(k), k, reqID(id), 1, start+id); err != nil || o.Kind != Hit || o.First != ids.Seq(id/killKeys+1) {
			t.Fatalf("request %d: %+v, %v", id, o, err)
		}
	}
	t.Logf("%d requests over %d deaths", next, rounds)
}
