package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cli"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
)

// movePoll is how often a move is looked at while it is followed.
const movePoll = 200 * time.Millisecond

func setMoveCommand(a *app) *cobra.Command {
	var from, to string
	var texts []string
	var all, dryRun, yes bool
	c := &cobra.Command{
		Use:   "move --from SET --to SET --range LO-HI",
		Short: "Move a range of keys to another Set while it is served",
		Long: `Move a range of keys to another Set while traffic runs: no number is lost and no
call fails. The range is of --space, and HI is exclusive; several may be given, or
--all for everything that the Set owns.

It goes in parts, each of which is frozen for some milliseconds. Ctrl-C leaves the
move running: seqctl set status shows it, seqctl set abort stops it. What has
moved until then stays where it is.`,
		Example: `  seqctl set move --from s1 --to s2 --range 0-1000000 --dry-run
  seqctl set move --from s1 --to s2 --range 0-1000000
  seqctl --space conv set move --from s1 --to s2 --range 0-9223372036854775808 --yes
  seqctl set move --from s2 --to s1 --all --yes --output json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case from == "" || to == "":
				return cli.Usagef("--from and --to are needed: see seqctl set list")
			case from == to:
				return cli.Usagef("--from and --to are both %s: a move needs two Sets", from)
			case all == (len(texts) > 0):
				return cli.Usagef("want either --range LO-HI or --all")
			}
			q := &seqpb.SetMoveRequest{From: from, To: to, DryRun: dryRun}
			if !all {
				var err error
				if q.Ranges, err = a.ranges(c.Context(), texts); err != nil {
					return err
				}
			}
			if !dryRun {
				what := fmt.Sprintf("move %s from set %s to set %s", orText(strings.Join(texts, ", "), "everything"), from, to)
				if err := a.confirm(c, yes, what); err != nil {
					return err
				}
			}
			return a.startMove(c.Context(), q)
		},
	}
	fs := c.Flags()
	fs.StringVar(&from, "from", "", "the Set that owns the range")
	fs.StringVar(&to, "to", "", "the Set that is to own it")
	fs.StringSliceVar(&texts, "range", nil, "LO-HI of positions, HI exclusive; may be given more than once")
	fs.BoolVar(&all, "all", false, "everything that the Set owns, in all spaces")
	fs.BoolVar(&dryRun, "dry-run", false, "only tell what would move, and how much it is")
	yesFlag(c, &yes)
	return c
}

// ranges reads LO-HI texts as ranges of the space.
func (a *app) ranges(ctx context.Context, texts []string) ([]*seqpb.Range, error) {
	var out []*seqpb.Range
	err := a.withClient(ctx, nil, func(_ context.Context, cl *client.Client, _ []client.Key) error {
		if _, err := a.keys(cl.Routes(), nil); err != nil {
			return err
		}
		space, _ := cl.Routes().Space(a.space)
		for _, text := range texts {
			r, err := sets.ParseRange(space.ID, text)
			if err != nil {
				return cli.Usagef("--range: %w", err)
			}
			if strings.HasSuffix(text, "-") {
				r.Last = sets.Whole(space).Last
			}
			out = append(out, &seqpb.Range{Space: uint32(r.Space), Lo: uint64(r.Lo), Last: uint64(r.Last)})
		}
		return nil
	})
	return out, err
}

type moveJSON struct {
	ID     string   `json:"id"`
	From   string   `json:"from"`
	To     string   `json:"to"`
	Ranges []string `json:"ranges"`
	State  string   `json:"state"`
	Reason string   `json:"reason,omitempty"`
	Keys   uint64   `json:"keys"`
	// KeysTotal is an estimate; 0 when not known.
	KeysTotal uint64 `json:"keys_total"`
	Parts     uint32 `json:"parts"`
	// FrozenMS is the longest that any part was frozen.
	FrozenMS      float64  `json:"frozen_ms"`
	FrozenP99MS   float64  `json:"frozen_p99_ms"`
	KeysPerSecond float64  `json:"keys_per_second"`
	ETASeconds    float64  `json:"eta_seconds"`
	Seconds       float64  `json:"seconds"`
	Checksum      string   `json:"checksum"`
	Moved         []string `json:"moved"`
}

func moveOf(m *seqpb.MoveStatus) moveJSON {
	j := moveJSON{
		ID: strconv.FormatUint(m.Id, 10), From: m.From, To: m.To, Ranges: append([]string{}, m.Ranges...), State: m.State, Reason: m.Reason,
		Keys: m.Keys, KeysTotal: m.KeysTotal, Parts: m.Parts, FrozenMS: m.FrozenMaxMs, FrozenP99MS: m.FrozenP99Ms,
		KeysPerSecond: m.KeysPerSecond, ETASeconds: m.EtaSeconds, Checksum: m.Checksum, Moved: append([]string{}, m.Moved...),
	}
	if m.EndedMs > m.StartedMs {
		j.Seconds = float64(m.EndedMs-m.StartedMs) / 1000
	}
	return j
}

// Where a move ends, and where one does that is to end early.
const (
	moveDone     = "done"
	moveAborted  = "aborted"
	moveAborting = "aborting"
)

func (m *moveJSON) underWay() bool { return m.State != moveDone && m.State != moveAborted }

func (a *app) startMove(ctx context.Context, q *seqpb.SetMoveRequest) error {
	var rep *seqpb.SetMoveReply
	err := a.admin(ctx, adminCall{
		repeatable: q.DryRun, lasts: true,
		interrupted: "the move may have started: see seqctl set status",
		sets: func(ctx context.Context, conn *rpc.SetAdminConn) (_ *seqpb.Refusal, err error) {
			rep, err = conn.SetMove(ctx, q)
			return rep.GetRefusal(), err
		},
	})
	if err != nil {
		return err
	}
	m := rep.GetMove()
	if m == nil {
		return fmt.Errorf("the cluster answered without a move: is it of this version of seqsvr?")
	}
	if !q.DryRun {
		if m, err = a.followMove(ctx, m); err != nil {
			return err
		}
	}
	j := moveOf(m)
	if a.json() {
		a.printJSON(j)
	} else {
		a.printMoves([]moveJSON{j})
	}
	if !q.DryRun && j.State != moveDone {
		return fmt.Errorf("move %s was aborted: %s: %s stays with set %s; see seqctl set list, and move the rest again",
			j.ID, orText(j.Reason, "no reason given"), orText(strings.Join(j.Moved, " "), "nothing"), j.To)
	}
	return nil
}

// followMove reports a move's progress until it is over.
func (a *app) followMove(ctx context.Context, m *seqpb.MoveStatus) (*seqpb.MoveStatus, error) {
	id := m.Id
	shown := newProgress(a, fmt.Sprintf("move %d", id), "keys")
	defer shown.end()
	tick := time.NewTicker(movePoll)
	defer tick.Stop()
	say := func() {
		j := moveOf(m)
		shown.say("%s", j.line())
	}
	if m.State != moveDone && m.State != moveAborted {
		say()
	}
	for m.State != moveDone && m.State != moveAborted {
		shown.draw(m.Keys, m.KeysTotal)
		select {
		case <-shown.line.C:
			say()
			continue
		case <-tick.C:
		case <-ctx.Done():
			return nil, moveGoesOn(id)
		}
		next, err := a.moves(ctx, id)
		switch {
		case ctx.Err() != nil:
			return nil, moveGoesOn(id)
		case err != nil:
			return nil, fmt.Errorf("%w: the move goes on: watch it with seqctl set status %d", err, id)
		case len(next) != 1:
			return nil, fmt.Errorf("the cluster does not know move %d any more: see seqctl set status", id)
		}
		m = next[0]
	}
	return m, nil
}

func moveGoesOn(id uint64) error {
	return fmt.Errorf("interrupted: the move goes on: watch it with seqctl set status %d, or stop it with seqctl set abort %d", id, id)
}

// moves asks for one move, or for all with id 0.
func (a *app) moves(ctx context.Context, id uint64) ([]*seqpb.MoveStatus, error) {
	var rep *seqpb.SetMovesReply
	err := a.admin(ctx, adminCall{
		repeatable: true, interrupted: "nothing was changed: run it again",
		sets: func(ctx context.Context, conn *rpc.SetAdminConn) (_ *seqpb.Refusal, err error) {
			rep, err = conn.SetMoves(ctx, &seqpb.SetMovesRequest{Id: id})
			return rep.GetRefusal(), err
		},
	})
	if err != nil {
		return nil, err
	}
	return rep.Moves, nil
}

// line is how far a move is.
func (m *moveJSON) line() string {
	text := m.State
	if m.KeysTotal > 0 {
		text += fmt.Sprintf(", %d of about %d keys, %.0f keys/s", m.Keys, m.KeysTotal, m.KeysPerSecond)
	}
	if m.ETASeconds > 0 {
		text += fmt.Sprintf(", %v left", time.Duration(m.ETASeconds*float64(time.Second)).Round(time.Second))
	}
	return text + because(m.Reason)
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
