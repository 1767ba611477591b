// Package cli has what all programs do alike: errors as `error: what: what to do`
// on stderr, exit 0, 1 for a failed operation and 2 for wrong usage, and signals.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// usageError is a mistake in how the program was called.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// Usage marks an error as wrong usage.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

// Usagef makes an error of wrong usage.
func Usagef(format string, a ...any) error { return Usage(fmt.Errorf(format, a...)) }

// silentError has been told to the user already.
type silentError struct{ code int }

func (e *silentError) Error() string { return "" }

// Silent is an error that ends the program with a code and prints nothing more.
func Silent(code int) error { return &silentError{code} }

// ExitCode of an error.
func ExitCode(err error) int {
	var s *silentError
	var u *usageError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &s):
		return s.code
	case errors.As(err, &u):
		return ExitUsage
	}
	return ExitFailed
}

// Print writes an error as programs do.
func Print(w io.Writer, err error) {
	if text := strings.TrimSpace(err.Error()); text != "" {
		fmt.Fprintf(w, "error: %s\n", strings.ReplaceAll(text, "\n", "\nerror: "))
	}
}

// Main runs a command and ends the program.
func Main(root *cobra.Command) {
	os.Exit(Run(context.Background(), root, os.Args[1:], os.Stderr))
}

// Run runs a command and answers the exit code.
func Run(ctx context.Context, root *cobra.Command, args []string, stderr io.Writer) int {
	root.SilenceErrors = true
	root.SilenceUsage = true
	ran := false
	prepare(root, &ran)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	if !ran && ExitCode(err) == ExitFailed {
		// cobra refused the arguments before any command ran.
		err = Usagef("%w: see %s --help", err, root.CommandPath())
	}
	Print(stderr, err)
	return ExitCode(err)
}

// prepare notes when a command begins to run, so that what fails before is wrong usage.
func prepare(c *cobra.Command, ran *bool) {
	for _, sub := range c.Commands() {
		prepare(sub, ran)
	}
	if run := c.RunE; run != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			*ran = true
			return run(c, args)
		}
		return
	}
	if c.Run == nil && c.HasSubCommands() {
		c.RunE = func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q", args[0])
			}
			return c.Help()
		}
	}
}

// ErrForced is the cause of the second context of Signals.
var ErrForced = errors.New("interrupted again")

// Signals answers a context that ends with the first SIGINT or SIGTERM, or with
// parent: stop in order; and one that ends with the second signal: stop at once.
func Signals(parent context.Context) (first, second context.Context, release func()) {
	c := make(chan os.Signal, 2)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
	first, stop := context.WithCancel(parent)
	second, force := context.WithCancelCause(context.WithoutCancel(parent))
	done := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case <-c:
				if n == 0 {
					stop()
				} else {
					force(ErrForced)
				}
			case <-done:
				return
			}
		}
	}()
	return first, second, func() {
		signal.Stop(c)
		close(done)
		stop()
		force(nil)
	}
}
