// Package lease is the arithmetic of both sides of a session's lease: Book for
// the leader, Holder for the AllocSvr. It is pure: "now" is passed in, on a
// clock that is monotonic and counts suspend, and the two sides never compare
// their clocks.
//
// The holder's lease runs from the moment it sent a heartbeat that was
// acknowledged, and is one margin short; the leader's runs from the moment it
// received that heartbeat. So the holder always stops first, as long as the
// clocks' rates differ by less than margin/ttl. A new leader that knows nothing
// gives every session ttl + margin from the start of its leadership: nothing
// that its predecessor acknowledged lasts longer.
//
// Leases order numbers (G2); that no number is issued twice (G1) never rests on them.
//
// What it does not do: verify leadership (the leader must, after receiving a
// heartbeat and before acknowledging it), or wait.
package lease
