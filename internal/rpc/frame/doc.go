// Package frame is the form of lean frames: what the SDK and an AllocSvr say to
// each other on the hot path, instead of gRPC. It does no I/O of its own.
//
// A client opens with Preface and sends nothing more until the server has
// answered with Hello. A server that does not know lean frames closes the
// connection then, and has executed nothing. After that both sides send frames:
//
//	length  uint32  of the body
//	kind    uint8
//	zero    [3]uint8
//	arg     uint32  by the kind
//	number  uint64  of the request, chosen by the client
//	body    [length]byte
//
// all little-endian. Many requests may be under way; answers come in any order.
//
//	Alloc, Current  arg: ms that the caller will wait, 0 for no end; body: the
//	                request's protobuf message
//	Cancel          nobody waits for the answer to this number any more
//	Ping            is answered with Pong
//	Reply           body: the reply's protobuf message
//	Status          arg: a gRPC code, never OK; body: its message
//	Unprocessed     the request reached no handler and never will
//	Pong
//	End             the server's last frame: what has no answer by now never had
//	                a handler
//
// Invariants:
//   - A frame that breaks these rules is a *MalformedError, and the stream is lost
//     after it: nobody guesses where the next frame begins.
//   - A body's length is checked against a limit, and room is asked for, before
//     memory is taken. A body that is refused for its size is skipped, and costs
//     its request only.
//   - The messages are those of proto/ in protobuf's encoding. The four that travel
//     here have a codec by hand, which allocates no more than the keys need; the
//     generated one is its oracle, and takes over for the rare fields.
package frame
