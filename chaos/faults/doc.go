// Package faults does harm to a cluster of processes while clients use it, and
// notes in the history what was done and what it may cost.
//
// One fault at a time: it is injected, lasts, is lifted, and the cluster gets
// time to recover before the next, so that what the checker measures can be put
// down to one of them. The seed decides which fault hits which node when.
//
// What it does not do: judge, or hide. A fault that needs something that is not
// there is reported as skipped, by name and with the reason.
package faults

import (
	"context"
	"time"
)

// Cluster is what faults are done to; nodes go by name.
type Cluster interface {
	Sets() []string
	Allocs() []string
	Stores() []string
	// Leader is the StoreSvr that leads; LeaderOf that of a Set.
	Leader(context.Context) (string, error)
	LeaderOf(ctx context.Context, set string) (string, error)
	// Move moves the half of the keys that is for that from one Set to another, and
	// waits for the end of it.
	Move(ctx context.Context, from, to string) error
	// Kill ends a process with SIGKILL and waits until it is gone.
	Kill(node string) error
	// Stop ends a process with SIGTERM and waits until it is gone.
	Stop(ctx context.Context, node string) error
	// Start starts a process again, and waits until it is ready.
	Start(ctx context.Context, node string) error
	// LoseMemory removes what a dead AllocSvr left in shared memory.
	LoseMemory(node string) error
	// Pause and Continue are SIGSTOP and SIGCONT.
	Pause(node string) error
	Continue(node string) error
	// Drain moves everything off an AllocSvr; Undrain lets it be given sections again.
	Drain(ctx context.Context, node string) error
	Undrain(ctx context.Context, node string) error
	// LeaseTTL is how long an owner that is not heard of keeps its sections.
	LeaseTTL() time.Duration
}
