package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/client"
)

func watchCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "watch",
		Short: "Print routing changes as they happen, one a line, until interrupted",
		Long: `Print routing changes as they happen, one a line, until interrupted: first how the
sections of each Set are spread, then what changes: sections that get another
owner, nodes that come and go. Changes that happen at once are told together.`,
		Example: `  seqctl watch
  seqctl watch --output json
  seqctl watch --timeout 60s   # for a minute`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx := c.Context()
			if a.timeoutGiven {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, a.timeout)
				defer cancel()
			}
			dialCtx, cancel := context.WithTimeout(ctx, a.timeout)
			cl, err := a.dial(dialCtx)
			cancel()
			if err != nil {
				return err
			}
			defer cl.Close()
			return a.watch(ctx, cl)
		},
	}
}

func (a *app) watch(ctx context.Context, cl *client.Client) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var last *client.Table
	err := cl.Watch(ctx, func(t *client.Table) {
		now := time.Now()
		for _, e := range changes(last, t) {
			e.Time = now.UTC().Format(time.RFC3339Nano)
			if a.json() {
				a.printJSON(e)
			} else {
				fmt.Fprintf(&a.out, "%s  %s\n", now.Format("15:04:05.000"), e.text())
			}
		}
		last = t
		if a.out.err != nil {
			cancel() // nobody reads any more
		}
	})
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil // how a watch ends
	}
	return failed(err)
}

// text is an event for people.
func (e *event) text() string {
	switch e.Event {
	case eventTable:
		return fmt.Sprintf("set %s  routes %d  %s", e.Set, e.Version, e.spread())
	case eventMoved:
		return fmt.Sprintf("set %s  routes %d  %d sections  %s → %s  %s", e.Set, e.Version, len(e.Sections),
			orText(e.From, "nobody"), orText(e.To, "nobody"), sectionText(e.Sections))
	case eventMap:
		return fmt.Sprintf("set map %d", e.Version)
	}
	return strings.TrimRight(fmt.Sprintf("set %s  routes %d  %s %s  %s", e.Set, e.Version, e.Node, e.Event, e.Addr), " ")
}
