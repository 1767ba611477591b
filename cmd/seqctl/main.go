package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/seqsvr/seqsvr/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the whole program; it answers the exit status. The first signal ends
// what it does in order; the second has the system's effect.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer release()
	defer context.AfterFunc(ctx, release)()
	return runUntil(ctx, args, stdin, stdout, stderr)
}

func runUntil(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := newApp(stdout, stderr)
	root := rootCommand(a)
	root.SetIn(stdin)
	root.SetOut(&a.out)
	root.SetErr(stderr)
	code := cli.Run(ctx, root, args, stderr)
	if err := a.out.err; err != nil {
		cli.Print(stderr, outputLost(err))
		return cli.ExitFailed
	}
	return code
}
