package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/buildinfo"
	"github.com/seqsvr/seqsvr/internal/cli"
)

const defaultServer = "127.0.0.1:7100"

// app has what all commands share.
type app struct {
	server, space, output string
	timeout               time.Duration
	// timeoutGiven: --timeout was set, so it also bounds what has no bound by default.
	timeoutGiven bool
}

func rootCommand() *cobra.Command {
	a := &app{}
	root := &cobra.Command{
		Use:   "seqctl",
		Short: "Allocate, read and administer sequence numbers",
		Long: `Allocate, read and administer sequence numbers.

Output is a table on a terminal, and JSON (one object, or one a line) elsewhere,
unless --output says which. A key that begins with a dash goes after "--".
Exit status: 0 done, 1 failed, 2 wrong usage.`,
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
	def := defaultServer
	if env := os.Getenv("SEQ_SERVER"); env != "" {
		def = env
	}
	fs := root.PersistentFlags()
	fs.StringVar(&a.server, "server", def, "HOST:PORT[,…] of AllocSvrs, tried in turn (also SEQ_SERVER)")
	fs.StringVar(&a.space, "space", client.DefaultSpace, "space of the keys")
	fs.StringVar(&a.output, "output", "", "table or json (default: table on a terminal, else json)")
	fs.DurationVar(&a.timeout, "timeout", 5*time.Second, "how long to try")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		allocCommand(a), currentCommand(a), diffCommand(a), gapsCommand(a), routeCommand(a), watchCommand(a),
		statusCommand(a), nodesCommand(a), drainCommand(a), undrainCommand(a), rebalanceCommand(a),
	)
	return root
}

var dashNumber = regexp.MustCompile(`shorthand flag: .* in (-\d\S*)$`)

// flagError explains the flag that was meant as a key.
func flagError(c *cobra.Command, err error) error {
	if m := dashNumber.FindStringSubmatch(err.Error()); m != nil {
		return cli.Usagef("key %q: a uid is 0 or more: a key that begins with a dash goes after --", m[1])
	}
	return cli.Usagef("%w: see %s --help", err, c.CommandPath())
}

func (a *app) check() error {
	switch a.output {
	case "table", "json":
	case "":
		a.output = "json"
		if term.IsTerminal(int(os.Stdout.Fd())) {
			a.output = "table"
		}
	default:
		return cli.Usagef("--output %q: want table or json", a.output)
	}
	if a.timeout <= 0 {
		return cli.Usagef("--timeout %v: must be more than nothing", a.timeout)
	}
	for _, s := range a.servers() {
		if _, _, err := net.SplitHostPort(s); err != nil {
			return cli.Usagef("--server %q: want HOST:PORT[,…]", s)
		}
	}
	if len(a.servers()) == 0 {
		return cli.Usagef("--server is empty: want HOST:PORT[,…]")
	}
	return nil
}

func (a *app) servers() []string {
	var out []string
	for _, s := range strings.Split(a.server, ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// withClient calls f with a client of the cluster, within the time-out.
func (a *app) withClient(c *cobra.Command, f func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(c.Context(), a.timeout)
	defer cancel()
	cl, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	return f(ctx, cl)
}

func (a *app) dial(ctx context.Context) (*client.Client, error) {
	cl, err := client.Dial(ctx, a.servers(), client.WithBudget(a.timeout))
	if err != nil {
		return nil, fmt.Errorf("cannot reach the cluster at %s: %w", a.server, oneLine(err))
	}
	return cl, nil
}

// oneLine joins the lines of an error made of several.
func oneLine(err error) error {
	if text := err.Error(); strings.Contains(text, "\n") {
		return errors.New(strings.ReplaceAll(text, "\n", "; "))
	}
	return err
}

// keys makes keys of texts, all or none, and refuses what the space does not have.
func (a *app) keys(cl *client.Client, texts []string) ([]client.Key, error) {
	space, ok := cl.Routes().Space(a.space)
	if !ok {
		var names []string
		for _, s := range cl.Routes().Spaces {
			names = append(names, s.Name)
		}
		return nil, cli.Usagef("there is no space %q: the cluster has %s", a.space, strings.Join(names, ", "))
	}
	var keys []client.Key
	for _, text := range texts {
		if _, err := space.Parse(text); err != nil {
			return nil, cli.Usagef("key %q: %w", text, err)
		}
		keys = append(keys, client.In(a.space, text))
	}
	return keys, nil
}

// failed gives an error of the SDK its exit code.
func failed(err error) error {
	if errors.Is(err, client.ErrInvalidArgument) {
		return cli.Usage(oneLine(err))
	}
	return oneLine(err)
}

// each prints results, and reports the errors of those that have none.
func each[T any](c *cobra.Command, results []T, errOf func(T) error, print func(T)) error {
	bad, wrong := 0, 0
	for _, r := range results {
		err := errOf(r)
		if err == nil {
			print(r)
			continue
		}
		err = failed(err)
		cli.Print(c.ErrOrStderr(), err)
		bad++
		if cli.ExitCode(err) == cli.ExitUsage {
			wrong++
		}
	}
	switch {
	case bad == 0:
		return nil
	case wrong == len(results):
		return cli.Silent(cli.ExitUsage)
	}
	return cli.Silent(cli.ExitFailed)
}

func (a *app) json() bool { return a.output == "json" }

func needKeys(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cli.Usagef("no key given: see %s --help", c.CommandPath())
	}
	return nil
}

func stdout(c *cobra.Command) io.Writer { return c.OutOrStdout() }
