package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/seqsvr/seqsvr/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the whole program. The first signal ends the measurement, and what
// there is gets reported; the second has the system's effect.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer release()
	defer context.AfterFunc(ctx, release)()
	return runUntil(ctx, args, stdout, stderr)
}

func runUntil(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := rootCommand(stdout, stderr)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return cli.Run(ctx, root, args, stderr)
}
