package disk

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// A snapshot stream is a header (magic, version) and chunks:
//
//	kind (1 byte) · payload length (4, little-endian) · CRC32C of kind, length and payload (4) · payload
//
// First one head chunk (the applied index and the meta state), then chunks of
// records, then of gap ledgers, each in key order; last the trailer with the
// totals and the checksum of all before it. Nothing follows the trailer.
const (
	snapshotMagic   = "SEQSNAP\n"
	snapshotVersion = 1

	chunkHead    = 1
	chunkRecords = 2
	chunkGaps    = 3
	chunkTrailer = 4

	chunkHeaderBytes = 1 + 4 + 4
	// chunkTarget is when a chunk of keys is sent; chunkMax is what a reader accepts.
	chunkTarget = 64 << 10
	chunkMax    = 64 << 20
)

// SnapshotSource is one moment of a state. Each visits in key order.
type SnapshotSource interface {
	Head() (applied uint64, meta *state.Meta)
	EachRecord(func(ids.Key, state.Record) error) error
	EachGaps(func(ids.Key, []state.Gap) error) error
}

// SnapshotSink takes a snapshot in as it is read. Nothing that it took counts
// before Finish, which is called once all checks have passed.
type SnapshotSink interface {
	Head(applied uint64, meta *state.Meta) error
	Record(ids.Key, state.Record) error
	Gaps(ids.Key, []state.Gap) error
	Finish() error
}

// SnapshotSummary is what a snapshot holds.
type SnapshotSummary struct {
	Applied uint64
	Meta    *state.Meta
	Records uint64
	Gaps    uint64
	Bytes   uint64
	// Checksum of the whole stream before its trailer.
	Checksum uint32
}

type chunkWriter struct {
	w   io.Writer
	buf []byte
	sum SnapshotSummary
	n   uint64
}

func (c *chunkWriter) write(b []byte) error {
	c.sum.Checksum = crc32.Update(c.sum.Checksum, castagnoli, b)
	c.sum.Bytes += uint64(len(b))
	_, err := c.w.Write(b)
	return err
}

func (c *chunkWriter) chunk(kind byte, payload []byte) error {
	if len(payload) > chunkMax {
		return &SnapshotError{What: fmt.Sprintf("chunk of %d bytes, at most %d are allowed", len(payload), chunkMax)}
	}
	var h [chunkHeaderBytes]byte
	h[0] = kind
	binary.LittleEndian.PutUint32(h[1:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(h[5:], chunkSum(h[:5], payload))
	if err := c.write(h[:]); err != nil {
		return err
	}
	c.n++
	return c.write(payload)
}

func chunkSum(head, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, payload)
}

// WriteSnapshot streams src to w with flat memory.
func WriteSnapshot(w io.Writer, src SnapshotSource) (SnapshotSummary, error) {
	c := &chunkWriter{w: w}
	if err := c.write(binary.LittleEndian.AppendUint32([]byte(snapshotMagic), snapshotVersion)); err != nil {
		return c.sum, err
	}
	c.sum.Applied, c.sum.Meta = src.Head()
	if err := c.chunk(chunkHead, encodeHead(c.sum.Applied, c.sum.Meta)); err != nil {
		return c.sum, err
	}
	item := func(kind byte, count *uint64, k ids.Key, value []byte) error {
		*count++
		c.buf = appendKey(c.buf, k)
		c.buf = binary.AppendUvarint(c.buf, uint64(len(value)))
		c.buf = append(c.buf, value...)
		if len(c.buf) < chunkTarget {
			return nil
		}
		err := c.chunk(kind, c.buf)
		c.buf = c.buf[:0]
		return err
	}
	last := func(kind byte) error {
		if len(c.buf) == 0 {
			return nil
		}
		err := c.chunk(kind, c.buf)
		c.buf = c.buf[:0]
		return err
	}
	var value []byte
	err := src.EachRecord(func(k ids.Key, r state.Record) error {
		value = state.EncodeRecord(value[:0], r)
		return item(chunkRecords, &c.sum.Records, k, value)
	})
	if err == nil {
		err = last(chunkRecords)
	}
	if err != nil {
		return c.sum, err
	}
	err = src.EachGaps(func(k ids.Key, g []state.Gap) error {
		value = state.EncodeGaps(value[:0], g)
		return item(chunkGaps, &c.sum.Gaps, k, value)
	})
	if err == nil {
		err = last(chunkGaps)
	}
	if err != nil {
		return c.sum, err
	}
	sum := c.sum
	t := binary.LittleEndian.AppendUint64(nil, sum.Records)
	t = binary.LittleEndian.AppendUint64(t, sum.Gaps)
	t = binary.LittleEndian.AppendUint64(t, c.n)
	t = binary.LittleEndian.AppendUint64(t, sum.Bytes)
	t = binary.LittleEndian.AppendUint32(t, sum.Checksum)
	return sum, c.chunk(chunkTrailer, t)
}

// SnapshotHead reads only the beginning of a snapshot: the applied index and the meta state in it.
func SnapshotHead(r io.Reader) (uint64, *state.Meta, error) {
	c := newChunkReader(r)
	return c.head()
}

type chunkReader struct {
	r   *bufio.Reader
	buf []byte
	sum SnapshotSummary
	n   uint64
}

func newChunkReader(r io.Reader) *chunkReader {
	return &chunkReader{r: bufio.NewReaderSize(r, chunkTarget)}
}

func (c *chunkReader) read(b []byte) error {
	if _, err := io.ReadFull(c.r, b); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return &SnapshotError{What: "it ends early", Err: err}
	}
	c.sum.Checksum = crc32.Update(c.sum.Checksum, castagnoli, b)
	c.sum.Bytes += uint64(len(b))
	return nil
}

// chunk reads and verifies the next one. The payload is good until the next call.
func (c *chunkReader) chunk() (kind byte, payload []byte, before SnapshotSummary, err error) {
	before = c.sum
	var h [chunkHeaderBytes]byte
	if err := c.read(h[:]); err != nil {
		return 0, nil, before, err
	}
	n := int(binary.LittleEndian.Uint32(h[1:]))
	if n > chunkMax {
		return 0, nil, before, &SnapshotError{What: fmt.Sprintf("chunk of %d bytes, at most %d are allowed", n, chunkMax)}
	}
	// Grown as bytes arrive, so that a damaged length does not cost its memory.
	c.buf = c.buf[:0]
	for len(c.buf) < n {
		at := len(c.buf)
		c.buf = append(c.buf, make([]byte, min(n-at, chunkTarget))...)
		if err := c.read(c.buf[at:]); err != nil {
			return 0, nil, before, err
		}
	}
	if chunkSum(h[:5], c.buf) != binary.LittleEndian.Uint32(h[5:]) {
		return 0, nil, before, &SnapshotError{What: fmt.Sprintf("chunk %d", c.n+1), Err: errChecksum}
	}
	c.n++
	return h[0], c.buf, before, nil
}

func (c *chunkReader) head() (uint64, *state.Meta, error) {
	b := make([]byte, len(snapshotMagic)+4)
	if err := c.read(b); err != nil {
		return 0, nil, err
	}
	if string(b[:len(snapshotMagic)]) != snapshotMagic {
		return 0, nil, &SnapshotError{What: "it does not begin like a snapshot"}
	}
	if v := binary.LittleEndian.Uint32(b[len(snapshotMagic):]); v != snapshotVersion {
		return 0, nil, &SnapshotError{What: fmt.Sprintf("format version %d, this program reads %d", v, snapshotVersion)}
	}
	kind, payload, _, err := c.chunk()
	if err != nil {
		return 0, nil, err
	}
	if kind != chunkHead {
		return 0, nil, &SnapshotError{What: fmt.Sprintf("chunk of kind %d where the head is due", kind)}
	}
	applied, meta, err := decodeHead(payload)
	if err != nil {
		return 0, nil, &SnapshotError{What: "head", Err: err}
	}
	return applied, meta, nil
}

// ReadSnapshot streams a snapshot into sink and verifies every part of it.
func ReadSnapshot(r io.Reader, sink SnapshotSink) (SnapshotSummary, error) {
	c := newChunkReader(r)
	applied, meta, err := c.head()
	if err != nil {
		return c.sum, err
	}
	if err := sink.Head(applied, meta); err != nil {
		return c.sum, err
	}
	c.sum.Applied, c.sum.Meta = applied, meta
	phase := byte(chunkRecords)
	var prev ids.Key
	for first := true; ; {
		kind, payload, before, err := c.chunk()
		if err != nil {
			return c.sum, err
		}
		if kind == chunkTrailer {
			if err := c.trailer(payload, before); err != nil {
				return c.sum, err
			}
			break
		}
		if kind != phase && !(phase == chunkRecords && kind == chunkGaps) {
			return c.sum, &SnapshotError{What: fmt.Sprintf("chunk of kind %d out of place", kind)}
		}
		if kind != phase {
			phase, first = kind, true
		}
		for len(payload) > 0 {
			k, value, rest, err := nextItem(payload)
			if err == nil && !first && prev.Compare(k) >= 0 {
				err = fmt.Errorf("key %v after %v", k, prev)
			}
			if err == nil {
				err = c.item(kind, k, value, sink)
			}
			if err != nil {
				return c.sum, &SnapshotError{What: fmt.Sprintf("chunk %d", c.n), Err: err}
			}
			prev, payload, first = k, rest, false
		}
	}
	if _, err := c.r.ReadByte(); !errors.Is(err, io.EOF) {
		return c.sum, &SnapshotError{What: "bytes follow its trailer", Err: err}
	}
	return c.sum, sink.Finish()
}

func nextItem(b []byte) (k ids.Key, value, rest []byte, err error) {
	if len(b) < keyBytes {
		return k, nil, nil, errors.New("it ends inside a key")
	}
	k, err = decodeKey(b[:keyBytes])
	if err != nil {
		return k, nil, nil, err
	}
	b = b[keyBytes:]
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w) {
		return k, nil, nil, errors.New("it ends inside a value")
	}
	return k, b[w : w+int(n)], b[w+int(n):], nil
}

func (c *chunkReader) item(kind byte, k ids.Key, value []byte, sink SnapshotSink) error {
	if kind == chunkRecords {
		r, err := state.DecodeRecord(value)
		if err != nil {
			return err
		}
		c.sum.Records++
		return sink.Record(k, r)
	}
	g, err := state.DecodeGaps(value)
	if err != nil {
		return err
	}
	c.sum.Gaps++
	return sink.Gaps(k, g)
}

func (c *chunkReader) trailer(b []byte, before SnapshotSummary) error {
	if len(b) != 4*8+4 {
		return &SnapshotError{What: fmt.Sprintf("trailer of %d bytes", len(b))}
	}
	le := binary.LittleEndian
	for _, t := range []struct {
		what        string
		found, want uint64
	}{
		{"records", c.sum.Records, le.Uint64(b)},
		{"gap ledgers", c.sum.Gaps, le.Uint64(b[8:])},
		{"chunks", c.n - 1, le.Uint64(b[16:])},
		{"bytes", before.Bytes, le.Uint64(b[24:])},
		{"checksum", uint64(before.Checksum), uint64(le.Uint32(b[32:]))},
	} {
		if t.found != t.want {
			return &SnapshotError{What: fmt.Sprintf("%s: found %d, its trailer says %d", t.what, t.found, t.want)}
		}
	}
	c.sum.Bytes, c.sum.Checksum = before.Bytes, before.Checksum
	return nil
}
