package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

type rebalanceJSON struct {
	Moves  uint32 `json:"moves"`
	DryRun bool   `json:"dry_run"`
	// Moving sections were on the move already.
	Moving uint32 `json:"moving"`
	// Plan has one line a move, for people.
	Plan []string `json:"plan"`
}

func rebalanceCommand(a *app) *cobra.Command {
	var dryRun bool
	c := &cobra.Command{
		Use:   "rebalance",
		Short: "Spread the sections over the AllocSvrs now",
		Long: `Spread the sections over the AllocSvrs now, moving the fewest. Returns when the
moves are decided; seqctl status and watch show them happen.`,
		Example: `  seqctl rebalance --dry-run
  seqctl rebalance
  seqctl rebalance --output json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var rep *seqpb.RebalanceReply
			err := a.admin(c.Context(), adminCall{
				repeatable: dryRun,
				do: func(ctx context.Context, conn *rpc.AdminConn) (*seqpb.Refusal, error) {
					var err error
					rep, err = conn.Rebalance(ctx, &seqpb.RebalanceRequest{DryRun: dryRun})
					return rep.GetRefusal(), err
				},
			})
			if err != nil {
				return err
			}
			if a.json() {
				a.printJSON(rebalanceJSON{rep.Moves, dryRun, rep.Moving, append([]string{}, rep.Plan...)})
				return nil
			}
			a.printPlan(rep, dryRun)
			return nil
		},
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only tell what would move")
	return c
}

func (a *app) printPlan(rep *seqpb.RebalanceReply, dryRun bool) {
	switch {
	case rep.Moves == 0 && rep.Moving > 0:
		fmt.Fprintf(&a.out, "nothing more to move: %d sections are on the move already\n", rep.Moving)
		return
	case rep.Moves == 0:
		fmt.Fprintln(&a.out, "nothing to move: the sections are spread")
		return
	case dryRun:
		fmt.Fprintf(&a.out, "%d sections would move\n", rep.Moves)
	default:
		fmt.Fprintf(&a.out, "%d sections move\n", rep.Moves)
	}
	for _, line := range rep.Plan {
		fmt.Fprintf(&a.out, "  %s\n", line)
	}
}
