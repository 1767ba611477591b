// Package arena keeps, per key, the last number issued (cur) and the durable
// bound (max) in shared memory, so that they survive the death of the process.
//
// Guarantees:
//
//   - Take is one compare-and-swap: no lock, no allocation. A key that was closed
//     issues nothing more, however many callers were on their way.
//
//   - cur is stored before max, so that a process killed between two stores leaves
//     a key that must ask StoreSvr again, never one that repeats a number.
//
//   - What a dead process left is used only after all of it was verified: identity,
//     section table, directory and every cell. Any single flipped bit is noticed,
//     or lies where nothing is read.
//
//   - Memory is reserved before it is touched: a full file system is a *FullError,
//     never a SIGBUS.
//
//   - A section's epoch only grows, and a closed section opens only at a higher one.
//
//   - A Note ties a record of a request to the numbers it got: a process that dies
//     leaves both or neither.
//
// Invariants of a used cell: cur ≤ max, max − cur < 2^48; max == 0 means that
// nothing is known of the key (fresh, or a store was interrupted after StoreSvr
// learned all of cur), and then there is nothing to hand back.
//
// Readers hold the Guard around Find and all use of the Cell. A freed page or
// name is given to another key only when every guard entered before is left.
//
// It does not decide who may serve, does not talk to StoreSvr, and cannot notice
// that a running machine was rewound to a snapshot. It holds the only unsafe code
// of the project (unsafe.go, huge_linux.go).
package arena
