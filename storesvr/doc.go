// Package storesvr is one node of a Set's durable tier: Raft around
// storesvr/state, and, while it leads, leases, placement and the answers to
// AllocSvrs.
//
// Guarantees:
//   - What is acknowledged was applied after a quorum had it on disk. An outcome
//     that is not known is an error that says so, never a made-up refusal.
//   - A heartbeat is acknowledged only after leadership was verified following
//     its receipt, and never once the leader has decided that the lease ran out.
//     Raft counts answers that were under way already, hence RaftTimeout ≤ 2
//     margins (docs/decisions/021).
//   - A new leader acts only after a barrier, and expires no owner that it has
//     not heard from before TTL + margin.
//   - A node that cannot read or write its disk, or cannot decode an entry,
//     stops taking part and says so (Failed); it never skips an entry.
//   - A node on an empty directory, new or wiped, votes for nobody who knows more
//     than an unborn cluster until it has caught up with a leader (newcomer.go):
//     a wiped voter has forgotten what it acknowledged.
//   - A snapshot of a leader's takes nothing back: an older one is refused
//     (snapshots.go), and of the log goes only what never was committed (fitlog.go).
//   - A range moves to another Set part by part. A part that stands still ends by
//     itself: before the seal its source thaws it (freeze_timeout), after it both
//     sides ask the directory what was decided (resolve.go) and wait for that.
//   - The leader of the directory's Set drives moves (mover.go). A mover knows
//     nothing that is not in the directory or can be asked again: the next leader's
//     begins the step at hand anew, and every step may be repeated. It commits a
//     part only when source and target answered the same checksum of the frozen
//     range, and the seal was applied.
//   - A move to a Set that is lost for good ends without that Set's word, if an operator says
//     so (setabort.go), it does not answer, and the part at hand is not committed. Should it
//     come back, with its disks, it does not serve any of the range: a Set serves what it has
//     activated; it activates a part only when the newest map it knows gives it the range; no
//     map does, since the directory has aborted that part, for ever, before the source thawed.
//     It asks for the verdict as any target that stands still, hears "aborted" and discards.
//     What was committed to it before is not touched: that is its own, lost with it or not.
//
// A reader starts at node.go, then leader.go (the loop of a leadership) and
// decide.go (what it decides, pure); session.go and server.go are the RPCs; sets.go is what Sets ask of each other, and
// setadmin.go what operators do.
//
// What it does not do: decide what a command means (storesvr/state), or open
// RPC connections (they come in through interfaces).
package storesvr
