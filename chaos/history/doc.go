// Package history is what the clients of a cluster saw: every operation with
// when it was called, when it was answered and what the answer was, plus the
// faults that were injected meanwhile and the gap ledger read at the end.
//
// Guarantees. A Recorder stamps with one strictly growing clock: if one
// operation was answered before another was called, anywhere in the process,
// its stamp is smaller, also in simulated time where many things happen in the
// same instant. An operation that was never answered is in the history with
// outcome Unknown. Saving and loading gives the same history back; a file that
// is cut, damaged or of another version is refused with the line that is wrong.
//
// What it does not do: judge. That is chaos/check.
package history
