package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cli"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// reach answers the servers with the first that takes a connection in front. So
// a cluster that is not running is known at once, and one server that swallows
// packets does not use up the time of the others.
func (a *app) reach(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	var dials sync.WaitGroup
	defer dials.Wait()
	defer cancel()
	type answer struct {
		server int
		err    error
	}
	answers := make(chan answer, len(a.servers))
	for i, s := range a.servers {
		dials.Go(func() {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s)
			if err == nil {
				conn.Close()
			}
			answers <- answer{i, err}
		})
	}
	failures := make([]error, len(a.servers))
	for range a.servers {
		r := <-answers
		if r.err == nil {
			first := a.servers[r.server]
			rest := slices.DeleteFunc(slices.Clone(a.servers), func(s string) bool { return s == first })
			return append([]string{first}, rest...), nil
		}
		failures[r.server] = r.err
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, errInterrupted
	}
	return nil, a.unreached(failures)
}

var errInterrupted = errors.New("interrupted: nothing was done: run it again")

// unreached explains why no server takes connections.
func (a *app) unreached(failures []error) error {
	at := strings.Join(a.servers, ", ")
	var causes []string
	for _, err := range failures {
		if !errors.Is(err, syscall.ECONNREFUSED) {
			causes = append(causes, dialCause(err))
		}
	}
	if len(causes) == 0 {
		return fmt.Errorf(`no server answered at %s: start one with "go run ./cmd/seqsvr dev" or pass --server`, at)
	}
	return fmt.Errorf("no server answered at %s: %s: check --server and the network", at, strings.Join(causes, "; "))
}

func dialCause(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no connection in time"
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	return err.Error()
}

// withClient calls f with a client of the cluster and the keys, within the time-out.
func (a *app) withClient(ctx context.Context, texts []string, f func(context.Context, *client.Client, []client.Key) error) error {
	if err := a.checkKeys(texts); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	cl, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	keys, err := a.keys(cl.Routes(), texts)
	if err != nil {
		return err
	}
	return f(ctx, cl, keys)
}

func (a *app) dial(ctx context.Context) (*client.Client, error) {
	servers, err := a.reach(ctx)
	if err != nil {
		return nil, err
	}
	cl, err := client.Dial(ctx, servers, client.WithBudget(a.timeout))
	if err == nil {
		return cl, nil
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, errInterrupted
	}
	at := strings.Join(a.servers, ", ")
	var e *rpc.Error
	switch {
	case !errors.As(err, &e):
		return nil, fmt.Errorf("no seqsvr answered at %s: %w: check --server, or try a longer --timeout", at, oneLine(err))
	case e.Answered && (e.Code == seqpb.Code_CODE_NOT_READY || e.Code == seqpb.Code_CODE_UNAVAILABLE):
		return nil, fmt.Errorf("the server at %s does not serve yet: %s: see seqctl status, and try again", e.Addr, e.Text)
	}
	return nil, fmt.Errorf("no seqsvr answered at %s: %s: check --server, or try a longer --timeout", at, e.Text)
}

// oneLine joins the lines of an error made of several.
func oneLine(err error) error {
	if text := err.Error(); strings.Contains(text, "\n") {
		return errors.New(strings.ReplaceAll(text, "\n", "; "))
	}
	return err
}

// failed gives an error of the SDK its exit status. Its text has the remedy already.
func failed(err error) error {
	if errors.Is(err, client.ErrInvalidArgument) {
		return cli.Usage(oneLine(err))
	}
	return oneLine(err)
}

// each prints the results that are good, in order, and tells the errors of the
// others. It is wrong usage only if that was all that came of it.
func each[T any](a *app, results []T, errOf func(T) error, print func(int, T)) error {
	good, wrong, bad := 0, 0, 0
	for i, r := range results {
		err := errOf(r)
		if err == nil {
			print(i, r)
			good++
			continue
		}
		err = failed(err)
		cli.Print(a.err, err)
		if bad++; cli.ExitCode(err) == cli.ExitUsage {
			wrong++
		}
	}
	switch {
	case bad == 0:
		return nil
	case good == 0 && wrong == bad:
		return cli.Silent(cli.ExitUsage)
	}
	return cli.Silent(cli.ExitFailed)
}
