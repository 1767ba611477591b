package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/chaos/check"
	"github.com/seqsvr/seqsvr/chaos/faults"
	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/chaos/load"
	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cli"
	"github.com/seqsvr/seqsvr/internal/cluster"
	"github.com/seqsvr/seqsvr/internal/config"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

type runFlags struct {
	duration, leaseTTL            time.Duration
	stores, allocs, sets          int
	clients, keys                 int
	rate                          float64
	faults                        []string
	limits                        map[string]string
	seed                          uint64
	report, bin, output, logLevel string

	// can and skipped are the faults, split; unserved the limits, read.
	can, skipped []string
	unserved     map[string]time.Duration
}

// drive makes the root command run a cluster.
func drive(c *cobra.Command) {
	var f runFlags
	c.Example = `  seqchaos --duration 60s --report ./chaos-report
  seqchaos --faults kill-alloc,lose-alloc --seed 7
  seqchaos --sets 2 --allocs 2 --faults migrate,kill-alloc,kill-leader
  seqchaos check ./chaos-report/history.jsonl`
	c.Args = cobra.NoArgs
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		return f.run(c)
	}
	fs := c.Flags()
	fs.DurationVar(&f.duration, "duration", 60*time.Second, "how long to inject faults")
	fs.IntVar(&f.stores, "stores", 3, "number of storesvr processes of each Set")
	fs.IntVar(&f.allocs, "allocs", 3, "number of allocsvr processes of each Set")
	fs.IntVar(&f.sets, "sets", 1, "number of Sets; with more than one, the fault migrate moves half of the keys from Set to Set")
	fs.IntVar(&f.clients, "clients", 8, "number of clients")
	fs.IntVar(&f.keys, "keys", 200, "number of keys, half uids, half conversations")
	fs.Float64Var(&f.rate, "rate", 100, "calls per second of each client; 0 for as many as it can")
	fs.StringSliceVar(&f.faults, "faults", []string{"kill-alloc", "pause-alloc", "kill-leader", "partition", "clock", "disk-full", "migrate"}, fmt.Sprintf("faults to draw from: %v", faults.Names()))
	fs.StringToStringVar(&f.limits, "limit", nil, "longest time that a key may go unserved around a fault, e.g. lose-alloc=2.5s")
	fs.Uint64Var(&f.seed, "seed", 0, "seed of faults and load (default: a random one)")
	fs.DurationVar(&f.leaseTTL, "lease-ttl", 2*time.Second, "lease of the AllocSvrs")
	fs.StringVar(&f.report, "report", "", "directory for history and logs (default: a temporary one, kept when the guarantees do not hold)")
	fs.StringVar(&f.bin, "bin", "", "directory of storesvr and allocsvr (default: where seqchaos is, else they are built)")
	fs.StringVar(&f.logLevel, "log-level", "info", "least level that is logged to stderr: debug, info, warn, error")
	outputFlag(c, &f.output)
}

func (f *runFlags) check() (err error) {
	for _, n := range []struct {
		name            string
		value, min, max int
	}{
		{"stores", f.stores, 1, 9}, {"allocs", f.allocs, 1, 64}, {"sets", f.sets, 1, 64}, {"clients", f.clients, 1, 1000}, {"keys", f.keys, 1, 1_000_000},
	} {
		if n.value < n.min || n.value > n.max {
			return cli.Usagef("--%s %d: want %d to %d", n.name, n.value, n.min, n.max)
		}
	}
	switch {
	case f.duration < time.Second:
		return cli.Usagef("--duration %v: want at least 1s", f.duration)
	case f.leaseTTL < 100*time.Millisecond:
		return cli.Usagef("--lease-ttl %v: want at least 100ms", f.leaseTTL)
	case f.rate < 0:
		return cli.Usagef("--rate %v: want 0 or more", f.rate)
	}
	if f.can, f.skipped, err = faults.Plan(f.faults, f.sets); err != nil {
		return cli.Usagef("--faults: %w", err)
	}
	f.unserved = map[string]time.Duration{}
	for name, text := range f.limits {
		if f.unserved[name], err = time.ParseDuration(text); err != nil {
			return cli.Usagef("--limit %s=%s: %w", name, text, err)
		}
	}
	if f.seed == 0 {
		f.seed = rand.Uint64()
	}
	return validOutput(f.output)
}

func (f *runFlags) run(c *cobra.Command) (err error) {
	log, err := (&config.Log{Level: f.logLevel, Format: "console"}).Logger()
	if err != nil {
		return cli.Usagef("--log-level: %w", err)
	}
	ctx, _, release := cli.Signals(c.Context())
	defer release()
	dir, keep := f.report, true
	if dir == "" {
		if dir, err = os.MkdirTemp("", "seqchaos-"); err != nil {
			return fmt.Errorf("no temporary directory: %w: name one with --report", err)
		}
		keep = false
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cluster")); err == nil {
		return fmt.Errorf("%s holds an earlier run: remove it, or name another directory with --report", dir)
	}
	log.Info("chaos begins", zap.Uint64("seed", f.seed), zap.Strings("faults", f.can), zap.Strings("skipped", f.skipped))
	h, err := f.play(ctx, dir, log)
	if err != nil {
		return fmt.Errorf("%w: logs are in %s", err, dir)
	}
	r := check.Check(h, check.Options{Limits: f.unserved})
	keep = keep || !r.OK
	if keep {
		err = errors.Join(h.Save(filepath.Join(dir, "history.jsonl")), saveReport(r, filepath.Join(dir, "report.json")))
	} else {
		err = os.RemoveAll(dir)
	}
	if err = errors.Join(err, show(c.OutOrStdout(), r, f.output)); err != nil {
		return err
	}
	if !r.OK {
		log.Error("the guarantees do not hold", zap.String("report", dir))
	}
	return verdict(c.ErrOrStderr(), r)
}

func saveReport(r *check.Report, path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(r.WriteJSON(file), file.Close())
}

// play runs the cluster, the clients and the faults, and gives what the clients saw.
func (f *runFlags) play(ctx context.Context, dir string, log *zap.Logger) (*history.History, error) {
	bin, err := f.programs(ctx, dir)
	if err != nil {
		return nil, err
	}
	p, err := cluster.StartProcesses(ctx, cluster.ProcessOptions{
		Bin: bin, Dir: filepath.Join(dir, "cluster"), Sets: f.sets, Stores: f.stores, Allocs: f.allocs, LeaseTTL: f.leaseTTL,
	})
	if err != nil {
		return nil, fmt.Errorf("the cluster did not start: %w", err)
	}
	defer p.Stop()
	targets, closeAll, err := f.dial(ctx, p.Addrs())
	defer closeAll()
	if err != nil {
		return nil, err
	}
	rec := history.NewRecorder()
	lctx, stop := context.WithCancel(ctx)
	defer stop()
	loaded := make(chan error, 1)
	go func() {
		cfg := load.Config{Clients: f.clients, Keys: f.keyNames(), Seed: f.seed, Rate: f.rate, WithID: 0.2, Repeat: 0.2, Skew: 1.1}
		loaded <- load.Run(lctx, cfg, rec, func(i int) load.Target { return targets[i] })
	}()
	fctx, cancel := context.WithTimeout(ctx, f.duration)
	defer cancel()
	err = faults.Run(fctx, faults.Config{Names: f.can, Seed: f.seed, Logger: log}, faults.Processes(p, f.leaseTTL, f.half()...), rec)
	<-fctx.Done() // also when there was no fault to inject
	stop()
	if err = errors.Join(err, <-loaded); err != nil {
		return nil, err
	}
	ectx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := load.Finish(ectx, rec, f.keyNames(), targets[0]); err != nil {
		return nil, fmt.Errorf("the service did not come back: %w", err)
	}
	h := rec.History()
	h.Seed, h.Skipped = f.seed, f.skipped
	return h, nil
}

// programs finds the servers' binaries, or builds them.
func (f *runFlags) programs(ctx context.Context, dir string) (string, error) {
	if f.bin != "" {
		return f.bin, nil
	}
	if self, err := os.Executable(); err == nil {
		if _, err := os.Stat(filepath.Join(filepath.Dir(self), "allocsvr")); err == nil {
			return filepath.Dir(self), nil
		}
	}
	bin := filepath.Join(dir, "bin")
	if err := cluster.BuildPrograms(ctx, bin, "storesvr", "allocsvr"); err != nil {
		return "", fmt.Errorf("%w: name the directory of built ones with --bin", err)
	}
	return bin, nil
}

func (f *runFlags) dial(ctx context.Context, addrs []string) (targets []load.Target, closeAll func(), err error) {
	var clients []io.Closer
	closeAll = func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}
	for range f.clients {
		c, err := client.Dial(ctx, addrs)
		if err != nil {
			return nil, closeAll, err
		}
		clients = append(clients, c)
		targets = append(targets, load.SDK(c))
	}
	return targets, closeAll, nil
}

// half of the keys: the lower uids, and the lower positions of conversations.
func (f *runFlags) half() []sets.Range {
	spaces := ids.DefaultSpaces()
	conv := sets.Whole(spaces[1])
	conv.Last = 1<<63 - 1
	return []sets.Range{{Space: spaces[0].ID, Last: ids.Position(uidOf(f.keys / 2))}, conv}
}

func uidOf(i int) uint64 { return uint64(i) * 131 }

func (f *runFlags) keyNames() []string {
	keys := make([]string, f.keys)
	for i := range keys {
		if i%2 == 0 {
			keys[i] = fmt.Sprintf("uid/%d", uidOf(i))
		} else {
			keys[i] = fmt.Sprintf("conv/sg_%d", i)
		}
	}
	return keys
}
