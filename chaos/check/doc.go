// Package check judges a history against the guarantees G1–G5.
//
// For each key it lays what the clients were given on the line of numbers and
// asks: does anything overlap (G1)? is the order of the numbers an order in
// which the operations can have happened, reads included (G2)? is every number
// that nobody received inside a declared hole, or one that an operation of
// unknown outcome may have consumed (G3)? is no hole larger than the faults
// before it allow (G4)? how long was nobody served (G5)?
//
// It never raises a false alarm: what it reports cannot have happened in a
// correct cluster. With the ledger in the history it misses nothing that the
// clients can see, with one stated exception: when operations of unknown
// outcome asked for many different counts, whether they can fill the missing
// numbers exactly is a subset-sum question that is searched up to a bound;
// past it the numbers are accepted and counted in Report.Unproven.
//
// Request ids are taken to be answered from the idempotency window: histories
// are meant to be shorter than the window.
//
// Cost: O(n log n) in the number of operations.
package check
