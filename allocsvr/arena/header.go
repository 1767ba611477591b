package arena

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc64"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// FormatVersion of the file. Another version is never read: the format may change freely.
const FormatVersion = 1

const magic uint64 = 0x314152455145_53 // "SEQERA1" in memory order

// Fixed places in the header, in words. The body follows; it does not change
// between two Resets, so its checksum never needs an update. What does change is
// one word each, with its own check: no header is ever half written while it is valid.
const (
	wordMagic       = 0
	wordVersion     = 1 // [header bytes:32][version:32]
	wordCRC         = 2 // of the version word and everything from the body on
	wordIncarnation = 3 // counted word
	wordExtents     = 4 // counted word: extents in use
	wordBody        = 8

	fixedBytes = wordBody * 8
)

var crcTable = crc64.MakeTable(crc64.ECMA)

// body is what the header says once and for all.
type body struct {
	cluster, node, bootID string
	clusterID             string
	session               ids.SessionID
	sections              uint32
	spaces                []ids.Space
}

func (b body) encode() []byte {
	str := func(d []byte, s string) []byte {
		d = binary.AppendUvarint(d, uint64(len(s)))
		return append(d, s...)
	}
	var d []byte
	d = str(d, b.cluster)
	d = str(d, b.node)
	d = str(d, b.bootID)
	d = str(d, b.clusterID)
	d = binary.AppendUvarint(d, uint64(b.session))
	d = binary.AppendUvarint(d, uint64(b.sections))
	d = binary.AppendUvarint(d, uint64(len(b.spaces)))
	for _, s := range b.spaces {
		d = binary.AppendUvarint(d, uint64(s.ID))
		d = str(d, s.Name)
		d = binary.AppendUvarint(d, uint64(s.Kind))
		d = binary.AppendUvarint(d, s.MaxUID)
	}
	return d
}

func decodeBody(p []byte) (b body, err error) {
	r := bytes.NewReader(p)
	num := func() uint64 {
		v, e := binary.ReadUvarint(r)
		if e != nil && err == nil {
			err = fmt.Errorf("body ends early: %w", e)
		}
		return v
	}
	str := func() string {
		n := num()
		if n > uint64(r.Len()) {
			if err == nil {
				err = fmt.Errorf("a string of %d bytes in the last %d", n, r.Len())
			}
			return ""
		}
		s := make([]byte, n)
		_, _ = r.Read(s)
		return string(s)
	}
	b.cluster, b.node, b.bootID, b.clusterID = str(), str(), str(), str()
	b.session = ids.SessionID(num())
	b.sections = uint32(num())
	n := num()
	for i := uint64(0); i < n && err == nil; i++ {
		b.spaces = append(b.spaces, ids.Space{
			ID: ids.SpaceID(num()), Name: str(), Kind: ids.Kind(num()), MaxUID: num(),
		})
	}
	return b, err
}

// headerBytesFor is how much of the file the header of this body takes.
func headerBytesFor(encoded []byte) int64 { return roundUpPage(int64(fixedBytes + len(encoded))) }

// headerText is what the checksum covers: the version word and everything from the
// body on. It is read page by page, since a bad length may cover memory that does
// not belong together.
func headerText(r Region, bytes int64) []byte {
	text := make([]byte, 0, bytes)
	for off := int64(0); off < bytes; off += pageBytes {
		words := r.Words(off, pageBytes)
		if off == 0 {
			text = binary.LittleEndian.AppendUint64(text, words[wordVersion].Load())
			words = words[wordBody:]
		}
		for i := range words {
			text = binary.LittleEndian.AppendUint64(text, words[i].Load())
		}
	}
	return text
}

func headerCRC(text []byte) uint64 { return crc64.Checksum(text, crcTable) }

// writeHeader fills a zeroed header; the magic comes last, so an unfinished one is noticed.
func writeHeader(r Region, bytes int64, encoded []byte, inc ids.Incarnation) {
	words := r.Words(0, bytes)
	words[wordVersion].Store(uint64(bytes)<<32 | FormatVersion)
	padded := make([]byte, (len(encoded)+7)/8*8)
	copy(padded, encoded)
	for i := 0; i < len(padded); i += 8 {
		words[wordBody+i/8].Store(binary.LittleEndian.Uint64(padded[i:]))
	}
	words[wordCRC].Store(headerCRC(headerText(r, bytes)))
	words[wordIncarnation].Store(sealCount(uint32(inc), wordIncarnation))
	words[wordExtents].Store(sealCount(0, wordExtents))
	words[wordMagic].Store(magic)
}

// header is a verified header.
type header struct {
	body
	incarnation ids.Incarnation
	extents     uint32
	bytes       int64
}

// frontBytes is where the extents begin.
func (h header) frontBytes() int64 { return frontBytesFor(h.bytes, h.sections) }

func frontBytesFor(header int64, sections uint32) int64 {
	return header + tableBytesFor(sections) + intentBytes
}

func tableBytesFor(sections uint32) int64 {
	return roundUpPage(int64(sections) * sectionWords * 8)
}

// readHeader verifies all of the header but the identity.
func readHeader(r Region) (h header, err error) {
	bad := func(reason Reason, off, n int64, format string, args ...any) (header, error) {
		return header{}, &UntrustedError{Path: r.Name(), Reason: reason, Off: off, Len: n, Detail: fmt.Sprintf(format, args...)}
	}
	size := r.Size()
	if size < pageBytes || size%pageBytes != 0 {
		return bad(ReasonSize, 0, 0, "%d bytes is not a whole number of pages", size)
	}
	words := r.Words(0, pageBytes)
	switch m := words[wordMagic].Load(); m {
	case magic:
	case 0:
		return bad(ReasonTorn, 0, 8, "the header was never finished")
	default:
		return bad(ReasonMagic, 0, 8, "magic %#x", m)
	}
	v := words[wordVersion].Load()
	if version := uint32(v); version != FormatVersion {
		reason := ReasonOldFormat
		if version > FormatVersion {
			reason = ReasonNewFormat
		}
		return bad(reason, 8, 4, "format %d, this program has %d", version, FormatVersion)
	}
	h.bytes = int64(v >> 32)
	if h.bytes < pageBytes || h.bytes%pageBytes != 0 || h.bytes > size {
		return bad(ReasonHeader, 12, 4, "header of %d bytes in a file of %d", h.bytes, size)
	}
	text := headerText(r, h.bytes)
	if got, want := words[wordCRC].Load(), headerCRC(text); got != want {
		return bad(ReasonHeader, 0, h.bytes, "checksum %#x, computed %#x", got, want)
	}
	if h.body, err = decodeBody(text[8:]); err != nil {
		return bad(ReasonHeader, fixedBytes, h.bytes-fixedBytes, "%v", err)
	}
	inc, ok := unsealCount(words[wordIncarnation].Load(), wordIncarnation)
	if !ok {
		return bad(ReasonHeader, wordIncarnation*8, 8, "incarnation does not match its check")
	}
	h.incarnation = ids.Incarnation(inc)
	if h.extents, ok = unsealCount(words[wordExtents].Load(), wordExtents); !ok {
		return bad(ReasonHeader, wordExtents*8, 8, "extent count does not match its check")
	}
	// A process may die between growing the file and counting the extent.
	want := h.frontBytes() + int64(h.extents)*extentBytes
	if size != want && size != want+extentBytes {
		return bad(ReasonSize, 0, 0, "%d bytes, the header says %d", size, want)
	}
	return h, nil
}
