package frame

import (
	"encoding/binary"
	"fmt"
)

// Preface opens a connection of lean frames. It is as long as what a server
// reads to tell its protocols apart, and begins like none of the others: not
// like HTTP/2's, nor with a length that TTHeader or framed Thrift would take.
const Preface = "seqlean\x01"

// Hello is the server's answer.
const Hello = "seqlean\x01"

// HeadBytes is the length of what stands before a body.
const HeadBytes = 20

// Kind of a frame.
type Kind uint8

// The client's kinds have no 0x80, the server's do.
const (
	Alloc   Kind = 0x01
	Current Kind = 0x02
	Cancel  Kind = 0x03
	Ping    Kind = 0x04

	Reply       Kind = 0x81
	Status      Kind = 0x82
	Unprocessed Kind = 0x83
	Pong        Kind = 0x84
	End         Kind = 0x85
)

// FromServer tells whether it is a server that sends this kind.
func (k Kind) FromServer() bool { return k&0x80 != 0 }

func (k Kind) known() bool { return k >= Alloc && k <= Ping || k >= Reply && k <= End }

// hasBody tells whether frames of this kind may have one.
func (k Kind) hasBody() bool { return k == Alloc || k == Current || k == Reply || k == Status }

// Head is what stands before a body.
type Head struct {
	Len    uint32
	Kind   Kind
	Arg    uint32
	Number uint64
}

// MalformedError: the peer does not keep to the form; the connection is of no more use.
type MalformedError struct{ Reason string }

func (e *MalformedError) Error() string { return "malformed lean frame: " + e.Reason }

// Begin appends the head of a frame whose body is appended next; Finish ends it.
func Begin(b []byte, k Kind, arg uint32, number uint64) []byte {
	b = append(b, 0, 0, 0, 0, byte(k), 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, arg)
	return binary.LittleEndian.AppendUint64(b, number)
}

// Finish sets the length of the frame that was begun at b[at:].
func Finish(b []byte, at int) {
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-HeadBytes))
}

// Append appends a frame without a body.
func Append(b []byte, k Kind, number uint64) []byte { return Begin(b, k, 0, number) }

// ParseHead reads a head; b has at least HeadBytes.
func ParseHead(b []byte) (Head, error) {
	_ = b[HeadBytes-1]
	h := Head{
		Len: binary.LittleEndian.Uint32(b), Kind: Kind(b[4]),
		Arg: binary.LittleEndian.Uint32(b[8:]), Number: binary.LittleEndian.Uint64(b[12:]),
	}
	switch {
	case !h.Kind.known():
		return h, &MalformedError{fmt.Sprintf("kind %#x is unknown", b[4])}
	case b[5]|b[6]|b[7] != 0:
		return h, &MalformedError{"reserved bytes are not zero"}
	case h.Len != 0 && !h.Kind.hasBody():
		return h, &MalformedError{fmt.Sprintf("kind %#x with a body of %d bytes", b[4], h.Len)}
	}
	return h, nil
}
