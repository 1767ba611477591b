package main

import (
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/buildinfo"
	"github.com/seqsvr/seqsvr/internal/cli"
)

func rootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "seqctl",
		Short: "Allocate, read and administer sequence numbers",
		Long: `Allocate, read and administer sequence numbers.

Output is a table, or with --output json one object a line. A key that begins
with a dash goes after "--". Exit status: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  seqctl alloc 42
  seqctl alloc 42 -n 100 --output json
  seqctl --space conv alloc si_1001_1002
  SEQ_SERVER=10.0.0.1:7100,10.0.0.2:7100 seqctl status`,
		Version: buildinfo.Get().String(),
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			a.timeoutGiven = c.Flags().Changed("timeout")
			return a.check()
		},
	}
	server := defaultServer
	if env := os.Getenv(serverVariable); env != "" {
		server = env
	}
	fs := root.PersistentFlags()
	fs.StringVar(&a.server, "server", server, "HOST:PORT[,HOST:PORT…] to try (also "+serverVariable+")")
	fs.StringVar(&a.space, "space", client.DefaultSpace, "space of the keys")
	fs.StringVar(&a.format, "output", "table", "table or json")
	fs.DurationVar(&a.timeout, "timeout", defaultTimeout, "how long to try; drain, watch and changes of members are unbounded without it")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		allocCommand(a), currentCommand(a), diffCommand(a), gapsCommand(a), routeCommand(a), watchCommand(a), watchKeysCommand(a),
		statusCommand(a), nodesCommand(a), drainCommand(a), undrainCommand(a), rebalanceCommand(a),
		setCommand(a),
	)
	return root
}

// flagError says what was meant: pflag takes the key -1 for a flag, and its
// errors name Go's functions.
func flagError(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		if letters := unknown.GetSpecifiedShortnames(); letters != "" {
			return cli.Usagef(`unknown flag -%s: if a key is meant, a uid is never negative, and a name that begins with a dash goes after "--"`, letters)
		}
	}
	var value *pflag.InvalidValueError
	if errors.As(err, &value) {
		f := value.GetFlag()
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand
		}
		want := value.Unwrap().Error()
		if f.Value.Type() == "duration" {
			want = "want a duration like 5s or 300ms"
		}
		return cli.Usagef("%s %q: %s", name, value.GetValue(), strings.TrimSpace(want))
	}
	return cli.Usagef("%w: see %s --help", err, c.CommandPath())
}
