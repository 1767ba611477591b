package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seqsvr/seqsvr/chaos/check"
	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/internal/cli"
)

func checkCommand() *cobra.Command {
	var step int64
	var output string
	c := &cobra.Command{
		Use:   "check HISTORY",
		Short: "Check a saved history again",
		Example: `  seqchaos check report/history.jsonl
  seqchaos check report/history.jsonl --output json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if step < 0 {
				return cli.Usagef("--step %d: want a positive number", step)
			}
			if err := validOutput(output); err != nil {
				return err
			}
			h, err := history.Load(args[0])
			if err != nil {
				return fmt.Errorf("%w: pass a file that a run of seqchaos has written", err)
			}
			r := check.Check(h, check.Options{Step: step})
			if err := show(cmd.OutOrStdout(), r, output); err != nil {
				return err
			}
			return verdict(cmd.ErrOrStderr(), r)
		},
	}
	c.Flags().Int64Var(&step, "step", 0, "most numbers that one loss may cost a key (default: the history's)")
	outputFlag(c, &output)
	return c
}

func outputFlag(c *cobra.Command, output *string) {
	c.Flags().StringVar(output, "output", "", "table or json (default: table on a terminal, else json)")
}

func validOutput(output string) error {
	if !slices.Contains([]string{"", "table", "json"}, output) {
		return cli.Usagef("--output %q: want table or json", output)
	}
	return nil
}

func terminal(w io.Writer) bool {
	f, ok := w.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

func show(w io.Writer, r *check.Report, output string) error {
	if output == "json" || output == "" && !terminal(w) {
		return r.WriteJSON(w)
	}
	return table(w, r)
}

// verdict shows the violations, and turns them into the exit code.
func verdict(w io.Writer, r *check.Report) error {
	if r.OK {
		return nil
	}
	for _, v := range r.Violations {
		fmt.Fprintln(w, v)
	}
	return cli.Silent(cli.ExitFailed)
}

func table(w io.Writer, r *check.Report) error {
	row := func(name string, value any) { fmt.Fprintf(w, "%-22s %v\n", name, value) }
	row("seed", r.Seed)
	row("operations", fmt.Sprintf("%d on %d keys, %d numbers allocated, %d failed, %d unknown", r.Operations, r.Keys, r.Allocated, r.Failed, r.Unknown))
	for _, name := range sorted(r.Faults) {
		longest := ""
		if ms, ok := r.MaxUnavailableMS[name]; ok {
			longest = fmt.Sprintf(", longest unserved %v", time.Duration(ms)*time.Millisecond)
		}
		row("fault "+name, fmt.Sprintf("%d times%s", r.Faults[name], longest))
	}
	for _, s := range r.Skipped {
		row("skipped", s)
	}
	row("duplicates (G1)", r.Duplicates)
	row("order violations (G2)", r.OrderViolations)
	row("undeclared gaps (G3)", r.UndeclaredGaps)
	row("declared gaps", fmt.Sprintf("%d, %d numbers lost", r.DeclaredGaps, r.NumbersLost))
	row("excess losses (G4)", r.Excess)
	row("outages (G5)", r.Outages)
	row("malformed answers (G7)", r.MalformedAnswers)
	verdict := "the guarantees hold"
	if !r.OK {
		verdict = "VIOLATED"
	}
	_, err := fmt.Fprintln(w, verdict)
	return err
}

func sorted[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
