// Command seqchaos checks what clients saw of a cluster against the guarantees.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// errUsage marks errors of usage (exit 2), errViolation a history that does not hold (exit 1, already reported).
var (
	errUsage     = errors.New("usage")
	errViolation = errors.New("the guarantees do not hold")
)

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := command()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "error: %v: see %s --help\n", err, root.Name())
		return 2
	default:
		fmt.Fprintf(stderr, "error: %v\n", err)
		return 1
	}
}

func command() *cobra.Command {
	root := &cobra.Command{Use: "seqchaos", Short: "Check what clients saw of a cluster against the guarantees"}
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%v", err) })
	root.AddCommand(checkCommand())
	return root
}

func usage(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errUsage}, args...)...)
}

// exactArgs is cobra.ExactArgs with the exit code of wrong usage.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return usage("want %s, got %d arguments", what, len(args))
		}
		return nil
	}
}
