// Package redis lets clients of Redis use an AllocSvr: INCR and INCRBY
// allocate, GET and MGET read.
//
// INCRBY key n allocates n consecutive numbers and answers the last of them, as
// Redis would; the caller's are the n up to it. SELECT picks the space: 0 is the
// first (uid), 1 the second (conv). Any node serves any key: what another node
// owns is forwarded.
//
// A few loops, each a goroutine with an epoll of its own, serve all connections
// (loop.go). A loop reads once from a connection that has something, carries out
// what came, and writes the replies once. What can be answered without a wait never
// leaves it, and allocates nothing. If a command has to wait, for the durable tier
// or for another node, the connection leaves its loop until a goroutine has waited
// (wait.go); what came behind is carried out after that.
//
// Allocations that arrive together on a connection are made in one go, so that
// keys that need the durable tier wait for it together, and those of other nodes
// are one call.
//
// Guarantees: no command makes a connection hold more than its limits (parser.go),
// whatever a peer sends, nor more unread replies than unsentMax and one more; from
// such a peer nothing is read. A connection that ends for what its peer sent, also
// for a command beyond the limits, has told it why: what is left of the command is
// read and thrown away, up to a bound (loop.leave). Commands of a connection are answered in order, and
// those on one key are carried out in order. No loop ever waits but for all of its
// connections. Stop answers what is under way.
//
// A connection is its loop's, but for its turn and its own settings while it waits:
// conn.waits says so, and only the loop sets it.
//
// It has no request ids and no way to declare a hole: a client that repeats an
// INCR after a lost connection may leave one. Use the gRPC service for both.
package redis
