// Package sim runs whole clusters — StoreSvrs on real Raft, AllocSvrs, the
// SDK — inside a testing/synctest bubble, under faults, and judges them.
//
// Guarantees:
//   - Nothing but the network, the clocks and the machines is simulated. No
//     memory is shared over the network: each message is encoded and decoded.
//   - A request whose fate is open is never reported as not sent. Only a dead
//     process refuses.
//   - A process that was killed is gone, with every handler it ran, before the
//     next one starts on its machine's disk or shared memory.
//   - Every number that leaves an AllocSvr is looked at, also in replies that are
//     lost (monitor.go); each must be of a call that was told of it, or that it may
//     have got some (told.go). The clients' history goes through chaos/check; at the
//     end the replicas must be equal, keep the invariants of storesvr/state, and
//     have no bound below a number that was issued (examine.go).
//   - With two Sets, at no time do both have a key: neither by the state that their
//     StoreSvrs have reached, nor by what their AllocSvrs could issue (custody.go). At
//     the end every key is one Set's, as the directory says, and no move is left open.
//
// Every fourth seed of the random runs is a cluster of two Sets, with StoreSvrs and
// AllocSvrs each, between which ranges go there and back beside all other faults
// (migrate.go), some moves being called off.
//
// A run is planned by its seed: which faults come when, and the fate of the nth
// message of each link, are drawn from it (random.go). How goroutines interleave
// within one instant of simulated time, and Raft's own election timers, are not;
// so a seed reproduces the plan, and a failure mostly, not always. Repeat it with
// -count, and read the events that a failed run leaves in a file.
//
//	go test ./chaos/sim                                        1500 failovers (150 with -short), and the traps
//	go test ./chaos/sim -run ViolateNothing -failovers=10000   the full count
//	go test ./chaos/sim -run ViolateNothing -seed=N -count=10  one seed again
//	go test ./chaos/sim -run ViolateNothing -sets              every seed with two Sets
//
// The traps (traps_test.go, movetraps_test.go) are scenarios played step by step,
// each with one rule switched off, which the checkers must notice, and with it on.
// Where a play needs what no process sends of itself, the script sends it in the
// name of one: the StoreSvrs must withstand any owner and any driver of moves.
//
// Some switches have no play, since what they would break cannot be brought about
// from outside the processes, or shows in nothing that a client could see. Unit
// tests play them:
//
//   - storesvr.Bugs.SkipVerifyLeader (storesvr/leader_test.go). What a deposed leader
//     acknowledges does harm only if it goes on for longer than two margins of a lease.
//     Raft's leader steps down by itself before that; verifying is for one whose
//     process stood still. A pause here holds a process's messages and not its
//     timers, so that a leader wakes up knowing how late it is.
//   - arena.Bugs.CloseWithoutBit (allocsvr/arena). An answer that comes after its key
//     was closed would open it. The AllocSvr does not pass such answers on to the
//     arena: its section, or the key's hand-back, is looked at first. The bit is the
//     second wall.
//   - arena.Bugs.KeepSectionOpenable (allocsvr/arena). Nobody asks the arena to open a
//     section at an epoch in which it was closed: the keeper does not, and the
//     process after it reads the closed flag. The arena refuses all the same.
//   - state.Bugs.KeepLeftovers, SettleLeftovers, ForgetVacated (storesvr/state, in
//     TestEachMechanismOfMovesIsMissedWhenSwitchedOff). The checksums of both sides
//     would differ, or a hole would be declared that the loss of the owner excuses: a
//     move that is tried again for ever, or one loss that looks like another.
//
// What it does not do: measure speed, or fault what is below the process (disk
// failures, torn files); that is for tests on real processes and files.
package sim
