// Package redis lets clients of Redis use an AllocSvr: INCR and INCRBY
// allocate, GET and MGET read.
//
// INCRBY key n allocates n consecutive numbers and answers the last of them, as
// Redis would; the caller's are the n up to it. SELECT picks the space: 0 is the
// first (uid), 1 the second (conv). Any node serves any key: what another node
// owns is forwarded.
//
// Allocations that arrive together on a connection are made in one go, so that
// keys that need the durable tier wait for it together.
//
// Guarantees: no command makes a connection hold more than its limits
// (reader.go), whatever a peer sends. Commands of a connection are answered in
// order, and those on one key are carried out in order.
//
// It has no request ids and no way to declare a hole: a client that repeats an
// INCR after a lost connection may leave one. Use the gRPC service for both.
package redis
