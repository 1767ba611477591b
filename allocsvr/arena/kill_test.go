package arena

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
)

const killEnv = "SEQSVR_ARENA_KILL_TEST"

func TestMain(m *testing.M) {
	if path := os.Getenv(killEnv); path != "" {
		takeUntilKilled(path)
	}
	os.Exit(m.Run())
}

func killOptions(path string) Options {
	o := testOptions(nil)
	o.Path = path
	return o
}

const killKeys = 5

func killKey(i int) ids.Key {
	if i%2 == 1 {
		return ids.Key{Space: 2, Hi: uint64(i) << 8, Lo: uint64(i)}
	}
	return uid(uint64(i) << 7)
}

// takeUntilKilled is the child: it resumes, and takes numbers as fast as it can,
// writing each down after it took it. The arena is extended in small steps, closed,
// reopened and filled with other keys, so that death finds every kind of store.
func takeUntilKilled(path string) {
	die := func(err error) {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(3)
	}
	a, err := Open(killOptions(path))
	if err != nil {
		die(err)
	}
	switch _, err := a.Previous(); {
	case errors.Is(err, ErrNone):
		if err := a.Reset(testIdentity, testSections, testSpaces); err != nil {
			die(err)
		}
		for s := range ids.Section(testSections) {
			if err := a.OpenSection(s, 1); err != nil {
				die(err)
			}
		}
	case err != nil:
		die(err)
	default:
		if err := a.Adopt(testIdentity.Incarnation); err != nil {
			die(err)
		}
	}
	var out []byte
	for n := uint64(0); ; n++ {
		out = out[:0]
		for i := range killKeys {
			c, err := a.Ensure(killKey(i))
			if err != nil {
				die(err)
			}
			first, _, r := c.Take(1)
			switch r {
			case TakeEmpty:
				cur, _, _ := c.Load()
				c.Extend(cur, cur+3)
				continue
			case TakeClosed:
				cur, _, _ := c.Load()
				c.Reopen(cur, cur+3)
				continue
			}
			if n%5 == 0 {
				c.Close()
			}
			out = append(out, byte(i))
			out = binary.LittleEndian.AppendUint64(out, uint64(first))
		}
		other := uid(1<<20 + n%1000<<8)
		if c, err := a.Ensure(other); err != nil {
			die(err)
		} else if n%2 == 0 {
			c.Extend(ids.Seq(n), ids.Seq(n+1))
		} else {
			a.Free(uid(1<<20 + (n-1)%1000<<8))
		}
		if _, err := os.Stdout.Write(out); err != nil {
			die(err)
		}
	}
}

// The process is killed in mid-flight, again and again. The next one continues
// right above what the last took: nothing twice, nothing left out but the one
// number per key that was taken and could not be written down any more.
func TestKilledProcessesLoseNoNumber(t *testing.T) {
	dir := t.TempDir()
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
		var err error
		if dir, err = os.MkdirTemp("/dev/shm", "seqsvr-test"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	path := filepath.Join(dir, "arena")
	rounds := 30
	if testing.Short() || raceEnabled {
		rounds = 5
	}
	var last [killKeys]ids.Seq
	total := 0
	for round := range rounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killEnv+"="+path)
		cmd.Stderr = os.Stderr
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(pipe)
		var got [killKeys]ids.Seq
		for n := 0; ; n++ {
			if n == 500+round*137 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			var rec [9]byte
			if _, err := io.ReadFull(in, rec[:]); err != nil {
				break // all that was written before the end has been read
			}
			i, first := rec[0], ids.Seq(binary.LittleEndian.Uint64(rec[1:]))
			// A number per key may have been lost on its way at the last death.
			if first != last[i]+1 && (got[i] != 0 || first != last[i]+2) {
				t.Fatalf("round %d: key %d: %d after %d", round, i, first, last[i])
			}
			last[i], got[i] = first, first
			total++
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() == 3 {
			t.Fatalf("round %d: the child ended by itself: %v", round, err)
		}

		a, err := Open(killOptions(path))
		if err != nil {
			t.Fatal(err)
		}
		if id, err := a.Previous(); err != nil || id != testIdentity {
			t.Fatalf("round %d: %v %v", round, id, err)
		}
		if err := a.Adopt(testIdentity.Incarnation); err != nil {
			t.Fatal(err)
		}
		for i := range killKeys {
			c, ok := a.Find(killKey(i))
			if !ok {
				t.Fatalf("round %d: key %d is gone", round, i)
			}
			cur, max, closed := c.Load()
			if cur != last[i] && cur != last[i]+1 {
				t.Fatalf("round %d: key %d is at %d, the last number received is %d", round, i, cur, last[i])
			}
			if closed {
				c.Reopen(cur, cur+3)
			} else if max == cur {
				c.Extend(cur, cur+3)
			}
			first, _, r := c.Take(1)
			if r != TakeOK || first != cur+1 {
				t.Fatalf("round %d: key %d: %d, %v after %d", round, i, first, r, cur)
			}
			last[i] = first
		}
		if err := a.Close(false); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d numbers over %d deaths", total, rounds)
}
