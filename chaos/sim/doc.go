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
//     lost (monitor.go); the clients' history goes through chaos/check; at the
//     end the replicas must be equal, keep the invariants of storesvr/state, and
//     have no bound below a number that was issued (examine.go).
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
//
// The traps (traps_test.go) are scenarios played step by step, each with one
// rule switched off, which the checkers must notice, and with it on.
//
// What it does not do: measure speed, or fault what is below the process (disk
// failures, torn files); that is for tests on real processes and files.
package sim
