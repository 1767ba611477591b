package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

type drainJSON struct {
	Node  string `json:"node"`
	Moved uint32 `json:"moved"`
	MS    uint64 `json:"ms"`
	// Lost counts the sections that ended without an exact hand-back.
	Lost uint64 `json:"lost"`
}

func drainCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "drain NODE",
		Short: "Move every section off an AllocSvr; callers notice nothing",
		Long: `Move every section off an AllocSvr, to the others, without losing a number or
failing a call. It gets none back until undrain. Returns when none is left; ended
before, the drain goes on in the cluster, and asking again follows it.`,
		Example: `  seqctl drain a1
  seqctl drain a1 --output json
  seqctl undrain a1`,
		Args: oneNode,
		RunE: func(c *cobra.Command, args []string) error {
			d := &drain{app: a, node: args[0]}
			err := a.admin(c.Context(), adminCall{
				lasts: true, repeatable: true, do: d.follow, heard: func() time.Time { return d.heardAt },
				interrupted: fmt.Sprintf("the drain of %s goes on in the cluster: follow it with seqctl drain %s, or stop it with seqctl undrain %s", d.node, d.node, d.node),
			})
			if err != nil {
				return err
			}
			j := d.total()
			if a.json() {
				a.printJSON(j)
				return nil
			}
			t := newTable("NODE", ">MOVED", ">MS", ">LOST")
			t.row(j.Node, j.Moved, j.MS, a.badIf(j.Lost > 0, j.Lost))
			a.printTable(t)
			return nil
		},
	}
}

// drain is one drain as followed through one or several leaders: each counts
// from where it took over.
type drain struct {
	*app
	node string
	// before is the sum of what earlier leaders reported last; last is the present one's.
	before, last drainJSON
	// heardAt is when the last progress came.
	heardAt time.Time
}

func (d *drain) total() drainJSON {
	return drainJSON{d.node, d.before.Moved + d.last.Moved, d.before.MS + d.last.MS, d.before.Lost + d.last.Lost}
}

// errBrokenOff: the stream ended before the drain did. Asking again follows it.
var errBrokenOff = errors.New("the cluster stopped reporting the drain: it goes on; ask again to follow it")

type drainMessage struct {
	*seqpb.DrainProgress
	err error
}

// follow asks for the drain and reports its progress until it is done.
func (d *drain) follow(ctx context.Context, conn *rpc.AdminConn) (*seqpb.Refusal, error) {
	d.before, d.last = d.total(), drainJSON{}
	w, err := conn.Drain(ctx, &seqpb.DrainRequest{Node: d.node})
	if err != nil {
		return nil, err
	}
	var receiver sync.WaitGroup
	messages, done := make(chan drainMessage), make(chan struct{})
	receiver.Go(func() {
		for {
			p, err := w.Recv()
			select {
			case messages <- drainMessage{p, err}:
			case <-done:
				return
			}
			if err != nil {
				return
			}
		}
	})
	defer receiver.Wait()
	defer close(done)
	defer w.Close()
	shown, began := newProgress(d.app, "drain "+d.node, "sections"), time.Now()
	defer shown.end()
	var remaining uint32
	for {
		select {
		case m := <-messages:
			switch {
			case errors.Is(m.err, io.EOF):
				return nil, errBrokenOff
			case m.err != nil:
				return nil, m.err
			case m.Refusal.GetCode() != seqpb.RefusalCode_REFUSAL_NONE:
				return m.Refusal, nil
			}
			d.heardAt = time.Now()
			d.last = drainJSON{Moved: m.Moved, MS: m.Ms, Lost: m.Lost}
			if m.Done {
				return nil, nil
			}
			remaining = m.Remaining
			shown.draw(uint64(m.Moved), uint64(m.Moved+m.Remaining))
		case <-shown.line.C:
			shown.say("%d of %d sections moved after %v", d.last.Moved, d.last.Moved+remaining, time.Since(began).Round(time.Second))
		}
	}
}

func undrainCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "undrain NODE",
		Short: "Let a drained AllocSvr have sections again",
		Example: `  seqctl undrain a1
  seqctl undrain a1 --output json`,
		Args: oneNode,
		RunE: func(c *cobra.Command, args []string) error {
			err := a.admin(c.Context(), adminCall{
				repeatable: true,
				do: func(ctx context.Context, conn *rpc.AdminConn) (*seqpb.Refusal, error) {
					rep, err := conn.Undrain(ctx, &seqpb.DrainRequest{Node: args[0]})
					return rep.GetRefusal(), err
				},
			})
			if err != nil {
				return err
			}
			if a.json() {
				a.printJSON(undrainJSON{Node: args[0]})
			} else {
				fmt.Fprintf(&a.out, "%s takes sections again\n", args[0])
			}
			return nil
		},
	}
}

type undrainJSON struct {
	Node     string `json:"node"`
	Draining bool   `json:"draining"`
}
