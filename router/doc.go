// Package router has the route table: key → Set → section → owner.
//
// Guarantees:
//   - A Table is immutable and valid: every section's owner is a listed node,
//     and the Set map gives no position to two Sets.
//   - Merge never takes a part of a table back to an older version, and never
//     applies a delta that leaves out changes which the held table has not seen:
//     it says GapError, and the caller asks for the whole table.
//   - Whatever deltas lead from one version to another, in whatever order and
//     however often repeated, the table is the one that a full fetch would give.
//   - A Hub holds no queue: a watcher that is slow gets the newest table next.
//   - A cache file is loaded whole and checked, or refused with a CacheError.
//
// Versions: the Set map has one (it grows by one with each change of the map),
// and each Set has its own, the Raft index of the last change that clients can
// see. They are compared with nothing but themselves.
//
// A route is a hint. A stale one costs a redirect, never a wrong number: the
// owner checks epoch and lease itself. The package therefore does no locking
// against the owners, and it does no network I/O; internal/wire turns messages
// into Deltas.
package router
