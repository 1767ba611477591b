package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/internal/cli"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func setStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status [ID]",
		Short: "Show the moves under way and the newest ended ones, or one move",
		Example: `  seqctl set status
  seqctl set status 3
  seqctl set status --output json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.Usagef("want the id of one move, or none: see seqctl set status")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			var id uint64
			if len(args) == 1 {
				var err error
				if id, err = moveID(args[0]); err != nil {
					return err
				}
			}
			moves, err := a.moves(c.Context(), id)
			if err != nil {
				return err
			}
			if id != 0 && len(moves) == 0 {
				return fmt.Errorf("there is no move %d, or it ended long ago: see seqctl set status", id)
			}
			rows := make([]moveJSON, len(moves))
			for i, m := range moves {
				rows[i] = moveOf(m)
			}
			if !a.json() {
				a.printMoves(rows)
				return nil
			}
			for _, r := range rows {
				a.printJSON(r)
			}
			return nil
		},
	}
}

func moveID(text string) (uint64, error) {
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil || id == 0 {
		return 0, cli.Usagef("%q is no id of a move: see seqctl set status", text)
	}
	return id, nil
}

func setAbortCommand(a *app) *cobra.Command {
	var yes, lost bool
	c := &cobra.Command{
		Use:   "abort ID",
		Short: "Stop a move; what has moved until then stays where it is",
		Long: `Stop a move. The part under way goes back to the Set that it was of, unless it is
committed; the parts before it have moved, and stay. Move them back to undo.

A move to a Set that is destroyed stays "aborting", since its target cannot say that it
has let go. With --target-lost it ends without that. It is refused while the target answers.`,
		Example: `  seqctl set abort 3
  seqctl set abort 3 --target-lost
  seqctl set abort 3 --yes --output json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usagef("want the id of one move: see seqctl set status")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			id, err := moveID(args[0])
			if err != nil {
				return err
			}
			question := fmt.Sprintf("stop move %d", id)
			if lost {
				question += ", and give its target up as lost for good"
			}
			if err := a.confirm(c, yes, question); err != nil {
				return err
			}
			var rep *seqpb.SetMoveReply
			err = a.admin(c.Context(), adminCall{
				repeatable: true, interrupted: "it may or may not have been done: see seqctl set status",
				sets: func(ctx context.Context, conn *rpc.SetAdminConn) (_ *seqpb.Refusal, err error) {
					rep, err = conn.SetAbort(ctx, &seqpb.SetAbortRequest{Id: id, TargetLost: lost})
					return rep.GetRefusal(), err
				},
			})
			if err != nil {
				return err
			}
			j := moveOf(rep.GetMove())
			if a.json() {
				a.printJSON(j)
			} else {
				a.printMoves([]moveJSON{j})
			}
			return nil
		},
	}
	c.Flags().BoolVar(&lost, "target-lost", false, "the Set that the range was to go to is destroyed and does not come back")
	yesFlag(c, &yes)
	return c
}

func (a *app) printMoves(moves []moveJSON) {
	t := newTable("MOVE", "FROM", "TO", "STATE", ">KEYS", ">OF", ">PARTS", ">FROZEN MS", ">KEYS/S", ">LEFT", "RANGES", "?WHY")
	for i := range moves {
		m := &moves[i]
		left, rate, total := "-", "-", "-"
		if m.ETASeconds > 0 {
			left = fmt.Sprintf("%.0fs", m.ETASeconds)
		}
		if m.underWay() && m.KeysPerSecond > 0 {
			rate = fmt.Sprintf("%.0f", m.KeysPerSecond)
		}
		if m.KeysTotal > 0 {
			total = strconv.FormatUint(m.KeysTotal, 10)
		}
		id := m.ID
		if id == "0" {
			id = "-"
		}
		t.row(id, m.From, m.To, a.badIf(m.State == moveAborted || m.Reason != "", m.State), m.Keys, total, m.Parts,
			fmt.Sprintf("%.0f", m.FrozenMS), rate, left, strings.Join(m.Ranges, " "), m.Reason)
	}
	a.printTable(t)
}
