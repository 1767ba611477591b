package frame

import (
	"encoding/binary"
	"math/bits"
)

// The parts of protobuf's encoding that the hot messages need.
const (
	wireVarint = 0
	wireBytes  = 2
)

func appendTag(b []byte, field, wire int) []byte { return append(b, byte(field<<3|wire)) }

func appendUint(b []byte, field int, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(appendTag(b, field, wireVarint), v)
}

func appendString[S string | []byte](b []byte, field int, s S) []byte {
	b = binary.AppendUvarint(appendTag(b, field, wireBytes), uint64(len(s)))
	return append(b, s...)
}

// appendPacked appends a repeated number. Its length is found first: moving the
// numbers afterwards costs as much.
func appendPacked[N uint32 | uint64](b []byte, field int, vs []N) []byte {
	if len(vs) == 0 {
		return b
	}
	size := 0
	for _, v := range vs {
		size += varintLen(uint64(v))
	}
	b = binary.AppendUvarint(appendTag(b, field, wireBytes), uint64(size))
	for _, v := range vs {
		b = binary.AppendUvarint(b, uint64(v))
	}
	return b
}

func varintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// fields walks a message. It stops, with ok false, at what is not well-formed or
// not of the two wire types.
type fields struct {
	rest []byte
	ok   bool
	// Of the field that next found.
	field int
	wire  int
	num   uint64 // a varint's value
	bytes []byte // the content otherwise
}

// next finds the next field; false at the end, and when ok is.
func (f *fields) next() bool {
	if len(f.rest) == 0 {
		return false
	}
	tag := f.rest[0]
	f.field, f.wire, f.rest = int(tag>>3), int(tag&7), f.rest[1:]
	if tag >= 0x80 || f.field == 0 || f.wire != wireVarint && f.wire != wireBytes {
		f.ok = false
		return false
	}
	v, n := binary.Uvarint(f.rest)
	if n <= 0 {
		f.ok = false
		return false
	}
	f.rest = f.rest[n:]
	if f.wire == wireVarint {
		f.num = v
		return true
	}
	if v > uint64(len(f.rest)) {
		f.ok = false
		return false
	}
	f.bytes, f.rest = f.rest[:v:v], f.rest[v:]
	return true
}

// packed reads the numbers of a packed field into vs, which is empty, and for
// which it makes room once. A field that comes twice is left to the generated codec.
func packed[N uint32 | uint64](vs []N, b []byte) ([]N, bool) {
	if len(vs) > 0 {
		return vs, false
	}
	n := 0
	for _, c := range b {
		if c < 0x80 {
			n++
		}
	}
	if cap(vs) < n {
		vs = make([]N, 0, n)
	}
	for len(b) > 0 {
		v, n := binary.Uvarint(b)
		if n <= 0 || uint64(N(v)) != v {
			return vs, false
		}
		vs = append(vs, N(v))
		b = b[n:]
	}
	return vs, true
}
