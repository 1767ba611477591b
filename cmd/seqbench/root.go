package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/buildinfo"
	"github.com/seqsvr/seqsvr/internal/cli"
)

const serverVariable = "SEQ_SERVER"

func rootCommand(stdout, stderr io.Writer) *cobra.Command {
	var c config
	root := &cobra.Command{
		Use:   "seqbench",
		Short: "Measure how fast numbers are issued, and check each of them",
		Long: `Measure how fast numbers are issued, and check each of them.

Targets:
  native  the Go SDK: it follows the owners of keys, and retries
  grpc    the SDK's transport without the SDK: one plain request a call over one
          connection, to the node at --server, with keys that this node owns
  redis   INCR, to any server that speaks the Redis protocol
  inproc  a cluster in this process, called without a network
  http    not available yet

Modes:
  single     one key a call, each call a request of its own
  batch      --batch keys a call: AllocMany, one request, or a pipeline
  coalesced  one key a call; concurrent calls share requests (native: the SDK's
             coalescing; redis: go-redis' automatic pipelining)

Latency is that of calls. Verification reads the counters first, so they need
not be new, but nobody else may use them during the run. Ctrl-C ends the run and
reports what there is. Exit status: 0 done, 1 failed or wrong numbers seen, 2 wrong usage.`,
		Example: `  seqbench --target native --mode coalesced --callers 64
  seqbench --target native --mode batch --batch 1000 --callers 2 --touch
  seqbench --target redis --server 127.0.0.1:7379 --callers 64 --output json   # the Redis port of seqsvr dev
  seqbench --target redis --server 127.0.0.1:6379 --callers 64                 # a redis-server
  seqbench --target native --mode coalesced --rate 5000 --histogram fixed.hgrm
  seqbench --target inproc --callers 1 --touch --no-verify`,
		Version: buildinfo.Get().String(),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.serverGiven = cmd.Flags().Changed("server")
			c.batchGiven = cmd.Flags().Changed("batch")
			if err := c.check(); err != nil {
				return err
			}
			return bench(cmd.Context(), &c, openTarget, stdout, stderr)
		},
	}
	fs := root.Flags()
	fs.StringVar(&c.target, "target", "native", "native, grpc, redis, inproc or http")
	fs.StringVar(&c.server, "server", "", "HOST:PORT[,HOST:PORT…] of the target (default "+defaultServer+" or "+serverVariable+"; redis: "+defaultRedis+")")
	fs.StringVar(&c.mode, "mode", "single", "single, batch or coalesced")
	fs.IntVar(&c.callers, "callers", 50, "how many call at the same time")
	fs.IntVar(&c.batch, "batch", 100, "keys a call, in mode batch")
	fs.IntVar(&c.keys, "keys", 1_000_000, "how many keys are used")
	fs.Uint64Var(&c.firstKey, "first-key", 1, "the first of the keys; the others follow it")
	fs.StringVar(&c.dist, "dist", "uniform", "how keys are chosen: uniform or zipf (exponent 1.1)")
	fs.DurationVar(&c.duration, "duration", 10*time.Second, "how long to measure")
	fs.DurationVar(&c.warmup, "warmup", 2*time.Second, "how long to run before, unmeasured")
	fs.BoolVar(&c.touch, "touch", false, "allocate a number of each key first, so that none is cold")
	fs.Float64Var(&c.rate, "rate", 0, "allocations a second in all, sent when they are due; 0 for as fast as it goes")
	fs.StringVar(&c.histogram, "histogram", "", "file for the HdrHistogram percentiles, in µs")
	fs.StringVar(&c.space, "space", client.DefaultSpace, "space of the keys; the keys of others than "+client.DefaultSpace+" are names")
	fs.IntVar(&c.db, "db", 0, "database to SELECT, with --target redis")
	fs.BoolVar(&c.noVerify, "no-verify", false, "do not check the numbers")
	fs.Uint64Var(&c.seed, "seed", 1, "of the choice of keys")
	fs.DurationVar(&c.timeout, "timeout", 5*time.Second, "how long a call may take")
	fs.StringVar(&c.output, "output", "table", "table or json")
	for flag, values := range map[string][]string{"target": targetNames, "mode": modeNames, "dist": distNames, "output": outputNames} {
		_ = root.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	root.SetFlagErrorFunc(flagError)
	return root
}

// flagError says what was meant; the errors of pflag name Go's functions.
func flagError(c *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	if errors.As(err, &value) {
		f := value.GetFlag()
		want := map[string]string{"duration": "a duration like 5s or 300ms", "bool": "true or false", "float64": "a number"}[f.Value.Type()]
		if want == "" {
			want = "a whole number"
		}
		return cli.Usagef("--%s %q: want %s", f.Name, value.GetValue(), want)
	}
	return cli.Usagef("%w: see %s --help", err, c.CommandPath())
}

func serverFromEnvironment() string { return strings.TrimSpace(os.Getenv(serverVariable)) }
