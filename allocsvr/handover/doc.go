// Package handover takes the request-id window of a section along in a planned
// move: straight from the last owner to the next, beside the log.
//
// The last owner closes the section, so that its window is final, sends it (Carrier)
// and only then releases the section. The next owner keeps it (Stage) until it opens
// the section, which it does when the release has assigned it.
//
// Guarantees:
//   - A window is imported whole or not at all: all parts of one taking, each with
//     its checksum, at exactly the epoch that they were sent for. Otherwise the new
//     owner's window begins with it, and says so.
//   - A move waits for a window no longer than patience and some more per megabyte;
//     then it goes on without. If another next owner is planned meanwhile, it turns to
//     that one, with patienceAnew. A next owner that did not answer is left alone
//     for a while, and longer each time.
//   - What a next owner keeps is bounded (stageMax) and is forgotten after keepFor.
//   - Sections that have no window cost nothing.
//
// If the section ends elsewhere than planned, what was sent there is never used: the
// epoch at which it may be opened is another session's, and there is no second
// section at that epoch.
package handover
