// Package load drives a service with many clients and records what they saw.
//
// It knows the service only as a Target, so that the same drivers run against
// the SDK on real processes and inside a simulation; all waiting is on timers
// and contexts. Everything that is random comes from the seed; which client
// makes which calls is repeatable, how they interleave is up to the service.
//
// What it does not do: judge (chaos/check), or retry. A retry is recorded as
// an operation of its own, with the same request id.
package load

import (
	"context"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// Request asks for N consecutive numbers of a key, "SPACE/TEXT".
type Request struct {
	Key string
	N   uint32
	// ID makes the request repeatable; zero for none.
	ID history.RequestID
}

// Target is the service as one client reaches it. An answer is a history.Op of
// which only the fields of the answer count: Outcome, Err, and by kind First,
// Count, HoleFrom, HoleTo, Replayed, or Value.
type Target interface {
	Alloc(context.Context, Request) history.Op
	// AllocMany and Current answer in the order of what was asked.
	AllocMany(context.Context, []Request) []history.Op
	Current(context.Context, []string) []history.Op
	// Gaps reads the ledger of a key.
	Gaps(context.Context, string) ([]history.Gap, error)
}
