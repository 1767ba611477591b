package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/buildinfo"
	"github.com/seqsvr/seqsvr/internal/config"
	"github.com/seqsvr/seqsvr/internal/rpc"
)

// Settings is a server's configuration.
type Settings interface {
	Declare(*pflag.FlagSet)
	Check(*config.Keys) error
}

// Running is a started server.
type Running struct {
	// Ready is nil when the server serves, else why not.
	Ready func() error
	// ReadyLine is printed once it does, after the word "ready".
	ReadyLine string
	// Failed delivers why the server cannot go on; nil: never.
	Failed <-chan error
	// Stop gives up in order what the server holds, until ctx ends.
	Stop func(context.Context) error
}

// Server makes the command of a server program: read the configuration, start,
// say ready, wait for a signal, stop. The second signal ends it at once.
// stopTimeout is read when the server stops.
func Server(name, short, example string, s Settings, log *config.Log, stopTimeout *time.Duration, start func(*zap.Logger) (*Running, error)) *cobra.Command {
	var file string
	var checkOnly bool
	c := &cobra.Command{
		Use:     name + " --config FILE",
		Short:   short,
		Example: example,
		Version: buildinfo.Get().String(),
		Args:    cobra.NoArgs,
	}
	c.Long = short + `.

Each key of the configuration file is also a flag and an environment variable:
lease_ttl in the file, --lease-ttl, SEQ_LEASE_TTL. A flag beats the environment,
which beats the file. SIGTERM stops in order; a second one ends at once.`
	c.Flags().StringVar(&file, "config", "", "configuration file (YAML)")
	c.Flags().BoolVar(&checkOnly, "check-config", false, "validate, print the configuration in force with secrets masked, and exit")
	keys := config.NewKeys(c.Flags(), s.Declare)
	c.RunE = func(c *cobra.Command, _ []string) error {
		err := keys.Load(file, os.LookupEnv)
		if err == nil {
			err = s.Check(keys)
		}
		if err != nil {
			return Usage(fmt.Errorf("configuration refused: %w", err))
		}
		if checkOnly {
			_, err := io.WriteString(c.OutOrStdout(), keys.Effective())
			return err
		}
		l, err := log.Logger()
		if err != nil {
			return Usage(err)
		}
		rpc.SetLogger(l)
		defer func() { _ = l.Sync() }()
		return serve(c, l, stopTimeout, start)
	}
	return c
}

// readyPoll is how often readiness, which nobody announces, is looked at.
const readyPoll = 5 * time.Millisecond

// startGCPercent is the garbage collector's target until a server is ready. The
// heap of a program that starts is small and grows at once, so that by default a
// fifth of the time to the first number went to collecting what is not garbage.
const startGCPercent = 800

func serve(c *cobra.Command, log *zap.Logger, stopTimeout *time.Duration, start func(*zap.Logger) (*Running, error)) error {
	first, second, release := Signals(c.Context())
	defer release()
	calm := debug.SetGCPercent(startGCPercent)
	r, err := start(log)
	if err != nil {
		return fmt.Errorf("not started: %w", err)
	}
	failure := waitForEnd(first, r, func() {
		debug.SetGCPercent(calm)
		fmt.Fprintf(c.OutOrStdout(), "ready %s\n", r.ReadyLine)
	})
	if failure != nil {
		log.Error("stopping, as this node cannot go on", zap.Error(failure))
	} else {
		log.Info("stopping")
	}
	ctx, cancel := context.WithTimeout(second, *stopTimeout)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- r.Stop(ctx) }()
	select {
	case err := <-stopped:
		if err != nil {
			err = fmt.Errorf("not stopped in order: %w", err)
		}
		return errors.Join(failure, err)
	case <-second.Done():
		return errors.Join(failure, fmt.Errorf("stopped at once: %w: what it held is given to others when its lease has run out", ErrForced))
	}
}

// waitForEnd says ready once, and returns when told to stop (nil) or when the server failed.
func waitForEnd(ctx context.Context, r *Running, ready func()) error {
	t := time.NewTicker(readyPoll)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-r.Failed:
			return err
		case <-t.C:
			if r.Ready() == nil {
				t.Stop()
				ready()
			}
		}
	}
}

// Listen opens the addresses that are not empty, all or none.
func Listen(addrs ...string) ([]net.Listener, error) {
	lns := make([]net.Listener, len(addrs))
	for i, a := range addrs {
		if a == "" {
			continue
		}
		ln, err := net.Listen("tcp", a)
		if err != nil {
			for _, open := range lns {
				if open != nil {
					open.Close()
				}
			}
			return nil, fmt.Errorf("%w: is another process on this port?", err)
		}
		lns[i] = ln
	}
	return lns, nil
}

// Advertised is the address to give others: addr, with the real port of ln
// where port 0 asked for any; "" without a listener.
func Advertised(ln net.Listener, addr string) string {
	if ln == nil {
		return ""
	}
	if host, port, err := net.SplitHostPort(addr); err == nil && port == "0" {
		_, port, _ = net.SplitHostPort(ln.Addr().String())
		return net.JoinHostPort(host, port)
	}
	return addr
}
