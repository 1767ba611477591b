package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/client"
)

// keyEventJSON is one value of one watched key.
type keyEventJSON struct {
	Time    string `json:"time"`
	Key     string `json:"key"`
	Current int64  `json:"current"`
	// Missed: there were values that came and went before they could be told.
	// This one is the newest, so nothing is lost but the steps to it.
	Missed bool `json:"missed"`
}

func watchKeysCommand(a *app) *cobra.Command {
	json := false
	c := &cobra.Command{
		Use:   "watch-keys KEY…",
		Short: "Print the last number of each key, and then each time that it has grown, until interrupted",
		Long: `Print the last number of each key, and then each time that it has grown, until
interrupted, one a line. Values that come within some milliseconds of each other
are told as one, the newest. Keys are followed to other owners. Nothing is
allocated, and an output that is not read holds up nobody: what it missed is
marked, and the next line has the newest. A key that cannot be watched for some
seconds is told on stderr, and goes on being tried.`,
		Example: `  seqctl watch-keys 42
  seqctl --space conv watch-keys si_1001_1002 sg_7
  seqctl watch-keys 1 2 3 --json
  seqctl watch-keys 42 --timeout 60s   # for a minute`,
		Args: someKeys,
		RunE: func(c *cobra.Command, args []string) error {
			if json {
				a.format = "json"
			}
			if err := a.checkKeys(args); err != nil {
				return err
			}
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
			keys, err := a.keys(cl.Routes(), args)
			if err != nil {
				return err
			}
			return a.watchKeys(ctx, cl, keys)
		},
	}
	c.Flags().BoolVar(&json, "json", false, "the same as --output json")
	return c
}

func (a *app) watchKeys(ctx context.Context, cl *client.Client, keys []client.Key) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	last := make(map[client.Key]int64, len(keys))
	err := cl.WatchKeys(ctx, keys, func(n client.KeyNews) {
		now := time.Now()
		if len(n.Unwatched) > 0 {
			fmt.Fprintf(a.err, "error: %v%s\n", n.Unwatched[0].Err, andMore(len(n.Unwatched)-1))
		}
		for _, r := range n.Readings {
			if a.json() {
				a.printJSON(keyEventJSON{now.UTC().Format(time.RFC3339Nano), r.Key.Text(), r.Current, n.Missed})
			} else {
				was, known := last[r.Key]
				fmt.Fprintln(&a.out, keyLine(now, r, was, known, n.Missed))
			}
			last[r.Key] = r.Current
		}
		if a.out.err != nil {
			cancel() // nobody reads any more
		}
	})
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil // how a watch ends
	}
	return failed(err)
}

// andMore says that what was said of one key is true of others too.
func andMore(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "; and 1 more key"
	}
	return fmt.Sprintf("; and %d more keys", n)
}

// keyLine is a value for people: when, which key, where it is and how it got there.
func keyLine(now time.Time, r client.Reading, was int64, known, missed bool) string {
	line := fmt.Sprintf("%s  %s  %d", now.Format("15:04:05.000"), keyText(r.Key.Text()), r.Current)
	if known {
		line += fmt.Sprintf("  +%d", r.Current-was)
	}
	if missed {
		line += "  values in between were missed"
	}
	return line
}
