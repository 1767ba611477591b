// Package allocsvr is the serving tier: it issues the numbers.
//
// A number leaves when, in this order and without a wait in between, the key's
// section is open here (sections.go), the lease holds (session.Alive), and the
// key's cell in the arena had numbers left (arena.Cell.Take). All of that is
// pass in alloc.go; everything else is about making it succeed next time.
//
// Guarantees:
//   - A number is issued only below a bound that a quorum of the StoreSvr group
//     has made durable, in an epoch that this process owns.
//   - When every call on a key has its answer, at most one step, the largest that its
//     policy allows, lies between its last number and its bound: what the loss of
//     this machine costs it. A call that waits may have as many as it asked for
//     granted beside that (steps.go).
//   - A reply's numbers of one key are consecutive, and follow the key's last
//     number; across a hole that a lost machine left, the first reply says so.
//   - Closing a section is one-way within an epoch. A hand-back leaves only after
//     the closed mark is in the arena and every caller that was inside has left,
//     so what it says is exact.
//   - A key is forgotten only after its hand-back was acknowledged.
//   - A key that is idle, or that must make room, is handed back while its section
//     serves (evict.go, sweep.go); a call for it waits for that and goes on at the next number.
//   - What a full arena costs is bounded by the keys that get room, not by those that
//     wait for it: one request at a time looks (room.go).
//   - Only keys of ranges that the Set map gives to the Set are served, and of those
//     none of a range that is frozen for a move (ranges.go, freeze.go). The store
//     keeps the ranges too, and its word counts.
//   - Reading (Current, WatchKeys) acquires nothing. Watching costs those who allocate nothing.
//   - Callers who come while a process starts wait for it (door.go), for a second after its start at most.
//   - Nothing waits without a bound: callers by their deadline and by
//     Config.MaxInFlight, raises by the queue's length; past them CODE_BUSY.
//
// Locking: section.mu guards a section's life and its raises under way. It is
// never held while waiting. Opening a section and every change of a cell but Take
// happen under it, so that a close which holds it sees all or nothing of them.
//
// It does not place sections, decide about leases, or keep anything durable.
package allocsvr
