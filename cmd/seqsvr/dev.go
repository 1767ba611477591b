package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/seqsvr/seqsvr/internal/cli"
	"github.com/seqsvr/seqsvr/internal/cluster"
	"github.com/seqsvr/seqsvr/internal/config"
	"github.com/seqsvr/seqsvr/internal/lease"
	"github.com/seqsvr/seqsvr/internal/rpc"
)

type devFlags struct {
	data, listen, redis, http string
	stores, allocs, sets      int
	leaseTTL                  time.Duration
	raftTimeout               time.Duration
	steps                     config.Steps
	logLevel                  string
}

const (
	startTimeout = 30 * time.Second
	stopTimeout  = 20 * time.Second
	// devRaftTimeout is long enough for a busy laptop not to depose a leader, short enough to start at once.
	devRaftTimeout = 400 * time.Millisecond
)

func devCommand() *cobra.Command {
	var f devFlags
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run a real cluster in this process, on loopback",
		Long: `Run a real cluster in this process: StoreSvrs on Raft with real files, AllocSvrs,
and real TCP between them on loopback. For development, demonstrations and tests.

Without --data the state is in a temporary directory that is removed at exit.
A line "ready listen=… redis=… http=…" on stdout says that it serves.`,
		Example: `  seqsvr dev
  seqsvr dev --data ./seq-data
  seqsvr dev --listen 127.0.0.1:0 --redis 127.0.0.1:0 --http 127.0.0.1:0   # free ports; see the ready line
  seqsvr dev --stores 5 --allocs 4 --lease-ttl 1s
  seqsvr dev --step-policy adaptive --step-max 1000   # steps by how fast each key's numbers go
  seqsvr dev --sets 2   # and then: seqctl set move --from s1 --to s2 --range 0-1000`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("raft-timeout") {
				f.raftTimeout = min(f.raftTimeout, lease.RaftTimeoutMax(f.leaseTTL))
			}
			if err := f.check(); err != nil {
				return err
			}
			return runDev(c.Context(), f, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	fs := c.Flags()
	fs.StringVar(&f.data, "data", "", "directory to keep the state in (default: a temporary one)")
	fs.StringVar(&f.listen, "listen", "127.0.0.1:7100", "HOST:PORT for clients (gRPC and TTHeader) and seqctl")
	fs.StringVar(&f.redis, "redis", "127.0.0.1:7379", "HOST:PORT for Redis clients; empty for none")
	fs.StringVar(&f.http, "http", "127.0.0.1:7180", "HOST:PORT of the admin HTTP server; empty for none")
	fs.IntVar(&f.stores, "stores", 3, "number of StoreSvrs of each Set")
	fs.IntVar(&f.allocs, "allocs", 2, "number of AllocSvrs of each Set")
	fs.IntVar(&f.sets, "sets", 1, "number of Sets; the first one, s1, owns everything at first")
	fs.DurationVar(&f.leaseTTL, "lease-ttl", 2*time.Second, "how long an AllocSvr may serve without hearing from the leader")
	fs.DurationVar(&f.raftTimeout, "raft-timeout", devRaftTimeout, "how long without a leader before an election; at most a fifth of --lease-ttl, and less by default where that is less")
	f.steps.Declare(fs)
	fs.StringVar(&f.logLevel, "log-level", "warn", "least level that is logged to stderr: debug, info, warn, error")
	return c
}

func (f *devFlags) check() error {
	switch {
	case f.sets < 1 || f.sets > 9:
		return cli.Usagef("--sets %d: want 1 to 9", f.sets)
	case f.stores < 1 || f.stores > 9:
		return cli.Usagef("--stores %d: want 1 to 9, best an odd number", f.stores)
	case f.allocs < 1 || f.allocs > 64:
		return cli.Usagef("--allocs %d: want 1 to 64", f.allocs)
	case f.leaseTTL < 100*time.Millisecond:
		return cli.Usagef("--lease-ttl %v: want at least 100ms", f.leaseTTL)
	case f.raftTimeout > lease.RaftTimeoutMax(f.leaseTTL):
		return cli.Usagef("--raft-timeout %v: want at most %v, a fifth of --lease-ttl", f.raftTimeout, lease.RaftTimeoutMax(f.leaseTTL))
	case f.raftTimeout < 20*time.Millisecond:
		return cli.Usagef("--raft-timeout %v: want at least 20ms", f.raftTimeout)
	}
	// The keys of a configuration file are flags here.
	flag := func(key, format string, a ...any) error {
		return cli.Usagef("--%s %s", strings.ReplaceAll(key, "_", "-"), fmt.Sprintf(format, a...))
	}
	if problems := f.steps.Check(flag); len(problems) > 0 {
		return problems[0]
	}
	for _, a := range []struct {
		flag, addr string
		optional   bool
	}{{"listen", f.listen, false}, {"redis", f.redis, true}, {"http", f.http, true}} {
		if a.addr == "" && a.optional {
			continue
		}
		if _, _, err := net.SplitHostPort(a.addr); err != nil {
			return cli.Usagef("--%s %q: want HOST:PORT", a.flag, a.addr)
		}
		if _, err := net.ResolveTCPAddr("tcp", a.addr); err != nil {
			return cli.Usagef("--%s %q: %v: want HOST:PORT", a.flag, a.addr, err)
		}
	}
	if _, err := zapcore.ParseLevel(f.logLevel); err != nil {
		return cli.Usagef("--log-level %q: want debug, info, warn or error", f.logLevel)
	}
	return nil
}

func runDev(ctx context.Context, f devFlags, stdout, stderr io.Writer) (err error) {
	log, err := (&config.Log{Level: f.logLevel, Format: "console"}).Logger()
	if err != nil {
		return err
	}
	if f.logLevel == "warn" {
		log = log.WithOptions(zap.WrapCore(quietRaft))
	}
	rpc.SetLogger(log)
	first, second, release := cli.Signals(ctx)
	defer release()

	dir := f.data
	if dir == "" {
		if dir, err = os.MkdirTemp("", "seqsvr-dev-"); err != nil {
			return fmt.Errorf("no temporary directory: %w: name one with --data", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("--data: %w", err)
	}
	// The counters of a temporary cluster go with its directory.
	var arenas func(string) string
	if f.data != "" {
		if m := newShm(shmDir, dir); m != nil {
			if err := m.begin(dir); err != nil {
				return fmt.Errorf("shared memory: %w", err)
			}
			defer m.end()
			arenas = m.arena
		}
	}
	c, err := cluster.Start(cluster.Options{
		Dir: dir, ArenaPath: arenas, Sets: f.sets, Stores: f.stores, Allocs: f.allocs,
		Listen: f.listen, Redis: f.redis, HTTP: f.http,
		LeaseTTL: f.leaseTTL, RaftTimeout: f.raftTimeout, Steps: f.steps.Rule(), StopLinger: time.Millisecond,
		Logger: log,
	})
	if err != nil {
		return fmt.Errorf("the cluster did not start: %w", err)
	}
	stopped := make(chan error, 1)
	defer func() {
		sctx, cancel := context.WithTimeout(second, stopTimeout)
		defer cancel()
		go func() { stopped <- c.Stop(sctx) }()
		select {
		case serr := <-stopped:
			err = errors.Join(err, serr)
		case <-second.Done():
			// Nothing is lost: the state is in --data, and the counters in their arenas.
			err = errors.Join(err, cli.ErrForced)
		}
	}()
	sctx, cancel := context.WithTimeout(first, startTimeout)
	defer cancel()
	if err := c.WaitReady(sctx); err != nil {
		if first.Err() != nil {
			return nil
		}
		return fmt.Errorf("the cluster is not ready after %v: %w", startTimeout, err)
	}
	a := c.Endpoints()
	fmt.Fprintf(stdout, "ready listen=%s redis=%s http=%s\n", a.RPC, a.Redis, a.HTTP)
	printHelp(stderr, a, f)
	fctx, cancel := context.WithCancel(first)
	defer cancel()
	select {
	case <-first.Done():
		return nil
	case err := <-c.Failed(fctx):
		return fmt.Errorf("a node stopped taking part: %w", err)
	}
}

// quietRaft drops what Raft and its transport say: each start, and
// each stop of peers that are all in this process, would look like a failure.
func quietRaft(c zapcore.Core) zapcore.Core { return quietCore{c} }

type quietCore struct{ zapcore.Core }

func (c quietCore) With(f []zapcore.Field) zapcore.Core { return quietCore{c.Core.With(f)} }

func (c quietCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	switch e.LoggerName {
	case "raft", "transport", "snapshots":
		return ce
	}
	return c.Core.Check(e, ce)
}

func printHelp(w io.Writer, a cluster.Endpoints, f devFlags) {
	env := ""
	if a.RPC != "127.0.0.1:7100" {
		env = "SEQ_SERVER=" + a.RPC + " "
	}
	fmt.Fprintf(w, "\nA cluster is running. Try, in another terminal:\n\n")
	lines := []string{
		"go run ./cmd/seqctl alloc 42",
		"go run ./cmd/seqctl alloc 42 -n 100",
		"go run ./cmd/seqctl --space conv alloc si_1001_1002",
		"go run ./cmd/seqctl status",
	}
	if f.sets > 1 {
		lines = append(lines, "go run ./cmd/seqctl set list", "go run ./cmd/seqctl set move --from s1 --to s2 --range 0-1000 --yes")
	}
	for _, line := range lines {
		fmt.Fprintf(w, "  %s%s\n", env, line)
	}
	if host, port, err := net.SplitHostPort(a.Redis); err == nil {
		fmt.Fprintf(w, "  redis-cli -h %s -p %s INCR 42\n", host, port)
	}
	if a.HTTP != "" {
		fmt.Fprintf(w, "  curl http://%s/metrics\n", a.HTTP)
	}
	if f.data == "" {
		fmt.Fprintf(w, "\nIts state goes when it ends (Ctrl-C); keep it with --data DIR.\n\n")
	} else {
		fmt.Fprintf(w, "\nIts state is in %s. Ctrl-C ends it.\n\n", f.data)
	}
}
