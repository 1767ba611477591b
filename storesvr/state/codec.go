package state

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// formatVersion is the first byte of everything encoded here. Decoders refuse
// others; a new format gets a new number and keeps the old decoder.
const formatVersion = 1

// CodecError says why bytes could not be decoded. The bytes are damaged, or of
// a newer program.
type CodecError struct {
	// What was being decoded: command, reply, meta, record, gaps.
	What string
	// Offset in bytes at which it went wrong.
	Offset  int
	Problem string
}

func (e *CodecError) Error() string {
	return fmt.Sprintf("decode %s: byte %d: %s", e.What, e.Offset, e.Problem)
}

// reader decodes with a sticky error: after the first one every read is zero.
type reader struct {
	what string
	b    []byte
	off  int
	err  *CodecError
}

func newReader(what string, b []byte) *reader {
	r := &reader{what: what, b: b}
	r.version()
	return r
}

func (r *reader) version() {
	if v := r.byte("format version"); r.err == nil && v != formatVersion {
		r.off = 0
		r.fail(fmt.Sprintf("format version %d, this program reads %d", v, formatVersion))
	}
}

func (r *reader) fail(problem string) {
	if r.err == nil {
		r.err = &CodecError{What: r.what, Offset: r.off, Problem: problem}
	}
}

// done answers the error, if any, and refuses trailing bytes.
func (r *reader) done() error {
	if r.err == nil && r.off != len(r.b) {
		r.fail(fmt.Sprintf("%d bytes too many", len(r.b)-r.off))
	}
	if r.err != nil {
		return r.err
	}
	return nil
}

func (r *reader) byte(field string) byte {
	if r.err != nil || r.off >= len(r.b) {
		r.fail(field + ": input ends")
		return 0
	}
	v := r.b[r.off]
	r.off++
	return v
}

func (r *reader) bool(field string) bool {
	v := r.byte(field)
	if v > 1 {
		r.fail(fmt.Sprintf("%s: %d is not a bool", field, v))
	}
	return v == 1
}

func (r *reader) uvarint(field string) uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b[r.off:])
	if n <= 0 {
		r.fail(field + ": not a number")
		return 0
	}
	r.off += n
	return v
}

func (r *reader) limited(field string, most uint64) uint64 {
	v := r.uvarint(field)
	if v > most {
		r.fail(fmt.Sprintf("%s: %d is over %d", field, v, most))
		return 0
	}
	return v
}

func (r *reader) seq(field string) ids.Seq { return ids.Seq(r.limited(field, uint64(ids.MaxSeq))) }
func (r *reader) epoch() ids.Epoch         { return ids.Epoch(r.uvarint("epoch")) }
func (r *reader) session() ids.SessionID   { return ids.SessionID(r.uvarint("session")) }
func (r *reader) section() ids.Section {
	return ids.Section(r.limited("section", math.MaxUint32))
}
func (r *reader) incarnation() ids.Incarnation {
	return ids.Incarnation(r.limited("incarnation", math.MaxUint32))
}

func (r *reader) fixed64(field string) uint64 {
	if r.err != nil || len(r.b)-r.off < 8 {
		r.fail(field + ": input ends")
		return 0
	}
	v := binary.BigEndian.Uint64(r.b[r.off:])
	r.off += 8
	return v
}

// count reads how many items follow, each of at least bytesMin bytes, so that
// a damaged count cannot make the caller allocate more than the input is worth.
func (r *reader) count(field string, bytesMin int) int {
	v := r.uvarint(field)
	if r.err == nil && v > uint64((len(r.b)-r.off)/bytesMin) {
		r.fail(fmt.Sprintf("%s: %d items do not fit in %d bytes", field, v, len(r.b)-r.off))
	}
	if r.err != nil {
		return 0
	}
	return int(v)
}

func (r *reader) text(field string) string {
	n := r.count(field, 1)
	if r.err != nil {
		return ""
	}
	v := string(r.b[r.off : r.off+n])
	r.off += n
	return v
}

// key reads a key. Positions of names are hashes, so they are kept at full
// width; those of uids are small.
func (r *reader) key(fingerprint bool) ids.Key {
	k := ids.Key{Space: ids.SpaceID(r.limited("space", math.MaxUint16))}
	if fingerprint {
		k.Hi, k.Lo = r.fixed64("key"), r.fixed64("key")
	} else {
		k.Hi = r.uvarint("key")
	}
	return k
}

func putKey(b []byte, k ids.Key) []byte {
	b = putUvarint(b, k.Space)
	if k.Lo != 0 {
		b = binary.BigEndian.AppendUint64(b, k.Hi)
		return binary.BigEndian.AppendUint64(b, k.Lo)
	}
	return putUvarint(b, k.Hi)
}

func putUvarint[T ~uint8 | ~uint16 | ~uint32 | ~uint64](b []byte, v T) []byte {
	return binary.AppendUvarint(b, uint64(v))
}

func putLen(b []byte, n int) []byte { return binary.AppendUvarint(b, uint64(n)) }

func putText(b []byte, t string) []byte { return append(putLen(b, len(t)), t...) }

func putBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// items reads n of something; none is nil.
func items[T any](r *reader, n int, read func() T) []T {
	if n == 0 {
		return nil
	}
	out := make([]T, 0, n)
	for range n {
		out = append(out, read())
		if r.err != nil {
			return nil
		}
	}
	return out
}
