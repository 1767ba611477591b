package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/config"
)

func TestExitCodesAndMessages(t *testing.T) {
	root := func() *cobra.Command {
		r := &cobra.Command{Use: "prog"}
		r.AddCommand(
			&cobra.Command{Use: "ok", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return nil }},
			&cobra.Command{Use: "fail", RunE: func(*cobra.Command, []string) error { return errors.New("it broke: mend it") }},
			&cobra.Command{Use: "wrong", RunE: func(*cobra.Command, []string) error { return Usagef("-n 0: want 1 or more") }},
			&cobra.Command{Use: "several", RunE: func(*cobra.Command, []string) error {
				return errors.Join(errors.New("one"), errors.New("two"))
			}},
			&cobra.Command{Use: "silent", RunE: func(*cobra.Command, []string) error { return Silent(ExitFailed) }},
			&cobra.Command{Use: "wrapped", RunE: func(*cobra.Command, []string) error { return fmt.Errorf("so: %w", Usagef("wrong")) }},
		)
		return r
	}
	for _, c := range []struct {
		args   string
		code   int
		stderr string
	}{
		{"ok", 0, ""},
		{"fail", 1, "error: it broke: mend it\n"},
		{"wrong", 2, "error: -n 0: want 1 or more\n"},
		{"several", 1, "error: one\nerror: two\n"},
		{"silent", 1, ""},
		{"wrapped", 2, "error: so: wrong\n"},
		{"nothing", 2, "error: unknown command \"nothing\" for \"prog\": see prog --help\n"},
		{"ok more", 2, "error: unknown command \"more\" for \"prog ok\": see prog --help\n"},
		{"ok --flag", 2, "error: unknown flag: --flag: see prog --help\n"},
	} {
		var stderr bytes.Buffer
		code := Run(context.Background(), root(), strings.Fields(c.args), &stderr)
		if code != c.code || stderr.String() != c.stderr {
			t.Errorf("%s: exit %d, stderr %q; want %d, %q", c.args, code, stderr.String(), c.code, c.stderr)
		}
	}
}

func TestTheFirstSignalAsksAndTheSecondForces(t *testing.T) {
	first, second, release := Signals(context.Background())
	defer release()
	kill := func() {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	kill()
	<-first.Done()
	if second.Err() != nil {
		t.Fatal("one signal forced")
	}
	kill()
	<-second.Done()
	if context.Cause(second) != ErrForced {
		t.Error(context.Cause(second))
	}
}

// settings are those of a server for tests.
type settings struct{ Word string }

func (s *settings) Declare(fs *pflag.FlagSet) { fs.StringVar(&s.Word, "word", "x", "a word") }
func (s *settings) Check(k *config.Keys) error {
	if s.Word == "bad" {
		return k.Problem("word", "%q is not allowed", s.Word)
	}
	return nil
}

type fakeServer struct {
	failed  chan error
	stopErr error
	stuck   bool
	stopped chan struct{}
}

func runServer(ctx context.Context, f *fakeServer, ready io.Writer, args ...string) (int, string) {
	timeout := 5 * time.Second
	c := Server("srv", "A server", "", &settings{}, &config.Log{Level: "fatal", Format: "console"}, &timeout, func(*zap.Logger) (*Running, error) {
		return &Running{
			Ready: func() error { return nil }, ReadyLine: "node=n1", Failed: f.failed,
			Stop: func(ctx context.Context) error {
				if f.stuck {
					<-ctx.Done()
					<-f.stopped
				}
				return f.stopErr
			},
		}, nil
	})
	c.SetOut(ready)
	var stderr bytes.Buffer
	code := Run(ctx, c, args, &stderr)
	return code, stderr.String()
}

// readyWriter tells when the ready line was written.
type readyWriter struct{ c chan string }

func (w readyWriter) Write(b []byte) (int, error) { w.c <- string(b); return len(b), nil }

func TestAServerSaysReadyAndStopsWhenTold(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	w := readyWriter{make(chan string, 1)}
	go func() {
		if line := <-w.c; line != "ready node=n1\n" {
			t.Errorf("%q", line)
		}
		cancel()
	}()
	if code, text := runServer(ctx, &fakeServer{}, w); code != 0 || text != "" {
		t.Errorf("%d %q", code, text)
	}
}

func TestAServerThatFailsEndsWithTheReason(t *testing.T) {
	f := &fakeServer{failed: make(chan error, 1)}
	f.failed <- errors.New("disk gone")
	if code, text := runServer(context.Background(), f, io.Discard); code != 1 || text != "error: disk gone\n" {
		t.Errorf("%d %q", code, text)
	}
}

func TestASecondSignalEndsAStuckStop(t *testing.T) {
	f := &fakeServer{stuck: true, stopped: make(chan struct{})}
	defer close(f.stopped)
	w := readyWriter{make(chan string, 1)}
	go func() {
		<-w.c
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		time.Sleep(50 * time.Millisecond)
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
	}()
	if code, text := runServer(context.Background(), f, w); code != 1 || !strings.Contains(text, "interrupted again") {
		t.Errorf("%d %q", code, text)
	}
}

func TestABadConfigurationIsWrongUsageAndOpensNothing(t *testing.T) {
	code, text := runServer(context.Background(), nil, io.Discard, "--word", "bad")
	if code != 2 || text != "error: configuration refused: --word: word: \"bad\" is not allowed\n" {
		t.Errorf("%d %q", code, text)
	}
	var out bytes.Buffer
	if code, text := runServer(context.Background(), nil, &out, "--check-config"); code != 0 || text != "" || out.String() != "word: x # default\n" {
		t.Errorf("%d %q %q", code, text, out.String())
	}
}
