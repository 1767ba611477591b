// Package raise carries an AllocSvr's operations to its StoreSvr group: it
// collects them into batches, keeps one batch in flight, and hands each
// operation its result.
//
// Guarantees:
//   - Operations reach the state machine in the order of their batches, since
//     the next batch is formed only after the outcome of the last is known, or
//     after its sequence has been outgrown: a batch whose outcome is unknown is
//     repeated under a higher sequence, and the fence refuses the late original.
//   - An item is asked what it wants when its batch is formed, each time anew,
//     so that a retry never carries a stale intent (Item.Fill).
//   - Each accepted item is settled exactly once (Item.Done), at the latest when
//     the queue closes.
//   - The queue is bounded. What does not fit is refused with ErrFull and is
//     the submitter's to answer; only hand-backs are always taken, since the
//     number of keys held already bounds them.
//
// A cold caller's item goes as soon as no batch is in flight. Prefetches are
// collected for up to Config.PrefetchDelay or PrefetchKeys first: nobody waits
// for them yet, and 1000 keys in one Raft entry cost little more than one.
//
// It also has the policies that say how far a raise goes (Steps), fixed or adaptive:
// never beyond Steps.Largest, in bounded memory, and without a cost to warm calls.
//
// The package does not know what the operations mean, who owns what, or how
// the StoreSvr is reached (Executor).
package raise
