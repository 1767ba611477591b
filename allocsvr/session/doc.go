// Package session is an AllocSvr's side of its session with the StoreSvr
// group: it registers or resumes, keeps the lease, and receives what the leader
// decides.
//
// machine.go decides, as a pure state machine: events in, actions out. loop.go
// carries the actions out. execute.go sends batches under the session's identity.
//
// Guarantees:
//   - The lease's deadline is the send time of an acknowledged heartbeat + TTL −
//     margin, the send time being read before the heartbeat leaves. Nothing
//     else ever moves it forward; losing the session sets it to 0.
//   - An identity (session, incarnation) is used only after the Handler has
//     persisted it (Handler.Welcomed returned).
//   - A broken stream does not cost a section: the next store is tried at once,
//     and the session resumed. Only the leader's word ends a session.
//   - Messages of a stream that was given up are not looked at.
//
// It does not know what a section holds, nor carries out a directive.
package session
