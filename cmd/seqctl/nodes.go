package main

import (
	"context"
	"net"

	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/internal/cli"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

const (
	tierStore = "store"
	tierAlloc = "alloc"
)

// storeRow and ownerRow are the rows of nodes, told apart by tier.
type storeRow struct {
	ID       string `json:"id"`
	Tier     string `json:"tier"`
	Set      string `json:"set"`
	Addr     string `json:"addr"`
	Role     string `json:"role"`
	RaftAddr string `json:"raft_addr"`
	Voter    bool   `json:"voter"`
	Applied  uint64 `json:"applied"`
}

type ownerRow struct {
	ID       string `json:"id"`
	Tier     string `json:"tier"`
	Set      string `json:"set"`
	Addr     string `json:"addr"`
	State    string `json:"state"`
	Sections uint32 `json:"sections"`
	LeaseMS  int64  `json:"lease_ms"`
	Version  string `json:"version,omitempty"`
}

func nodesCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes, or change the members of the store group",
		Example: `  seqctl nodes
  seqctl nodes --output json
  seqctl nodes add-store s4 --raft 10.0.0.4:7120 --addr 10.0.0.4:7110
  seqctl nodes remove-store s1`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			j, err := a.status(c.Context())
			if err != nil {
				return err
			}
			a.printNodes(j)
			return nil
		},
	}
	c.AddCommand(addStoreCommand(a), removeStoreCommand(a))
	return c
}

func (a *app) printNodes(j *statusJSON) {
	t := newTable("NODE", "TIER", "SET", "ADDR", "STATE", ">SECTIONS")
	for i := range j.Sets {
		s := &j.Sets[i]
		for k := range s.Stores {
			n := &s.Stores[k]
			if a.json() {
				a.printJSON(storeRow{n.ID, tierStore, s.Name, n.Addr, n.Role, n.RaftAddr, n.Voter, n.Applied})
				continue
			}
			t.row(n.ID, tierStore, s.Name, n.Addr, a.badIf(n.silent(), n.Role), "")
		}
		for k := range s.Allocs {
			n := &s.Allocs[k]
			if a.json() {
				a.printJSON(ownerRow{n.ID, tierAlloc, s.Name, n.Addr, n.State, n.Sections, n.LeaseMS, n.Version})
				continue
			}
			t.row(n.ID, tierAlloc, s.Name, n.Addr, a.badIf(n.State == stateSilent || s.expired(n), n.State), n.Sections)
		}
	}
	a.printTable(t)
}

type membersJSON struct {
	Members []string `json:"members"`
}

func (a *app) printMembers(members []string) {
	if a.json() {
		a.printJSON(membersJSON{append([]string{}, members...)})
		return
	}
	t := newTable("MEMBER")
	for _, m := range members {
		t.row(m)
	}
	a.printTable(t)
}

func addStoreCommand(a *app) *cobra.Command {
	var q seqpb.AddStoreRequest
	c := &cobra.Command{
		Use:   "add-store NODE --raft HOST:PORT --addr HOST:PORT",
		Short: "Make a running storesvr with an empty directory a member; returns when it has caught up",
		Example: `  seqctl nodes add-store s4 --raft 10.0.0.4:7120 --addr 10.0.0.4:7110
  seqctl nodes add-store s4 --raft 10.0.0.4:7120 --addr 10.0.0.4:7110 --timeout 2m`,
		Args: oneNode,
		RunE: func(c *cobra.Command, args []string) error {
			for _, f := range []struct{ flag, value string }{{"raft", q.RaftAddr}, {"addr", q.Addr}} {
				if _, port, err := net.SplitHostPort(f.value); err != nil || port == "" {
					return cli.Usagef("--%s %q: want the HOST:PORT that the store advertises", f.flag, f.value)
				}
			}
			q.Id = args[0]
			return a.changeStores(c.Context(), func(ctx context.Context, conn *rpc.AdminConn) (*seqpb.StoreChangeReply, error) {
				return conn.AddStore(ctx, &q)
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
			return a.changeStores(c.Context(), func(ctx context.Context, conn *rpc.AdminConn) (*seqpb.StoreChangeReply, error) {
				return conn.RemoveStore(ctx, &seqpb.RemoveStoreRequest{Id: args[0]})
			})
		},
	}
}

func (a *app) changeStores(ctx context.Context, call func(context.Context, *rpc.AdminConn) (*seqpb.StoreChangeReply, error)) error {
	var rep *seqpb.StoreChangeReply
	err := a.admin(ctx, adminCall{
		lasts: true, interrupted: "the change may go on in the cluster: see seqctl nodes",
		do: func(ctx context.Context, conn *rpc.AdminConn) (*seqpb.Refusal, error) {
			var err error
			rep, err = call(ctx, conn)
			return rep.GetRefusal(), err
		},
	})
	if err != nil {
		return err
	}
	a.printMembers(rep.Members)
	return nil
}
