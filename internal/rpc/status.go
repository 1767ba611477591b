package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cloudwego/kitex/pkg/kerrors"
	"github.com/cloudwego/kitex/pkg/remote"
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/codes"
	"github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/status"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// coded is an error of a handler that knows its code. Whole-request errors are
// this; what goes wrong with single keys is data in the reply.
type coded interface {
	error
	SeqCode() seqpb.Code
}

// statusOf is which gRPC code stands for a seqpb.Code. Several of ours share
// one; the message starts with the exact name, for our own clients and for people.
var statusOf = map[seqpb.Code]codes.Code{
	seqpb.Code_CODE_NOT_OWNER:        codes.FailedPrecondition,
	seqpb.Code_CODE_STALE_EPOCH:      codes.Aborted,
	seqpb.Code_CODE_LEASE_EXPIRED:    codes.Unavailable,
	seqpb.Code_CODE_BUSY:             codes.ResourceExhausted,
	seqpb.Code_CODE_NOT_READY:        codes.Unavailable,
	seqpb.Code_CODE_UNKNOWN_RESULT:   codes.Unknown,
	seqpb.Code_CODE_INVALID_ARGUMENT: codes.InvalidArgument,
	seqpb.Code_CODE_EXHAUSTED:        codes.OutOfRange,
	seqpb.Code_CODE_UNAUTHORIZED:     codes.Unauthenticated,
	seqpb.Code_CODE_UNAVAILABLE:      codes.Unavailable,
}

const codePrefix = "CODE_"

const panicText = "the handler panicked; the server's log has the stack"

// encodeStatus makes what a handler's error is on the wire.
func encodeStatus(err error) *status.Status {
	var c coded
	var de *kerrors.DetailedError
	if errors.As(err, &de) && de.Is(kerrors.ErrBiz) && de.Unwrap() != nil {
		err = de.Unwrap() // what the handler returned, without "biz error"
	}
	switch {
	case errors.As(err, &c):
		// The code goes in front anyway; a reader need not see it twice.
		return codeStatus(c.SeqCode(), strings.TrimPrefix(err.Error(), wire.CodeText(c.SeqCode())+": "))
	case errors.Is(err, ids.ErrBadKey):
		return codeStatus(seqpb.Code_CODE_INVALID_ARGUMENT, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.New(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, context.Canceled):
		return status.New(codes.Canceled, err.Error())
	case errors.As(err, &de) && de.Is(kerrors.ErrPanic):
		return status.New(codes.Internal, panicText)
	}
	if st, ok := status.FromError(err); ok {
		return st
	}
	var te *remote.TransError
	if errors.As(err, &te) {
		switch te.TypeID() {
		case remote.UnknownMethod, remote.UnknownService:
			return status.New(codes.Unimplemented, te.Error())
		}
	}
	return status.New(codes.Internal, err.Error())
}

func codeStatus(c seqpb.Code, text string) *status.Status {
	gc, ok := statusOf[c]
	if !ok {
		gc = codes.Internal
	}
	return status.New(gc, strings.TrimPrefix(c.String(), codePrefix)+": "+text)
}

// codedError is an Error to be returned by handlers of this package's users.
type codedError struct {
	code seqpb.Code
	text string
}

func (e *codedError) Error() string       { return e.text }
func (e *codedError) SeqCode() seqpb.Code { return e.code }

// Errorf makes a whole-request error with a code, for a handler to return.
func Errorf(code seqpb.Code, format string, a ...any) error {
	return &codedError{code: code, text: fmt.Sprintf(format, a...)}
}

// decodeStatus splits a status message into our code and the text, if a handler of ours made it.
func decodeStatus(st *status.Status) (seqpb.Code, string, bool) {
	name, text, ok := strings.Cut(st.Message(), ": ")
	if !ok {
		return 0, "", false
	}
	v, ok := seqpb.Code_value[codePrefix+name]
	if !ok || statusOf[seqpb.Code(v)] != st.Code() {
		return 0, "", false
	}
	return seqpb.Code(v), text, true
}

// Error is what went wrong with a call.
type Error struct {
	// Method as in "Alloc"; Addr is who was called.
	Method, Addr string
	// Code of the refusal when the server answered; CODE_UNAVAILABLE when the
	// call was not sent, CODE_UNKNOWN_RESULT when nobody knows.
	Code seqpb.Code
	// NotSent: the call was surely not executed; calling elsewhere is safe.
	NotSent bool
	// Answered: the server refused the call; it executed nothing unless Code is CODE_UNKNOWN_RESULT.
	Answered bool
	// Text is the message without the code.
	Text string
	err  error
}

func (e *Error) Error() string {
	switch {
	case e.Answered:
		return fmt.Sprintf("%s refused %s: %s", e.Addr, e.Method, e.Text)
	case e.NotSent:
		return fmt.Sprintf("%s at %s was not sent: %s", e.Method, e.Addr, e.Text)
	}
	return fmt.Sprintf("%s at %s: outcome unknown: %s", e.Method, e.Addr, e.Text)
}

func (e *Error) Unwrap() error { return e.err }

// SeqCode makes an Error forwardable: a handler may return it as its own.
func (e *Error) SeqCode() seqpb.Code { return e.Code }

// NotSent reports whether err says that the call was surely not executed.
func NotSent(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.NotSent
}

// The texts by which Kitex's HTTP/2 client says that a stream never reached a
// handler (grpc-go's Unprocessed); it exports no other sign.
var unprocessed = []string{
	"the connection is draining",
	"the stream is rejected because server is draining the connection",
	// Said when the request was to be written, and so of one that was not.
	"the stream is done",
	reset + " with error code: REFUSED_STREAM",
}

// reset begins what Kitex says of a reset stream. It derives the status from the
// reset's code, so that one might look like an answer of the server's; but a
// stream can be reset at any time, also by a proxy, and also after it was served.
const reset = "stream terminated by RST_STREAM"

// classify makes an *Error of what Kitex returned. ctxErr is the call's
// context error, if it had ended when the call came back.
func classify(method, addr string, err, ctxErr error) error {
	if err == nil {
		return nil
	}
	e := &Error{Method: method, Addr: addr, Code: seqpb.Code_CODE_UNKNOWN_RESULT, Text: err.Error(), err: err}
	st, isStatus := status.FromError(err)
	if isStatus {
		e.Text = strings.TrimSuffix(st.Message(), " [biz error]") // by which Kitex marks what a handler returned
	}
	if ctxErr == nil && errors.Is(err, kerrors.ErrRPCTimeout) {
		ctxErr = context.DeadlineExceeded // Kitex's own timer was a hair faster than the context's
	}
	if ctxErr != nil {
		// Even a failed dial may yet be followed by a sending: the worker that dials outlives the call.
		e.Text, e.err = ctxErr.Error(), errors.Join(ctxErr, err)
		return e
	}
	if errors.Is(err, kerrors.ErrGetConnection) {
		e.NotSent, e.Code, e.Text = true, seqpb.Code_CODE_UNAVAILABLE, dialText(err)
		return e
	}
	if !isStatus {
		return e
	}
	if _, _, ours := decodeStatus(st); ours {
		e.answer(st)
		return e
	}
	for _, text := range unprocessed {
		if strings.HasPrefix(st.Message(), text) {
			e.NotSent, e.Code = true, seqpb.Code_CODE_UNAVAILABLE
			return e
		}
	}
	if !strings.HasPrefix(st.Message(), reset) {
		e.answer(st)
	}
	return e
}

// answer takes over what a server's status says.
func (e *Error) answer(st *status.Status) {
	if code, text, ok := decodeStatus(st); ok {
		e.Answered, e.Code, e.Text = true, code, text
		return
	}
	switch st.Code() {
	case codes.Unimplemented, codes.InvalidArgument:
		e.Answered, e.Code = true, seqpb.Code_CODE_INVALID_ARGUMENT
	case codes.Unauthenticated, codes.PermissionDenied:
		e.Answered, e.Code = true, seqpb.Code_CODE_UNAUTHORIZED
	case codes.ResourceExhausted:
		e.Answered, e.Code = true, seqpb.Code_CODE_BUSY
	case codes.DeadlineExceeded:
		e.err = errors.Join(context.DeadlineExceeded, e.err)
	}
}

// dialText drops Kitex's wrapping of a failed dial, which says less than the cause.
func dialText(err error) string {
	var de *kerrors.DetailedError
	for errors.As(err, &de) && de.Unwrap() != nil {
		err = de.Unwrap()
		de = nil
	}
	return err.Error()
}
