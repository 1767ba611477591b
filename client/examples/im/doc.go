// Package im is the message loop of a chat back end on top of the SDK, small
// enough to copy: a Sender that numbers and stores messages, and a Device that
// shows each message once and knows what it lacks. Memory is a Store to try it with.
//
// # What holds
//
//   - A message that is sent again, by whoever and after whichever failure, is
//     stored once.
//   - A device shows each stored message once. Pushes may come in any order,
//     twice or never; what they leave out is read from the store.
//   - A device says that a message is missing only if its number was issued to a
//     message that was stored, or was said to be, and the store has it no more.
//     Numbers that nobody got are never taken for messages.
//   - What was lost is found by the next message of its conversation at the
//     latest, with one exception, which no numbering can avoid: within a declared
//     hole a message leaves a trace only if the one after it is there.
//
// # How a number may come to have no message
//
//	declared   a machine was lost, and with it up to a step of each of its keys:
//	           the first message after it carries the Hole, and Gaps has it
//	under way  its sender has it and has not stored the message yet: the draft
//	           is among the store's pending ones
//	void       its message was found to be stored under another number
//	stray      an earlier attempt took it, its answer was lost, and so was the
//	           window that would have given it again: the message, stored under
//	           another number, says where it may be
//	missing    none of these: a message was lost, either the one that had this
//	           number or the one that would have said that it is a stray
//
// # Why no clock decides
//
// A device that finds numbers without messages asks which drafts are pending, waits
// until just those are not any more, and looks again. Whoever took a number below
// one that is already there has noted his draft before he took it, and notes its
// end together with the message. So what is absent then is not late. A draft of a
// process that died is finished by another one (Sender.Resume), not by a time-out.
//
// # What it does not do
//
// It has no accounts, delivers no push and draws nothing. One process at a time
// works on a draft; usually that is who holds the connection of its author.
package im
