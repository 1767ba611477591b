package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/client"
)

type allocJSON struct {
	Key           string `json:"key"`
	First         int64  `json:"first"`
	Count         int64  `json:"count"`
	Prev          int64  `json:"prev"`
	Discontinuity bool   `json:"discontinuity"`
	Replayed      bool   `json:"replayed"`
	// Hole is what the discontinuity declares, bounds inclusive.
	Hole *holeJSON `json:"hole,omitempty"`
	// WindowSince is since when the owner remembers request ids.
	WindowSince string `json:"window_since,omitempty"`
}

type holeJSON struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

func allocCommand(a *app) *cobra.Command {
	n := count(1)
	var id requestID
	c := &cobra.Command{
		Use:   "alloc KEY… [-n COUNT] [--request-id UUID]",
		Short: "Allocate the next number, or COUNT consecutive ones, of each key",
		Long: `Allocate the next number, or COUNT consecutive ones, of each key.

With --request-id the call can be repeated: the same id for the same key gets
the same numbers; with another COUNT it is refused, and for another key it is
another request. Use the UUID of the message that the number is for.`,
		Example: `  seqctl alloc 42
  seqctl alloc 42 -n 100
  seqctl alloc 1 2 3 --output json
  seqctl --space conv alloc si_1001_1002 --request-id 6f1c1a52-3b0e-4a3c-9d55-0a9b6f2b7c11
  seqctl --space conv alloc -- -a-name-with-a-dash`,
		Args: someKeys,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c.Context(), args, func(ctx context.Context, cl *client.Client, keys []client.Key) error {
				var reqs []client.Request
				for _, k := range keys {
					reqs = append(reqs, client.Request{Key: k, N: int64(n), RequestID: id})
				}
				results, err := cl.AllocMany(ctx, reqs)
				if len(results) == 0 {
					return failed(err)
				}
				return a.printAllocs(results)
			})
		},
	}
	c.Flags().VarP(&n, "count", "n", "how many consecutive numbers of each key")
	c.Flags().Var(&id, "request-id", "makes the call repeatable: the same id gets the same numbers")
	return c
}

func allocOf(r client.Result) allocJSON {
	j := allocJSON{Key: r.Key.Text(), First: r.First, Count: r.Count, Prev: r.Prev, Replayed: r.Replayed}
	if h := r.Discontinuity; h != nil {
		j.Discontinuity, j.Hole = true, &holeJSON{h.From, h.To}
	}
	if !r.WindowSince.IsZero() {
		j.WindowSince = r.WindowSince.UTC().Format(time.RFC3339Nano)
	}
	return j
}

func (j *allocJSON) note() string {
	var notes []string
	if j.Hole != nil {
		notes = append(notes, fmt.Sprintf("%d to %d may never have been issued", j.Hole.From, j.Hole.To))
	}
	if j.Replayed {
		notes = append(notes, "replayed")
	}
	return strings.Join(notes, "; ")
}

func (a *app) printAllocs(results []client.Result) error {
	t := newTable("KEY", ">FIRST", ">LAST", ">COUNT", ">PREV", "?NOTE")
	err := each(a, results, func(r client.Result) error { return r.Err }, func(_ int, r client.Result) {
		j := allocOf(r)
		if a.json() {
			a.printJSON(j)
			return
		}
		t.row(keyText(j.Key), j.First, r.Last(), j.Count, j.Prev, j.note())
	})
	a.printTable(t)
	return err
}
