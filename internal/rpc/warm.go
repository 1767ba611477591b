package rpc

import "github.com/seqsvr/seqsvr/proto/gen/seqpb"

// message is what generated types do.
type message interface {
	Marshal([]byte) ([]byte, error)
	Unmarshal([]byte) error
}

// Warm has the codec learn what it learns of a type at its first message: it
// copies a table of 1.5 MB for each. A process that has to serve soon does so for
// the types that it needs first, in the order in which it needs them, beside the
// rest of its start.
func Warm(types ...message) {
	for _, m := range types {
		// An empty message is a valid one; what matters is that it was looked at.
		_ = m.Unmarshal(nil)
	}
}

// WarmSession are the types that an AllocSvr needs until it serves, and those of
// the first call to it.
func WarmSession() {
	Warm(&seqpb.SessionUp{}, &seqpb.SessionDown{}, &seqpb.AllocRequest{}, &seqpb.AllocReply{})
}
