package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seqsvr/seqsvr/internal/cli"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// admin calls the servers in turn until one takes the call. Within the
// time-out, but for those that last, which only --timeout bounds.
func (a *app) admin(c *cobra.Command, lasts bool, call func(context.Context, *rpc.AdminConn) error) error {
	ctx, _, release := cli.Signals(c.Context())
	defer release()
	if !lasts || a.timeoutGiven {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.timeout)
		defer cancel()
	}
	var last error
	for _, addr := range a.servers() {
		conn, err := rpc.DialAdmin(addr)
		if err == nil {
			err = call(ctx, conn)
			_ = conn.Close()
		}
		if err == nil || !rpc.NotSent(err) {
			return adminError(err)
		}
		last = err
	}
	return fmt.Errorf("cannot reach the cluster: %w: is it running, and is --server right?", last)
}

func adminError(err error) error {
	var e *rpc.Error
	if errors.As(err, &e) {
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("no answer from %s in time: a majority of the stores may be down: try again with a longer --timeout", e.Addr)
		}
		return fmt.Errorf("%w: see seqctl status", e)
	}
	return err
}

// refused makes an error of a refusal.
func refused(r *seqpb.Refusal) error {
	if r == nil || r.Code == seqpb.RefusalCode_REFUSAL_NONE {
		return nil
	}
	switch r.Code {
	case seqpb.RefusalCode_REFUSAL_INVALID:
		return fmt.Errorf("refused: %s: see seqctl nodes", r.Message)
	case seqpb.RefusalCode_REFUSAL_BUSY:
		return fmt.Errorf("refused: %s: try again later", r.Message)
	}
	return fmt.Errorf("not now: %s: try again", r.Message)
}

func (a *app) status(c *cobra.Command) (*seqpb.StatusReply, error) {
	var rep *seqpb.StatusReply
	err := a.admin(c, false, func(ctx context.Context, conn *rpc.AdminConn) (err error) {
		rep, err = conn.Status(ctx, &seqpb.StatusRequest{})
		return err
	})
	if err != nil {
		return nil, err
	}
	return rep, refused(rep.Refusal)
}

type statusJSON struct {
	Cluster      string    `json:"cluster"`
	ClusterID    string    `json:"cluster_id"`
	Sets         []setJSON `json:"sets"`
	MapVersion   uint64    `json:"map_version"`
	RouteVersion uint64    `json:"route_version"`
}

type setJSON struct {
	Name         string      `json:"name"`
	Ranges       []string    `json:"ranges"`
	Stores       []storeJSON `json:"stores"`
	Allocs       []allocNode `json:"allocs"`
	RouteVersion uint64      `json:"route_version"`
	Sections     uint32      `json:"sections"`
	Unowned      uint32      `json:"unowned"`
	Moving       uint32      `json:"moving"`
}

type storeJSON struct {
	ID            string `json:"id"`
	Addr          string `json:"addr"`
	RaftAddr      string `json:"raft_addr"`
	Role          string `json:"role"`
	Applied       uint64 `json:"applied"`
	Voter         bool   `json:"voter"`
	LastContactMS uint64 `json:"last_contact_ms"`
}

type allocNode struct {
	ID        string  `json:"id"`
	Addr      string  `json:"addr"`
	State     string  `json:"state"`
	Sections  uint32  `json:"sections"`
	Keys      uint64  `json:"keys"`
	Rate      float64 `json:"rate"`
	LeaseMS   int64   `json:"lease_ms"`
	Session   uint64  `json:"session"`
	RedisAddr string  `json:"redis_addr,omitempty"`
	HTTPAddr  string  `json:"http_addr,omitempty"`
	Version   string  `json:"version,omitempty"`
}

func storeOf(s *seqpb.StoreStatus) storeJSON {
	return storeJSON{s.Id, s.Addr, s.RaftAddr, s.Role, s.Applied, s.Voter, s.LastContactMs}
}

func allocOf(s *seqpb.AllocStatus) allocNode {
	return allocNode{s.Id, s.Addr, s.State, s.Sections, s.Keys, s.Rate, s.LeaseMs, s.Session, s.RedisAddr, s.HttpAddr, s.Version}
}

func statusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the cluster at a glance",
		Example: `  seqctl status
  seqctl status --output json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			rep, err := a.status(c)
			if err != nil {
				return err
			}
			j := statusJSON{Cluster: rep.Cluster, ClusterID: rep.ClusterId, MapVersion: rep.MapVersion, Sets: []setJSON{}}
			for _, s := range rep.Sets {
				set := setJSON{
					Name: s.Name, Ranges: s.Ranges, Stores: []storeJSON{}, Allocs: []allocNode{},
					RouteVersion: s.RouteVersion, Sections: s.Sections, Unowned: s.Unowned, Moving: s.Moving,
				}
				for _, st := range s.Stores {
					set.Stores = append(set.Stores, storeOf(st))
				}
				for _, al := range s.Allocs {
					set.Allocs = append(set.Allocs, allocOf(al))
				}
				j.RouteVersion = max(j.RouteVersion, s.RouteVersion)
				j.Sets = append(j.Sets, set)
			}
			if a.json() {
				printJSON(stdout(c), j)
				return nil
			}
			printStatus(stdout(c), &j)
			return nil
		},
	}
}

func printStatus(w io.Writer, j *statusJSON) {
	fmt.Fprintf(w, "cluster %s  %s\n", j.Cluster, j.ClusterID)
	for _, s := range j.Sets {
		fmt.Fprintf(w, "\nset %s  sections %d, unowned %d, moving %d  routes at version %d\n\n", s.Name, s.Sections, s.Unowned, s.Moving, s.RouteVersion)
		t := newTable("STORE", "ADDR", "ROLE", "APPLIED", "SILENT")
		for _, st := range s.Stores {
			t.row(st.ID, st.Addr, st.Role, st.Applied, silence(st.LastContactMS))
		}
		t.print(w)
		fmt.Fprintln(w)
		t = newTable("ALLOC", "ADDR", "STATE", "SECTIONS", "KEYS", "RATE/S", "LEASE")
		for _, al := range s.Allocs {
			t.row(al.ID, al.Addr, al.State, al.Sections, al.Keys, fmt.Sprintf("%.1f", al.Rate), time.Duration(al.LeaseMS)*time.Millisecond)
		}
		t.print(w)
	}
}

func silence(ms uint64) string {
	if ms == 0 {
		return "-"
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

type nodeJSON struct {
	ID    string `json:"id"`
	Kind  string `json:"kind"`
	Set   string `json:"set"`
	Addr  string `json:"addr"`
	State string `json:"state"`
	// Of a store.
	RaftAddr string `json:"raft_addr,omitempty"`
	Voter    *bool  `json:"voter,omitempty"`
	Applied  uint64 `json:"applied,omitempty"`
	// Of an AllocSvr.
	Sections *uint32 `json:"sections,omitempty"`
}

type nodesJSON struct {
	Nodes []nodeJSON `json:"nodes"`
}

func nodesCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes, or change the members of the store group",
		Example: `  seqctl nodes
  seqctl nodes add-store s4 --raft 10.0.0.4:7120 --addr 10.0.0.4:7110
  seqctl nodes remove-store s1`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			rep, err := a.status(c)
			if err != nil {
				return err
			}
			j := nodesJSON{Nodes: []nodeJSON{}}
			t := newTable("NODE", "KIND", "SET", "ADDR", "STATE", "SECTIONS")
			for _, s := range rep.Sets {
				for _, st := range s.Stores {
					j.Nodes = append(j.Nodes, nodeJSON{ID: st.Id, Kind: "store", Set: s.Name, Addr: st.Addr, State: st.Role, RaftAddr: st.RaftAddr, Voter: &st.Voter, Applied: st.Applied})
					t.row(st.Id, "store", s.Name, st.Addr, st.Role, "")
				}
				for _, al := range s.Allocs {
					j.Nodes = append(j.Nodes, nodeJSON{ID: al.Id, Kind: "alloc", Set: s.Name, Addr: al.Addr, State: al.State, Sections: &al.Sections})
					t.row(al.Id, "alloc", s.Name, al.Addr, al.State, al.Sections)
				}
			}
			if a.json() {
				printJSON(stdout(c), j)
			} else {
				t.print(stdout(c))
			}
			return nil
		},
	}
	c.AddCommand(addStoreCommand(a), removeStoreCommand(a))
	return c
}

type membersJSON struct {
	Members []string `json:"members"`
}

func (a *app) printMembers(c *cobra.Command, rep *seqpb.StoreChangeReply) error {
	if err := refused(rep.Refusal); err != nil {
		return err
	}
	if a.json() {
		printJSON(stdout(c), membersJSON{append([]string{}, rep.Members...)})
		return nil
	}
	t := newTable("MEMBER")
	for _, m := range rep.Members {
		t.row(m)
	}
	t.print(stdout(c))
	return nil
}

func oneNode(c *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return cli.Usagef("want the name of one node: see %s --help", c.CommandPath())
	}
	return nil
}

func addStoreCommand(a *app) *cobra.Command {
	var q seqpb.AddStoreRequest
	c := &cobra.Command{
		Use:     "add-store NODE --raft HOST:PORT --addr HOST:PORT",
		Short:   "Make a running storesvr with an empty directory a member; returns when it has caught up",
		Example: `  seqctl nodes add-store s4 --raft 10.0.0.4:7120 --addr 10.0.0.4:7110`,
		Args:    oneNode,
		RunE: func(c *cobra.Command, args []string) error {
			if q.RaftAddr == "" || q.Addr == "" {
				return cli.Usagef("--raft and --addr are needed: the addresses that the store advertises")
			}
			q.Id = args[0]
			return a.admin(c, true, func(ctx context.Context, conn *rpc.AdminConn) error {
				rep, err := conn.AddStore(ctx, &q)
				if err != nil {
					return err
				}
				return a.printMembers(c, rep)
			})
		},
	}
	c.Flags().StringVar(&q.RaftAddr, "raft", "", "its raft_advertise address")
	c.Flags().StringVar(&q.Addr, "addr", "", "its rpc_advertise address")
	return c
}

func removeStoreCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "remove-store NODE",
		Short:   "Take a store out of the group; refused if the rest would have no quorum",
		Example: `  seqctl nodes remove-store s1`,
		Args:    oneNode,
		RunE: func(c *cobra.Command, args []string) error {
			return a.admin(c, true, func(ctx context.Context, conn *rpc.AdminConn) error {
				rep, err := conn.RemoveStore(ctx, &seqpb.RemoveStoreRequest{Id: args[0]})
				if err != nil {
					return err
				}
				return a.printMembers(c, rep)
			})
		},
	}
}

type drainJSON struct {
	Node  string `json:"node"`
	Moved uint32 `json:"moved"`
	MS    uint64 `json:"ms"`
	Lost  uint64 `json:"lost"`
}

func drainCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "drain NODE",
		Short: "Move every section off an AllocSvr; callers notice nothing",
		Long: `Move every section off an AllocSvr, to the others, without losing a number or
failing a call. It gets none back until undrain. Returns when none is left.`,
		Example: `  seqctl drain a1
  seqctl undrain a1`,
		Args: oneNode,
		RunE: func(c *cobra.Command, args []string) error {
			return a.admin(c, true, func(ctx context.Context, conn *rpc.AdminConn) error {
				return a.drain(ctx, c, conn, args[0])
			})
		},
	}
}

func (a *app) drain(ctx context.Context, c *cobra.Command, conn *rpc.AdminConn, node string) error {
	w, err := conn.Drain(ctx, &seqpb.DrainRequest{Node: node})
	if err != nil {
		return err
	}
	defer w.Close()
	var bar *progressbar.ProgressBar
	for {
		p, err := w.Recv()
		if err == io.EOF {
			return fmt.Errorf("the drain of %s was broken off: ask again, it goes on where it was", node)
		}
		if err != nil {
			return err
		}
		if err := refused(p.Refusal); err != nil {
			return err
		}
		if bar == nil && term.IsTerminal(int(os.Stderr.Fd())) {
			bar = progressbar.NewOptions64(int64(p.Moved+p.Remaining),
				progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetDescription("sections moved"),
				progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(), progressbar.OptionUseANSICodes(os.Getenv("NO_COLOR") == ""))
		}
		if bar != nil {
			_ = bar.Set64(int64(p.Moved))
		}
		if !p.Done {
			continue
		}
		if bar != nil {
			_ = bar.Finish()
		}
		j := drainJSON{node, p.Moved, p.Ms, p.Lost}
		if a.json() {
			printJSON(stdout(c), j)
			return nil
		}
		t := newTable("NODE", "MOVED", "MS", "LOST")
		t.row(j.Node, j.Moved, j.MS, j.Lost)
		t.print(stdout(c))
		return nil
	}
}

type undrainJSON struct {
	Node     string `json:"node"`
	Draining bool   `json:"draining"`
}

func undrainCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "undrain NODE",
		Short:   "Let a drained AllocSvr have sections again",
		Example: `  seqctl undrain a1`,
		Args:    oneNode,
		RunE: func(c *cobra.Command, args []string) error {
			return a.admin(c, false, func(ctx context.Context, conn *rpc.AdminConn) error {
				rep, err := conn.Undrain(ctx, &seqpb.DrainRequest{Node: args[0]})
				if err != nil {
					return err
				}
				if err := refused(rep.Refusal); err != nil {
					return err
				}
				if a.json() {
					printJSON(stdout(c), undrainJSON{Node: args[0]})
				} else {
					fmt.Fprintf(stdout(c), "%s takes sections again\n", args[0])
				}
				return nil
			})
		},
	}
}

type rebalanceJSON struct {
	Moves uint32   `json:"moves"`
	Plan  []string `json:"plan,omitempty"`
}

func rebalanceCommand(a *app) *cobra.Command {
	var dryRun bool
	c := &cobra.Command{
		Use:   "rebalance",
		Short: "Spread the sections over the AllocSvrs now",
		Example: `  seqctl rebalance --dry-run
  seqctl rebalance`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.admin(c, false, func(ctx context.Context, conn *rpc.AdminConn) error {
				rep, err := conn.Rebalance(ctx, &seqpb.RebalanceRequest{DryRun: dryRun})
				if err != nil {
					return err
				}
				if err := refused(rep.Refusal); err != nil {
					return err
				}
				if a.json() {
					printJSON(stdout(c), rebalanceJSON{rep.Moves, rep.Plan})
					return nil
				}
				fmt.Fprintf(stdout(c), "%d moves\n", rep.Moves)
				for _, line := range rep.Plan {
					fmt.Fprintf(stdout(c), "  %s\n", line)
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only tell what would move")
	return c
}
