package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

type statusJSON struct {
	Cluster      string    `json:"cluster"`
	ClusterID    string    `json:"cluster_id"`
	Sets         []setJSON `json:"sets"`
	MapVersion   uint64    `json:"map_version"`
	RouteVersion uint64    `json:"route_version"`
	// Moves are those under way.
	Moves []moveJSON `json:"moves"`
	// Problems are for people: what is wrong, in the order of the Sets.
	Problems []string `json:"problems"`
}

type setJSON struct {
	Name         string      `json:"name"`
	Ranges       []string    `json:"ranges"`
	Stores       []storeJSON `json:"stores"`
	Allocs       []ownerJSON `json:"allocs"`
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

type ownerJSON struct {
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
	// Steps are how far raises go, by space.
	Steps []stepsJSON `json:"steps"`
}

// stepsJSON is the step policy of a space on a node. Fixed steps have the same Min and Max.
type stepsJSON struct {
	Space    string  `json:"space"`
	Policy   string  `json:"policy"`
	Min      uint64  `json:"min"`
	Max      uint64  `json:"max"`
	TargetMS uint64  `json:"target_ms,omitempty"`
	Raises   uint64  `json:"raises"`
	MeanStep float64 `json:"mean_step"`
	numbers  uint64
}

func stepsOf(pbs []*seqpb.SpaceSteps) []stepsJSON {
	all := []stepsJSON{}
	for _, s := range pbs {
		j := stepsJSON{Space: s.Space, Policy: "fixed", Min: s.Min, Max: s.Max, TargetMS: s.TargetMs, Raises: s.Raises, numbers: s.Numbers}
		if s.Adaptive {
			j.Policy = "adaptive"
		}
		if s.Raises > 0 {
			j.MeanStep = float64(s.Numbers) / float64(s.Raises)
		}
		all = append(all, j)
	}
	return all
}

// status asks for the state of the cluster.
func (a *app) status(ctx context.Context) (*statusJSON, error) {
	var rep *seqpb.StatusReply
	err := a.admin(ctx, adminCall{
		repeatable: true, interrupted: "nothing was changed: run it again",
		do: func(ctx context.Context, conn *rpc.AdminConn) (*seqpb.Refusal, error) {
			var err error
			rep, err = conn.Status(ctx, &seqpb.StatusRequest{})
			return rep.GetRefusal(), err
		},
	})
	if err != nil {
		return nil, err
	}
	moves, unheard := a.addOtherSets(ctx, rep)
	j := statusOf(rep)
	j.Moves = append(j.Moves, moves...)
	j.Problems = append(append(j.Problems, unheard...), moveProblems(moves, j.Sets)...)
	return j, nil
}

func statusOf(rep *seqpb.StatusReply) *statusJSON {
	j := &statusJSON{Cluster: rep.Cluster, ClusterID: rep.ClusterId, MapVersion: rep.MapVersion, Sets: []setJSON{}, Moves: []moveJSON{}}
	for _, s := range rep.Sets {
		set := setJSON{
			Name: s.Name, Ranges: append([]string{}, s.Ranges...), Stores: []storeJSON{}, Allocs: []ownerJSON{},
			RouteVersion: s.RouteVersion, Sections: s.Sections, Unowned: s.Unowned, Moving: s.Moving,
		}
		for _, n := range s.Stores {
			set.Stores = append(set.Stores, storeJSON{n.Id, n.Addr, n.RaftAddr, n.Role, n.Applied, n.Voter, n.LastContactMs})
		}
		for _, n := range s.Allocs {
			set.Allocs = append(set.Allocs, ownerJSON{
				n.Id, n.Addr, n.State, n.Sections, n.Keys, n.Rate, n.LeaseMs, n.Session, n.RedisAddr, n.HttpAddr, n.Version, stepsOf(n.Steps),
			})
		}
		j.RouteVersion = max(j.RouteVersion, s.RouteVersion)
		j.Sets = append(j.Sets, set)
	}
	j.Problems = problems(j.Sets)
	return j
}

func statusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the cluster, and what is wrong with it, at a glance",
		Long: `Show the cluster at a glance: what is wrong first, if anything is; then the moves
between Sets that are under way; then, for each Set, its stores (LAG: how many entries behind the leader; CONTACT: since the
leader heard of it) and its AllocSvrs (LEASE: how long it may still serve), and how
far their raises go (RAISES since their sessions began, MEAN: numbers a raise).`,
		Example: `  seqctl status
  seqctl status --output json
  seqctl --server 10.0.0.1:7100,10.0.0.2:7100 status`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			j, err := a.status(c.Context())
			if err != nil {
				return err
			}
			if a.json() {
				a.printJSON(j)
				return nil
			}
			a.printStatus(j)
			return nil
		},
	}
}
