package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cli"
)

type allocJSON struct {
	Key           string    `json:"key"`
	First         int64     `json:"first"`
	Count         int64     `json:"count"`
	Prev          int64     `json:"prev"`
	Discontinuity bool      `json:"discontinuity"`
	Replayed      bool      `json:"replayed"`
	Hole          *holeJSON `json:"hole,omitempty"`
	WindowSince   string    `json:"window_since,omitempty"`
}

type holeJSON struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

func allocCommand(a *app) *cobra.Command {
	var n int64
	var requestID string
	c := &cobra.Command{
		Use:   "alloc KEY… [-n COUNT] [--request-id UUID]",
		Short: "Allocate the next number, or COUNT consecutive ones, of each key",
		Example: `  seqctl alloc 42
  seqctl alloc 42 -n 100
  seqctl alloc 1 2 3 --output json
  seqctl --space conv alloc si_1001_1002 --request-id 6f1c1a52-3b0e-4a3c-9d55-0a9b6f2b7c11`,
		Args: needKeys,
		RunE: func(c *cobra.Command, args []string) error {
			if n < 1 {
				return cli.Usagef("-n %d: want 1 or more", n)
			}
			var id [16]byte
			if c.Flags().Changed("request-id") {
				u, err := uuid.Parse(requestID)
				if err != nil || u == uuid.Nil {
					return cli.Usagef("--request-id %q: want a UUID, not the zero one, like %s", requestID, uuid.NewString())
				}
				id = u
			}
			return a.withClient(c, func(ctx context.Context, cl *client.Client) error {
				keys, err := a.keys(cl, args)
				if err != nil {
					return err
				}
				var reqs []client.Request
				for _, k := range keys {
					reqs = append(reqs, client.Request{Key: k, N: n, RequestID: id})
				}
				results, err := cl.AllocMany(ctx, reqs)
				if len(results) == 0 {
					return failed(err)
				}
				return a.printAllocs(c, results)
			})
		},
	}
	c.Flags().Int64VarP(&n, "count", "n", 1, "how many consecutive numbers of each key")
	c.Flags().StringVar(&requestID, "request-id", "", "UUID that makes the call repeatable: the same one gets the same numbers")
	return c
}

func (a *app) printAllocs(c *cobra.Command, results []client.Result) error {
	t := newTable("KEY", "FIRST", "LAST", "COUNT", "PREV", "NOTE")
	err := each(c, results, func(r client.Result) error { return r.Err }, func(r client.Result) {
		j := allocJSON{Key: r.Key.Text(), First: r.First, Count: r.Count, Prev: r.Prev, Replayed: r.Replayed}
		var notes []string
		if h := r.Discontinuity; h != nil {
			j.Discontinuity, j.Hole = true, &holeJSON{h.From, h.To}
			notes = append(notes, "numbers "+strconv.FormatInt(h.From, 10)+" to "+strconv.FormatInt(h.To, 10)+" may never have been issued")
		}
		if r.Replayed {
			notes = append(notes, "replayed")
		}
		if !r.WindowSince.IsZero() {
			j.WindowSince = r.WindowSince.UTC().Format(time.RFC3339Nano)
		}
		if a.json() {
			printJSON(stdout(c), j)
			return
		}
		t.row(j.Key, j.First, r.Last(), j.Count, j.Prev, strings.Join(notes, "; "))
	})
	if !a.json() && len(t.rows) > 0 {
		t.print(stdout(c))
	}
	return err
}

type currentJSON struct {
	Key     string `json:"key"`
	Current int64  `json:"current"`
}

func currentCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "current KEY…",
		Short: "Read the last number issued of each key; allocates nothing",
		Example: `  seqctl current 42
  seqctl --space conv current si_1001_1002 --output json`,
		Args: needKeys,
		RunE: func(c *cobra.Command, args []string) error {
			t := newTable("KEY", "CURRENT")
			err := a.readings(c, args, func(_ int, r client.Reading) {
				if a.json() {
					printJSON(stdout(c), currentJSON{r.Key.Text(), r.Current})
					return
				}
				t.row(r.Key.Text(), r.Current)
			})
			if len(t.rows) > 0 {
				t.print(stdout(c))
			}
			return err
		},
	}
}

// readings reads keys and gives each with its place among the arguments.
func (a *app) readings(c *cobra.Command, texts []string, print func(int, client.Reading)) error {
	return a.withClient(c, func(ctx context.Context, cl *client.Client) error {
		keys, err := a.keys(cl, texts)
		if err != nil {
			return err
		}
		rs, err := cl.CurrentMany(ctx, keys)
		if len(rs) == 0 {
			return failed(err)
		}
		n := -1
		return each(c, rs, func(r client.Reading) error { n++; return r.Err }, func(r client.Reading) { print(n, r) })
	})
}

type diffJSON struct {
	Key     string `json:"key"`
	Last    int64  `json:"last"`
	Current int64  `json:"current"`
	Missing int64  `json:"missing"`
	// Ahead: the client claims numbers that were never issued.
	Ahead int64 `json:"ahead,omitempty"`
}

func diffCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "diff KEY=LAST…",
		Short: "Tell how far behind a client is that has everything up to LAST",
		Example: `  seqctl diff 42=100
  seqctl --space conv diff si_1001_1002=57 --output json`,
		Args: needKeys,
		RunE: func(c *cobra.Command, args []string) error {
			var texts []string
			var lasts []int64
			for _, arg := range args {
				i := strings.LastIndexByte(arg, '=')
				if i < 0 {
					return cli.Usagef("%q: want KEY=LAST", arg)
				}
				last, err := strconv.ParseInt(arg[i+1:], 10, 64)
				if err != nil || last < 0 {
					return cli.Usagef("%q: LAST must be a whole number from 0", arg)
				}
				texts, lasts = append(texts, arg[:i]), append(lasts, last)
			}
			t := newTable("KEY", "LAST", "CURRENT", "MISSING", "NOTE")
			err := a.readings(c, texts, func(i int, r client.Reading) {
				d := diffJSON{Key: r.Key.Text(), Last: lasts[i], Current: r.Current, Missing: r.Current - lasts[i]}
				note := ""
				if d.Missing < 0 {
					d.Missing, d.Ahead = 0, -d.Missing
					note = "the client is ahead by " + strconv.FormatInt(d.Ahead, 10) + ": it has numbers that were never issued"
				}
				if a.json() {
					printJSON(stdout(c), d)
					return
				}
				t.row(d.Key, d.Last, d.Current, d.Missing, note)
			})
			if len(t.rows) > 0 {
				t.print(stdout(c))
			}
			return err
		},
	}
}

type gapJSON struct {
	From  int64  `json:"from"`
	To    int64  `json:"to"`
	Cause string `json:"cause"`
}

type gapsJSON struct {
	Key  string    `json:"key"`
	Gaps []gapJSON `json:"gaps"`
}

func oneKey(c *cobra.Command, args []string) error {
	if len(args) != 1 {
		return cli.Usagef("want one key, got %d: see %s --help", len(args), c.CommandPath())
	}
	return nil
}

func gapsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "gaps KEY",
		Short:   "List the declared holes of a key",
		Example: `  seqctl gaps 42`,
		Args:    oneKey,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, func(ctx context.Context, cl *client.Client) error {
				keys, err := a.keys(cl, args)
				if err != nil {
					return err
				}
				gaps, err := cl.Gaps(ctx, keys[0])
				if err != nil {
					return failed(err)
				}
				j := gapsJSON{Key: keys[0].Text(), Gaps: []gapJSON{}}
				t := newTable("FROM", "TO", "CAUSE")
				for _, g := range gaps {
					j.Gaps = append(j.Gaps, gapJSON{g.From, g.To, g.Cause})
					t.row(g.From, g.To, g.Cause)
				}
				if a.json() {
					printJSON(stdout(c), j)
				} else {
					t.print(stdout(c))
				}
				return nil
			})
		},
	}
}
