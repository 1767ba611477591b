package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/seqsvr/seqsvr/internal/cli"
)

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// gcPercent stands for the heap that a program around the client has. Hardly any
// has as little as this one, which would collect its 4 MB a hundred times a second.
const gcPercent = 800

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
