package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cli"
	"github.com/seqsvr/seqsvr/internal/ids"
)

type routeJSON struct {
	Key     string `json:"key"`
	Set     string `json:"set"`
	Section uint32 `json:"section"`
	Epoch   uint64 `json:"epoch"`
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
			return a.withClient(c, func(ctx context.Context, cl *client.Client) error {
				keys, err := a.keys(cl, args)
				if err != nil {
					return err
				}
				r, err := cl.Route(ctx, keys[0])
				if err != nil {
					return failed(err)
				}
				j := routeJSON{keys[0].Text(), r.Set, r.Section, r.Epoch, r.Owner, r.Addr, r.Version}
				if a.json() {
					printJSON(stdout(c), j)
					return nil
				}
				t := newTable("KEY", "SET", "SECTION", "EPOCH", "OWNER", "ADDR", "VERSION")
				t.row(j.Key, j.Set, j.Section, j.Epoch, j.Owner, j.Addr, j.Version)
				t.print(stdout(c))
				return nil
			})
		},
	}
}

type watchJSON struct {
	Cluster    string         `json:"cluster"`
	MapVersion uint64         `json:"map_version"`
	Sets       []watchSetJSON `json:"sets"`
}

type watchSetJSON struct {
	Name    string `json:"name"`
	Version uint64 `json:"version"`
	// Owners counts the sections of each node.
	Owners  map[string]int `json:"owners"`
	Unowned int            `json:"unowned"`
}

func watchCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "watch",
		Short: "Print routing changes as they happen, one a line, until interrupted",
		Example: `  seqctl watch
  seqctl watch --output json --timeout 60s   # for a minute`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			first, _, release := cli.Signals(c.Context())
			defer release()
			dctx, cancel := context.WithTimeout(first, a.timeout)
			cl, err := a.dial(dctx)
			cancel()
			if err != nil {
				return err
			}
			defer cl.Close()
			ctx := first
			if a.timeoutGiven {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, a.timeout)
				defer cancel()
			}
			err = cl.Watch(ctx, func(t *client.Table) { a.printTable(c, t) })
			if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
				return nil
			}
			return failed(err)
		},
	}
}

func (a *app) printTable(c *cobra.Command, t *client.Table) {
	j := watchJSON{Cluster: t.Cluster, MapVersion: t.Map.Version, Sets: []watchSetJSON{}}
	var lines []string
	for _, s := range t.Sets {
		set := watchSetJSON{Name: s.Name, Version: s.Version, Owners: map[string]int{}}
		names := map[ids.SessionID]string{}
		for _, n := range s.Nodes {
			names[n.Session] = n.ID
		}
		for _, section := range s.Sections {
			if section.Owner == 0 {
				set.Unowned++
			} else {
				set.Owners[names[section.Owner]]++
			}
		}
		j.Sets = append(j.Sets, set)
		var owners []string
		for n, count := range set.Owners {
			owners = append(owners, fmt.Sprintf("%s %d", n, count))
		}
		sort.Strings(owners)
		lines = append(lines, fmt.Sprintf("set %s version %d: %s, unowned %d", set.Name, set.Version, strings.Join(owners, ", "), set.Unowned))
	}
	if a.json() {
		printJSON(stdout(c), j)
		return
	}
	for _, line := range lines {
		fmt.Fprintln(stdout(c), line)
	}
}
