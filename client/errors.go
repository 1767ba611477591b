package client

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// Kind says what went wrong, and so what the caller can do; doc.go has the table.
// A Kind is an error itself, so that errors.Is(err, ErrBusy) works.
type Kind uint8

// The values are those of the protocol's codes.
const (
	KindNotOwner        = Kind(seqpb.Code_CODE_NOT_OWNER)
	KindStaleEpoch      = Kind(seqpb.Code_CODE_STALE_EPOCH)
	KindLeaseExpired    = Kind(seqpb.Code_CODE_LEASE_EXPIRED)
	KindBusy            = Kind(seqpb.Code_CODE_BUSY)
	KindNotReady        = Kind(seqpb.Code_CODE_NOT_READY)
	KindUnknownResult   = Kind(seqpb.Code_CODE_UNKNOWN_RESULT)
	KindInvalidArgument = Kind(seqpb.Code_CODE_INVALID_ARGUMENT)
	KindExhausted       = Kind(seqpb.Code_CODE_EXHAUSTED)
	KindUnauthorized    = Kind(seqpb.Code_CODE_UNAUTHORIZED)
	KindUnavailable     = Kind(seqpb.Code_CODE_UNAVAILABLE)
)

// For errors.Is.
var (
	ErrNotOwner        error = KindNotOwner
	ErrStaleEpoch      error = KindStaleEpoch
	ErrLeaseExpired    error = KindLeaseExpired
	ErrBusy            error = KindBusy
	ErrNotReady        error = KindNotReady
	ErrUnknownResult   error = KindUnknownResult
	ErrInvalidArgument error = KindInvalidArgument
	ErrExhausted       error = KindExhausted
	ErrUnauthorized    error = KindUnauthorized
	ErrUnavailable     error = KindUnavailable
)

// ErrClosed is wrapped by calls on a closed Client, with KindUnavailable.
var ErrClosed = errors.New("the client is closed")

func (k Kind) Error() string { return wire.CodeText(seqpb.Code(k)) }

// outcome is what became of a call that was to allocate, for the error's text.
func (k Kind) outcome() string {
	switch {
	case k == KindUnknownResult:
		return "it may or may not have been allocated; "
	case k.remedy() != unknownKind:
		return "nothing was allocated; "
	}
	return ""
}

// remedy is what the caller can do.
func (k Kind) remedy() string {
	switch k {
	case KindNotOwner, KindStaleEpoch, KindLeaseExpired, KindNotReady, KindUnavailable:
		return "try again, with a longer deadline if it lasts"
	case KindBusy:
		return "try again later, or with fewer calls at once"
	case KindUnknownResult:
		return "use a request id to be able to repeat such a call"
	case KindInvalidArgument:
		return "correct the call"
	case KindExhausted:
		return "the key has no numbers left"
	case KindUnauthorized:
		return "check the credentials"
	}
	return unknownKind
}

const unknownKind = "this client does not know the error; a newer one might"

// Error is what a call fails with, for one key. errors.Is finds its kind's
// sentinel (ErrBusy …) and what it wraps (context.DeadlineExceeded …).
type Error struct {
	Kind Kind
	// Key is zero when the failure is not of one key.
	Key Key
	// Owner is the address that answered or was called last, if any.
	Owner string
	// Epoch of the key's section as last heard of, with the routing kinds.
	Epoch uint64
	// Err is the cause.
	Err error
	// reads: the call was not to allocate anything, so that nothing need be said of it.
	reads bool
	// watch: it is a watch that goes on.
	watch bool
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Key != (Key{}) {
		fmt.Fprintf(&b, "key %s: ", e.Key)
	}
	b.WriteString(e.Kind.Error())
	if e.Owner != "" {
		fmt.Fprintf(&b, " at %s", e.Owner)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %s", e.cause())
	}
	b.WriteString(": ")
	if e.watch {
		b.WriteString("it goes on being tried")
		return b.String()
	}
	if !e.reads {
		b.WriteString(e.Kind.outcome())
	}
	b.WriteString(e.Kind.remedy())
	return b.String()
}

// cause is the text of Err, without the kind if it only repeats it.
func (e *Error) cause() string {
	//nolint:errorlint // only the outermost error repeats the kind
	if r, ok := e.Err.(*wire.Refused); ok && Kind(r.Code) == e.Kind {
		return r.Message
	}
	return e.Err.Error()
}

// Unwrap gives the kind, as a sentinel, and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// PartialError is returned with the results of AllocMany and CurrentMany when
// some of the keys failed; each result has its own Err.
type PartialError struct {
	Failed, Total int
	// First is the error of the first key that failed.
	First error
}

func (e *PartialError) Error() string {
	if e.Failed == 1 && e.Total == 1 {
		return e.First.Error()
	}
	return fmt.Sprintf("%d of %d keys failed, the first: %v", e.Failed, e.Total, e.First)
}

func (e *PartialError) Unwrap() error { return e.First }

func invalid(k Key, format string, args ...any) error {
	return &Error{Kind: KindInvalidArgument, Key: k, Err: fmt.Errorf(format, args...)}
}

// kindOfRead is the kind of a code that a call heard which was to read: it has no
// result that could be lost.
func kindOfRead(code seqpb.Code) Kind {
	if code == seqpb.Code_CODE_UNKNOWN_RESULT {
		return KindUnavailable
	}
	return Kind(code)
}

// ofRead marks the error of a call that was to read.
func ofRead(err error) error {
	//nolint:errorlint // one of this call, so that nothing is around it
	if e, ok := err.(*Error); ok {
		e.reads = true
	}
	return err
}

// both joins two errors in one line; either may be nil.
func both(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return fmt.Errorf("%w; %w", a, b)
}
