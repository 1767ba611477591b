// Package state is the durable tier's state machine: Apply(state, command) → reply.
//
// It is pure: no clock, no randomness, no I/O, no goroutine. Every replica
// that applies the same commands in the same order holds the same state.
//
// Invariant, per key: every number ≤ Floor was issued or is in the gap ledger;
// numbers in (Floor, Bound] may have been issued; none above Bound was.
// Floor == Bound means that nothing is at risk.
//
// The fence is here and nowhere else (fence.go): a command of an AllocSvr
// counts only if it comes from the present incarnation of the session, has a
// batch sequence above the last applied one, and, for each key or section it
// touches, names the section's present epoch, owned by that session. Uniqueness
// (G1) rests on this fence and on the bound being durable before a number is
// issued, never on a clock.
//
// What it does not do: decide who should own a section (storesvr/placement),
// or when a lease has run out (storesvr/lease). It only records such verdicts.
package state
