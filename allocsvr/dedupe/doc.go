// Package dedupe remembers, for a while, which numbers a request got, so that a
// retry with the same request id gets the same numbers back.
//
// Guarantees:
//   - Within the window, the same (key, id) with the same n gets the same answer;
//     with another n it is refused (*MismatchError). A retry that races its original
//     waits for it.
//   - The record and the numbers are one step, also for a process that is killed
//     (arena.Note): after a resume a number taken is on record, or was never taken.
//   - Since is honest: all answers given from then on are remembered. Whatever makes
//     the table forget moves it forward first.
//
// Where it is: in pages of the arena, per section, 32 bytes a record; the index in
// front of them is ordinary memory and is rebuilt. A section's records live as long
// as its keys do: they are exported after the section was closed and its calls have
// ended, and are gone with arena.FreeSection or OpenSection.
//
// A page has records of one space. When the table is full (Options.EntriesMax, or no
// room in the arena), the oldest page of records of any section and space is dropped,
// when a space is (SpaceOptions.EntriesMax), the oldest of that space; and Since moves
// past them, of that section and space. There is no bound for single keys: it would
// take a count for each. A new process and a next owner take over the latest Since of
// all spaces of a section, and the records of each.
//
// Records that fail their check are dropped with all of their section, which starts
// empty and says why in the log.
//
// It has no clock: now is Unix milliseconds from the caller. It does not know leases
// or routes; its caller checks those after any wait.
package dedupe
