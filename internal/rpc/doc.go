// Package rpc is where Kitex is: the server that every process runs on its one
// RPC port, and the clients that dial it.
//
// The server speaks standard gRPC and Kitex's TTHeader on the same port. It
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
//     (GOAWAY), calls in flight are answered, streams are cancelled.
//   - A client's Error says whether the call was surely not executed (NotSent),
//     answered with a refusal (Answered), or has an unknown outcome (neither).
//
// It does not retry, balance, resolve names beyond a dial, or hold a policy:
// that is the SDK's business (package client) and the tiers'.
package rpc
