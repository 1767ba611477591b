// Package rpc is where Kitex is: the server that every process runs on its one
// RPC port, and the clients that dial it.
//
// The server speaks standard gRPC and Kitex's TTHeader on the same port, and with
// the SDK also lean frames: the hot calls, Alloc and Current, in a form that costs
// a quarter of what gRPC does (package frame; frames_serve.go and frames_client.go
// are its two ends). An older peer on either side makes them gRPC again. The server
// runs on plain Go connections, not netpoll: netpoll reads ahead of its handlers
// without bound (it took 300 MB of garbage behind one blocked handler), and a
// connection here must cost no more than what it was allowed to send (limit.go
// says what that is).
//
// Guarantees:
//   - A message above the limit is refused when its length is read, before
//     memory for it is taken; garbage, truncated frames and unknown methods cost
//     their connection or their call, never the process.
//   - Stop loses no call that had reached a handler: clients are told to go
//     (GOAWAY; in lean frames, End), calls in flight are answered, streams are
//     cancelled.
//   - A client's Error says whether the call was surely not executed (NotSent),
//     answered with a refusal (Answered), or has an unknown outcome (neither).
//
// And of lean frames:
//   - Nothing of a call is sent before the server has greeted, so a server that
//     does not know them has executed nothing.
//   - A call that waits holds up no other: before it waits, another goroutine reads
//     on. At most 1024 of a connection wait; then nothing of it is read.
//   - Who calls never waits for the peer to take what is written, and ends with its
//     context.
//
// It does not retry, balance, resolve names beyond a dial, or hold a policy:
// that is the SDK's business (package client) and the tiers'.
package rpc
