package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/internal/cli"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func setCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "set",
		Short: "List and make Sets, and move ranges of keys between them online",
		Long: `List and make Sets, and move ranges of keys between them while traffic runs.

A Set is a group of StoreSvrs with AllocSvrs of its own. It owns ranges of keys;
what happens to one Set leaves the others serving.`,
		Example: `  seqctl set list
  seqctl set create s2 --stores 10.0.1.1:7110,10.0.1.2:7110,10.0.1.3:7110
  seqctl set move --from s1 --to s2 --range 0-1000000
  seqctl set status
  seqctl set abort 3`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(setListCommand(a), setCreateCommand(a), setRetireCommand(a), setMoveCommand(a), setStatusCommand(a), setAbortCommand(a))
	return c
}

type setListJSON struct {
	MapVersion uint64           `json:"map_version"`
	Sets       []setSummaryJSON `json:"sets"`
	Unassigned []string         `json:"unassigned"`
}

type setSummaryJSON struct {
	Name      string   `json:"name"`
	Directory bool     `json:"directory"`
	Health    string   `json:"health"`
	Ranges    []string `json:"ranges"`
	Stores    []string `json:"stores"`
	StoresUp  uint32   `json:"stores_up"`
	AllocsUp  uint32   `json:"allocs_up"`
	Keys      uint64   `json:"keys"`
	Rate      float64  `json:"rate"`
	// Moves under way from or to the Set.
	Moves []string `json:"moves"`
}

const healthOK = "ok"

func setListCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Show the Sets, what they own, and what is wrong with them",
		Example: `  seqctl set list
  seqctl set list --output json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var rep *seqpb.SetListReply
			err := a.admin(c.Context(), adminCall{
				repeatable: true, interrupted: "nothing was changed: run it again",
				sets: func(ctx context.Context, conn *rpc.SetAdminConn) (_ *seqpb.Refusal, err error) {
					rep, err = conn.SetList(ctx, &seqpb.SetListRequest{})
					return rep.GetRefusal(), err
				},
			})
			if err != nil {
				return err
			}
			j := setListOf(rep)
			if a.json() {
				a.printJSON(j)
				return nil
			}
			// Without them it says less, and nothing wrong.
			moves, _ := a.movesUnderWay(c.Context())
			a.printSets(j, moves)
			return nil
		},
	}
}

func setListOf(rep *seqpb.SetListReply) setListJSON {
	j := setListJSON{MapVersion: rep.MapVersion, Sets: []setSummaryJSON{}, Unassigned: append([]string{}, rep.Unassigned...)}
	for _, s := range rep.Sets {
		j.Sets = append(j.Sets, setSummaryJSON{
			Name: s.Name, Directory: s.Directory, Health: s.Health,
			Ranges: append([]string{}, s.Ranges...), Stores: append([]string{}, s.Stores...),
			StoresUp: s.StoresUp, AllocsUp: s.AllocsUp, Keys: s.Keys, Rate: s.Rate, Moves: moveNames(s.Moves),
		})
	}
	return j
}

func moveNames(ids []uint64) []string {
	names := []string{}
	for _, id := range ids {
		names = append(names, strconv.FormatUint(id, 10))
	}
	return names
}

// movesFor says where each move of a Set goes, or comes from.
func (s *setSummaryJSON) movesFor(moves []moveJSON) string {
	var texts []string
	for _, id := range s.Moves {
		for i := range moves {
			switch m := &moves[i]; {
			case m.ID != id:
			case m.From == s.Name:
				id += " to " + m.To + " " + m.State
			default:
				id += " from " + m.From + " " + m.State
			}
		}
		texts = append(texts, id)
	}
	return strings.Join(texts, ", ")
}

func (a *app) printSets(j setListJSON, moves []moveJSON) {
	t := newTable("SET", "HEALTH", ">STORES", ">ALLOCS", ">KEYS", ">RATE/S", "?MOVES", "OWNS")
	for i := range j.Sets {
		s := &j.Sets[i]
		name := s.Name
		if s.Directory {
			name += " (directory)"
		}
		up := fmt.Sprintf("%d/%d", s.StoresUp, len(s.Stores))
		t.row(name, a.badIf(s.Health != healthOK, s.Health), a.badIf(int(s.StoresUp) < len(s.Stores), up),
			a.badIf(s.AllocsUp == 0, s.AllocsUp), s.Keys, fmt.Sprintf("%.1f", s.Rate), s.movesFor(moves),
			orText(strings.Join(s.Ranges, " "), "nothing"))
	}
	a.printTable(t)
	for _, r := range j.Unassigned {
		fmt.Fprintln(&a.out, a.badIf(true, "! no set owns "+r))
	}
}

func setCreateCommand(a *app) *cobra.Command {
	var stores []string
	c := &cobra.Command{
		Use:   "create NAME --stores HOST:PORT,…",
		Short: "Make a running group of StoreSvrs a Set of the cluster; it owns nothing at first",
		Long: `Make a running group of StoreSvrs a Set of the cluster. They have been started
with --set NAME and --directory (see storesvr --help), and have a leader. The Set
owns nothing until ranges are moved to it.`,
		Example: `  seqctl set create s2 --stores 10.0.1.1:7110,10.0.1.2:7110,10.0.1.3:7110`,
		Args:    oneSet,
		RunE: func(c *cobra.Command, args []string) error {
			if len(stores) == 0 {
				return cli.Usagef("--stores is missing: want the rpc_advertise addresses of the Set's StoreSvrs")
			}
			for _, s := range stores {
				if _, port, err := net.SplitHostPort(s); err != nil || port == "" {
					return cli.Usagef("--stores %q: want HOST:PORT[,HOST:PORT…]", s)
				}
			}
			return a.changeSets(c.Context(), args[0], func(ctx context.Context, conn *rpc.SetAdminConn) (*seqpb.SetChangeReply, error) {
				return conn.SetCreate(ctx, &seqpb.SetCreateRequest{Name: args[0], Stores: stores})
			})
		},
	}
	c.Flags().StringSliceVar(&stores, "stores", nil, "the rpc_advertise addresses of its StoreSvrs")
	return c
}

func setRetireCommand(a *app) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use:   "retire NAME",
		Short: "Take a Set that owns nothing out of the cluster",
		Example: `  seqctl set move --from s2 --to s1 --all
  seqctl set retire s2`,
		Args: oneSet,
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.confirm(c, yes, "take set "+args[0]+" out of the cluster"); err != nil {
				return err
			}
			return a.changeSets(c.Context(), args[0], func(ctx context.Context, conn *rpc.SetAdminConn) (*seqpb.SetChangeReply, error) {
				return conn.SetRetire(ctx, &seqpb.SetRetireRequest{Name: args[0]})
			})
		},
	}
	yesFlag(c, &yes)
	return c
}

type setChangeJSON struct {
	Set        string `json:"set"`
	MapVersion uint64 `json:"map_version"`
}

func (a *app) changeSets(ctx context.Context, name string, call func(context.Context, *rpc.SetAdminConn) (*seqpb.SetChangeReply, error)) error {
	var rep *seqpb.SetChangeReply
	err := a.admin(ctx, adminCall{
		interrupted: "it may or may not have been done: see seqctl set list",
		sets: func(ctx context.Context, conn *rpc.SetAdminConn) (_ *seqpb.Refusal, err error) {
			rep, err = call(ctx, conn)
			return rep.GetRefusal(), err
		},
	})
	if err != nil {
		return err
	}
	if a.json() {
		a.printJSON(setChangeJSON{name, rep.MapVersion})
	} else {
		fmt.Fprintf(&a.out, "set map version %d\n", rep.MapVersion)
	}
	return nil
}

func oneSet(_ *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return cli.Usagef("want the name of one Set: see seqctl set list")
	}
	return nil
}
