package chaos

import (
	"context"
	"time"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// noteStalls records, until ctx ends, when this machine stood still for so long
// that owners may have lost their leases: each such time is a fault that may have
// cost the memories of all of them. Nobody made it, yet it is no fault of the
// cluster's: a virtual machine that is paused takes the clients along.
func noteStalls(ctx context.Context, rec *history.Recorder, owners int, ttl time.Duration) {
	const every = 20 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := rec.Stamp()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
		now := rec.Stamp()
		if time.Duration(now-last) >= ttl/2 {
			rec.Add(history.Fault{Name: "stall", Start: last, End: now, Losses: owners})
		}
		last = now
	}
}
