package dedupe

import (
	"errors"
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// ErrAborted: the original request gave up before it got numbers. Begin again.
var ErrAborted = errors.New("the request with this id got no numbers")

// ErrMoved: the section was closed and forgotten since Begin. Abort, and look for its owner.
var ErrMoved = errors.New("the section changed hands during the request")

// ErrNotReady: the section is not open here.
var ErrNotReady = errors.New("the section has no request-id window here")

// MismatchError: the request id was used for another count of numbers.
type MismatchError struct {
	Key       ids.Key
	Was, Want uint32
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("request id was used before with n=%d, now n=%d: use a new id for a new request", e.Was, e.Want)
}

// UntrustedError says why the records of a section were dropped.
type UntrustedError struct {
	Section ids.Section
	Page    int
	Entry   int // −1: the page's head
	Detail  string
}

func (e *UntrustedError) Error() string {
	if e.Entry < 0 {
		return fmt.Sprintf("request ids of section %d are not trusted: page %d: %s", e.Section, e.Page, e.Detail)
	}
	return fmt.Sprintf("request ids of section %d are not trusted: page %d, record %d: %s", e.Section, e.Page, e.Entry, e.Detail)
}

// DecodeError: an export that cannot be read.
type DecodeError struct{ Detail string }

func (e *DecodeError) Error() string { return "request-id window cannot be read: " + e.Detail }
