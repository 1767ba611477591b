// Package disk keeps the durable tier's state in one bbolt file, off the path
// of the replies.
//
// Guarantees:
//   - state.db is always the exact state after some applied Raft entry: dirty
//     keys, the meta state and that entry's index are written in ONE bbolt
//     transaction, so a replay skips what is in the file and redoes the rest.
//   - Every value, which is a block of neighbouring uids or a name, carries a checksum
//     of its key and itself. A value that does not match is never used: the store
//     fails (typed error), it does not guess.
//   - A snapshot is a view of one moment, streamed with flat memory. A restore
//     is verified whole before it replaces the old file; until then the old state stands.
//   - A Cut is a page of one moment too, memory and file alike, with the ledgers; it
//     holds nothing up but a restore.
//   - A directory of another cluster, Set or node, of another format, or with a
//     part missing is refused with an error that names path, found, want and remedy.
//     Nothing is ever reset.
//
// Invariants: reads look at the active generation, then the frozen ones from
// new to old, then the file. Only the apply goroutine writes to the active
// generation, and it is frozen only between two applied entries. Dirty keys are
// bounded: past FlushKeys (to twice as many) a flush starts, later and larger if the
// last one took long, and past HardKeys applying waits for it.
//
// Flushes run beside replies, which wait for the same cores and the same disk, so
// they are small, the replicas of a group make them at different times, and each
// rests between slices of its work. While a part of a move is frozen or comes in they
// are held up, for a bounded time and with few keys dirty. None of that touches the first guarantee: one
// generation is one transaction however long its changes are collected in memory,
// and the applied index is in it. (Splitting a generation over transactions would
// not do: keys from after the index that the file names would be applied to again.)
//
// What it does not do: decide what a command means (storesvr/state), or make
// anything durable before a reply — the Raft log does that.
package disk
