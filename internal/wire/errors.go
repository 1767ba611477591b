package wire

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// MalformedError: a message breaks its rules. Nothing of it was taken.
type MalformedError struct{ Field, Reason string }

func (e *MalformedError) Error() string {
	return fmt.Sprintf("malformed message: %s: %s", e.Field, e.Reason)
}

// SeqCode makes a handler that returns the error answer InvalidArgument.
func (e *MalformedError) SeqCode() seqpb.Code { return seqpb.Code_CODE_INVALID_ARGUMENT }

func malformed(field, format string, args ...any) error {
	return &MalformedError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// Refused is a whole request that a server refused. It executed nothing of it,
// unless Code is CODE_UNKNOWN_RESULT.
type Refused struct {
	Code    seqpb.Code
	Message string
}

func (e *Refused) Error() string       { return CodeText(e.Code) + ": " + e.Message }
func (e *Refused) SeqCode() seqpb.Code { return e.Code }

// Refusef makes a Refused.
func Refusef(code seqpb.Code, format string, args ...any) error {
	return &Refused{Code: code, Message: fmt.Sprintf(format, args...)}
}

// NotSent wraps a transport's error when the request surely reached no
// handler: the dial failed, or the peer said that it took nothing.
type NotSent struct{ Err error }

func (e *NotSent) Error() string       { return "not sent: " + e.Err.Error() }
func (e *NotSent) Unwrap() error       { return e.Err }
func (e *NotSent) SeqCode() seqpb.Code { return seqpb.Code_CODE_UNAVAILABLE }

// CodeOf is the code that an error says; CODE_UNKNOWN_RESULT if it says none.
func CodeOf(err error) seqpb.Code {
	var coded interface {
		error
		SeqCode() seqpb.Code
	}
	if errors.As(err, &coded) {
		return coded.SeqCode()
	}
	return seqpb.Code_CODE_UNKNOWN_RESULT
}

// CodeText is the code for people: CODE_NOT_OWNER is "not owner".
func CodeText(c seqpb.Code) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(c.String(), "CODE_"), "_", " "))
}
