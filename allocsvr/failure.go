package allocsvr

import (
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// Failure is why one key of a well-formed request got nothing. Nothing was issued for it.
type Failure struct {
	Code    seqpb.Code
	Message string
	// Owner is where to go instead, with CODE_NOT_OWNER, as far as this node knows.
	Owner string
	// Set that the owner is of; empty: this node's.
	Set string
	// Epoch of the section in that Set, where known.
	Epoch ids.Epoch
}

func (f *Failure) Error() string { return wire.CodeText(f.Code) + ": " + f.Message }

// SeqCode implements the convention of package wire.
func (f *Failure) SeqCode() seqpb.Code { return f.Code }

func failf(code seqpb.Code, format string, args ...any) *Failure {
	return &Failure{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Those without particulars are shared: a node that lost its lease says so many times a second.
var (
	errLeaseExpired = &Failure{Code: seqpb.Code_CODE_LEASE_EXPIRED, Message: "this node's lease has run out; it serves again once it reaches the store group's leader"}
	errExhausted    = &Failure{Code: seqpb.Code_CODE_EXHAUSTED, Message: fmt.Sprintf("the key has fewer numbers left below %d than were asked for", ids.MaxSeq)}
	errStopping     = &Failure{Code: seqpb.Code_CODE_UNAVAILABLE, Message: "this node is stopping"}
	errNotOwner     = &Failure{Code: seqpb.Code_CODE_NOT_OWNER, Message: "no owner of the key's section is known; fetch the routes and try again"}
	errMoving       = &Failure{Code: seqpb.Code_CODE_NOT_READY, Message: "the key's range is moving from one set to another; try again"}
	errBusyWaiting  = &Failure{Code: seqpb.Code_CODE_BUSY, Message: "too many requests wait for the store group; back off"}
	errCrowded      = &Failure{Code: seqpb.Code_CODE_BUSY, Message: "the arena is full and others wait for room too: raise the arena's size limit, let idle keys be handed back sooner, or add a node"}
	errWouldWait    = &Failure{Code: seqpb.Code_CODE_BUSY, Message: "the key needs a call that may wait"}
	errUntrusted    = &Failure{Code: seqpb.Code_CODE_UNAVAILABLE, Message: "the store group contradicts this node's memory of the key; see its log"}
)

// ErrWouldWait is what AllocReady and CurrentReady say of a key that only a call
// which may wait can answer. Nothing was issued for it.
var ErrWouldWait error = errWouldWait
