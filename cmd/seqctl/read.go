package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cli"
)

// readings reads keys, and gives each that is good with its place among the arguments.
func (a *app) readings(ctx context.Context, texts []string, print func(int, client.Reading)) error {
	return a.withClient(ctx, texts, func(ctx context.Context, cl *client.Client, keys []client.Key) error {
		rs, err := cl.CurrentMany(ctx, keys)
		if len(rs) == 0 {
			return failed(err)
		}
		return each(a, rs, func(r client.Reading) error { return r.Err }, print)
	})
}

type currentJSON struct {
	Key     string `json:"key"`
	Current int64  `json:"current"`
}

func currentCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "current KEY…",
		Short: "Read the last number issued of each key, 0 for none; allocates nothing",
		Example: `  seqctl current 42
  seqctl current 1 2 3 --output json
  seqctl --space conv current si_1001_1002`,
		Args: someKeys,
		RunE: func(c *cobra.Command, args []string) error {
			t := newTable("KEY", ">CURRENT")
			err := a.readings(c.Context(), args, func(_ int, r client.Reading) {
				if a.json() {
					a.printJSON(currentJSON{r.Key.Text(), r.Current})
					return
				}
				t.row(keyText(r.Key.Text()), r.Current)
			})
			a.printTable(t)
			return err
		},
	}
}

type diffJSON struct {
	Key     string `json:"key"`
	Last    int64  `json:"last"`
	Current int64  `json:"current"`
	Missing int64  `json:"missing"`
	// Ahead is by how much the client claims numbers that were never issued.
	Ahead int64 `json:"ahead,omitempty"`
}

func diffOf(key string, last, current int64) diffJSON {
	d := diffJSON{Key: key, Last: last, Current: current}
	if last > current {
		d.Ahead = last - current
	} else {
		d.Missing = current - last
	}
	return d
}

func (d *diffJSON) note() string {
	if d.Ahead == 0 {
		return ""
	}
	return fmt.Sprintf("ahead by %d: such numbers were never issued", d.Ahead)
}

func diffCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "diff KEY=LAST…",
		Short: "Tell how far behind a client is that has everything up to LAST",
		Example: `  seqctl diff 42=100
  seqctl diff 42=100 43=7 --output json
  seqctl --space conv diff si_1001_1002=57`,
		Args: someKeys,
		RunE: func(c *cobra.Command, args []string) error {
			var texts []string
			var lasts []int64
			for _, arg := range args {
				// A name may have an equals sign, a number has none.
				i := strings.LastIndexByte(arg, '=')
				if i < 0 {
					return cli.Usagef("%q: want KEY=LAST, like 42=100", arg)
				}
				last, err := strconv.ParseInt(arg[i+1:], 10, 64)
				if err != nil || last < 0 {
					return cli.Usagef("%q: LAST must be a whole number from 0, the last that the client has", arg)
				}
				texts, lasts = append(texts, arg[:i]), append(lasts, last)
			}
			t := newTable("KEY", ">LAST", ">CURRENT", ">MISSING", "?NOTE")
			err := a.readings(c.Context(), texts, func(i int, r client.Reading) {
				d := diffOf(r.Key.Text(), lasts[i], r.Current)
				if a.json() {
					a.printJSON(d)
					return
				}
				t.row(keyText(d.Key), d.Last, d.Current, d.Missing, d.note())
			})
			a.printTable(t)
			return err
		},
	}
}

type gapsJSON struct {
	Key  string    `json:"key"`
	Gaps []gapJSON `json:"gaps"`
}

type gapJSON struct {
	From  int64  `json:"from"`
	To    int64  `json:"to"`
	Cause string `json:"cause"`
}

func gapsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "gaps KEY",
		Short: "List the declared holes of a key, bounds inclusive",
		Example: `  seqctl gaps 42
  seqctl --space conv gaps si_1001_1002 --output json`,
		Args: oneKey,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c.Context(), args, func(ctx context.Context, cl *client.Client, keys []client.Key) error {
				gaps, err := cl.Gaps(ctx, keys[0])
				if err != nil {
					return failed(err)
				}
				j := gapsJSON{Key: keys[0].Text(), Gaps: []gapJSON{}}
				t := newTable("KEY", ">FROM", ">TO", "CAUSE")
				for _, g := range gaps {
					j.Gaps = append(j.Gaps, gapJSON{g.From, g.To, g.Cause})
					t.row(keyText(j.Key), g.From, g.To, g.Cause)
				}
				switch {
				case a.json():
					a.printJSON(j)
				case len(gaps) == 0:
					fmt.Fprintf(&a.out, "key %s has no declared holes\n", keyText(j.Key))
				default:
					a.printTable(t)
				}
				return nil
			})
		},
	}
}

type routeJSON struct {
	Key     string `json:"key"`
	Set     string `json:"set"`
	Section uint32 `json:"section"`
	Epoch   uint64 `json:"epoch"`
	// Owner and Addr are empty while nobody serves the section.
	Owner   string `json:"owner"`
	Addr    string `json:"addr"`
	Version uint64 `json:"version"`
}

func routeCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "route KEY",
		Short: "Tell who serves a key",
		Example: `  seqctl route 42
  seqctl --space conv route si_1001_1002 --output json`,
		Args: oneKey,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c.Context(), args, func(ctx context.Context, cl *client.Client, keys []client.Key) error {
				r, err := cl.Route(ctx, keys[0])
				if err != nil {
					return failed(err)
				}
				j := routeJSON{keys[0].Text(), r.Set, r.Section, r.Epoch, r.Owner, r.Addr, r.Version}
				if a.json() {
					a.printJSON(j)
					return nil
				}
				t := newTable("KEY", "SET", ">SECTION", ">EPOCH", "OWNER", "ADDR", ">VERSION")
				t.row(keyText(j.Key), j.Set, j.Section, j.Epoch, a.badIf(j.Owner == "", orText(j.Owner, "nobody")), j.Addr, j.Version)
				a.printTable(t)
				return nil
			})
		},
	}
}

func orText(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
