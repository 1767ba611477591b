package sets

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// codecVersion is the first byte of everything encoded here. A new format gets a
// new number and keeps the old decoder.
const codecVersion = 1

// textBytesMax is the longest text that is read; a Set may have been founded
// under a name longer than NameBytesMax.
const textBytesMax = 1 << 10

// CodecError says why bytes could not be decoded: they are damaged, or of a newer program.
type CodecError struct {
	// What was being decoded, and the offset in bytes at which it went wrong.
	What    string
	Offset  int
	Problem string
}

func (e *CodecError) Error() string {
	return fmt.Sprintf("decode %s: byte %d: %s", e.What, e.Offset, e.Problem)
}

// EncodePublished appends the encoding of p to dst.
func EncodePublished(dst []byte, p *Published) []byte {
	return putPublished(append(dst, codecVersion), p)
}

// DecodePublished reads what EncodePublished wrote, and refuses what is not
// valid; its error is a *CodecError.
func DecodePublished(b []byte) (Published, error) {
	r := newReader("set map", b)
	p := r.published()
	r.end()
	if r.err == nil {
		if err := p.Validate(); err != nil {
			r.fail(err.Error())
		}
	}
	if r.err != nil {
		return Published{}, r.err
	}
	return p, nil
}

// EncodeDirectory appends the encoding of d to dst.
func EncodeDirectory(dst []byte, d *Directory) []byte {
	dst = putPublished(append(dst, codecVersion), &d.Published)
	dst = binary.AppendUvarint(dst, uint64(d.LastMove))
	dst = binary.AppendUvarint(dst, uint64(len(d.Moves)))
	for i := range d.Moves {
		dst = putMove(dst, &d.Moves[i])
	}
	return dst
}

// DecodeDirectory reads what EncodeDirectory wrote, and refuses what is not
// valid; its error is a *CodecError.
func DecodeDirectory(b []byte) (*Directory, error) {
	r := newReader("directory", b)
	d := &Directory{Published: r.published(), LastMove: MoveID(r.uvarint("last move"))}
	for range r.count("moves", moveBytesMin, RunningMax+EndedMax) {
		d.Moves = append(d.Moves, r.move())
	}
	r.end()
	if r.err == nil {
		if err := d.Check(); err != nil {
			r.fail(err.Error())
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	return d, nil
}

// The fewest bytes that an item takes, for bounding counts.
const (
	rangeBytesMin = 3
	entryBytesMin = rangeBytesMin + 1
	infoBytesMin  = 2
	moveBytesMin  = 16
)

func putPublished(dst []byte, p *Published) []byte {
	dst = binary.AppendUvarint(dst, p.Map.Version)
	dst = putText(dst, p.Home)
	dst = binary.AppendUvarint(dst, uint64(len(p.Sets)))
	index := make(map[string]uint64, len(p.Sets))
	for i, s := range p.Sets {
		index[s.Name] = uint64(i) + 1
		dst = putText(dst, s.Name)
		dst = binary.AppendUvarint(dst, uint64(len(s.Stores)))
		for _, a := range s.Stores {
			dst = putText(dst, a)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(p.Map.Entries)))
	for _, e := range p.Map.Entries {
		// 0 is Unassigned.
		dst = binary.AppendUvarint(AppendRange(dst, e.Range), index[e.Set])
	}
	return dst
}

func (r *reader) published() Published {
	p := Published{Map: Map{Version: r.uvarint("map version")}, Home: r.text("home")}
	for range r.count("sets", infoBytesMin, SetsMax) {
		s := SetInfo{Name: r.text("set")}
		for range r.count("stores", 1, StoresMax) {
			s.Stores = append(s.Stores, r.text("store"))
		}
		p.Sets = append(p.Sets, s)
		p.Map.Sets = append(p.Map.Sets, s.Name)
	}
	for range r.count("entries", entryBytesMin, EntriesMax) {
		e := Entry{Range: r.rangeOf()}
		switch i := r.uvarint("owner"); {
		case i > uint64(len(p.Sets)):
			r.fail(fmt.Sprintf("owner %d of %d", i, len(p.Sets)))
		case i > 0:
			e.Set = p.Sets[i-1].Name
		}
		p.Map.Entries = append(p.Map.Entries, e)
	}
	return p
}

func putMove(dst []byte, m *Move) []byte {
	dst = binary.AppendUvarint(dst, uint64(m.ID))
	dst = putText(putText(dst, m.From), m.To)
	dst = binary.AppendUvarint(dst, uint64(len(m.Ranges)))
	for _, r := range m.Ranges {
		dst = AppendRange(dst, r)
	}
	dst = putText(append(dst, byte(m.State)), m.Reason)
	dst = binary.AppendUvarint(dst, uint64(m.At))
	dst = binary.AppendUvarint(dst, uint64(m.Next))
	dst = binary.AppendUvarint(dst, uint64(m.Part))
	dst = append(AppendRange(dst, m.PartRange), byte(m.PartState))
	dst = binary.AppendUvarint(dst, uint64(m.Parts))
	dst = binary.AppendUvarint(dst, m.Keys)
	dst = binary.BigEndian.AppendUint64(dst, m.Checksum)
	dst = putFrozen(dst, &m.Frozen)
	dst = binary.AppendVarint(dst, m.StartedMS)
	return binary.AppendVarint(dst, m.EndedMS)
}

func (r *reader) move() Move {
	m := Move{ID: MoveID(r.uvarint("move")), From: r.text("from"), To: r.text("to")}
	for range r.count("ranges", rangeBytesMin, MoveRangesMax) {
		m.Ranges = append(m.Ranges, r.rangeOf())
	}
	m.State, m.Reason = MoveState(r.byte("state")), r.text("reason")
	m.At, m.Next = int(r.limited("at", MoveRangesMax)), ids.Position(r.uvarint("next"))
	m.Part, m.PartRange = Part(r.limited("part", math.MaxUint32)), r.rangeOf()
	m.PartState, m.Parts = PartState(r.byte("part state")), uint32(r.limited("parts", math.MaxUint32))
	m.Keys, m.Checksum = r.uvarint("keys"), r.fixed64("checksum")
	m.Frozen = r.frozen()
	m.StartedMS, m.EndedMS = r.varint("started"), r.varint("ended")
	return m
}

// putFrozen writes the buckets up to the last one in use.
func putFrozen(dst []byte, f *Frozen) []byte {
	n := len(f.Counts)
	for n > 0 && f.Counts[n-1] == 0 {
		n--
	}
	dst = binary.AppendUvarint(dst, uint64(f.MaxUS))
	dst = binary.AppendUvarint(dst, uint64(n))
	for _, c := range f.Counts[:n] {
		dst = binary.AppendUvarint(dst, uint64(c))
	}
	return dst
}

func (r *reader) frozen() Frozen {
	f := Frozen{MaxUS: uint32(r.limited("longest freeze", math.MaxUint32))}
	for i := range r.count("freezes", 1, frozenBuckets) {
		f.Counts[i] = uint32(r.limited("freezes", math.MaxUint32))
	}
	return f
}

// AppendRange appends the encoding of a range; see CutRange.
func AppendRange(dst []byte, r Range) []byte {
	dst = binary.AppendUvarint(dst, uint64(r.Space))
	dst = binary.AppendUvarint(dst, uint64(r.Lo))
	return binary.AppendUvarint(dst, uint64(r.Last-r.Lo))
}

// CutRange reads what AppendRange wrote and answers how many bytes it took; 0 if there is none.
func CutRange(b []byte) (Range, int) {
	r := reader{b: b}
	rg := r.rangeOf()
	if r.err != nil {
		return Range{}, 0
	}
	return rg, r.off
}

func (r *reader) rangeOf() Range {
	rg := Range{Space: ids.SpaceID(r.limited("space", math.MaxUint16)), Lo: ids.Position(r.uvarint("range"))}
	rg.Last = rg.Lo + ids.Position(r.limited("range", math.MaxUint64-uint64(rg.Lo)))
	return rg
}

func putText(dst []byte, t string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(t))), t...)
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
	if v := r.byte("format version"); r.err == nil && v != codecVersion {
		r.off = 0
		r.fail(fmt.Sprintf("format version %d, this program reads %d", v, codecVersion))
	}
	return r
}

func (r *reader) fail(problem string) {
	if r.err == nil {
		r.err = &CodecError{What: r.what, Offset: r.off, Problem: problem}
	}
}

func (r *reader) end() {
	if r.err == nil && r.off != len(r.b) {
		r.fail(fmt.Sprintf("%d bytes too many", len(r.b)-r.off))
	}
}

func (r *reader) byte(field string) byte {
	if r.err != nil || r.off >= len(r.b) {
		r.fail(field + ": input ends")
		return 0
	}
	r.off++
	return r.b[r.off-1]
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

func (r *reader) varint(field string) int64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Varint(r.b[r.off:])
	if n <= 0 {
		r.fail(field + ": not a number")
		return 0
	}
	r.off += n
	return v
}

func (r *reader) fixed64(field string) uint64 {
	if r.err != nil || len(r.b)-r.off < 8 {
		r.fail(field + ": input ends")
		return 0
	}
	r.off += 8
	return binary.BigEndian.Uint64(r.b[r.off-8:])
}

func (r *reader) limited(field string, most uint64) uint64 {
	v := r.uvarint(field)
	if v > most {
		r.fail(fmt.Sprintf("%s: %d is over %d", field, v, most))
		return 0
	}
	return v
}

// count reads how many items follow: at most `most`, and each of at least
// bytesMin bytes, so that a damaged count cannot make the caller allocate more
// than the input is worth.
func (r *reader) count(field string, bytesMin int, most uint64) int {
	v := r.limited(field, most)
	if r.err == nil && v > uint64((len(r.b)-r.off)/bytesMin) {
		r.fail(fmt.Sprintf("%s: %d items do not fit in %d bytes", field, v, len(r.b)-r.off))
	}
	if r.err != nil {
		return 0
	}
	return int(v)
}

func (r *reader) text(field string) string {
	n := r.count(field, 1, textBytesMax)
	r.off += n
	return string(r.b[r.off-n : r.off])
}
