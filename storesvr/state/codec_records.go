package state

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

const keyedRecordBytesMin = 4

// A keyed record starts with flags.
const (
	keyedFingerprint = 0x01
	keyedGaps        = 0x02
	// keyedRisk: a bound above the floor, or an epoch.
	keyedRisk = 0x04
)

// EncodeRecords appends the encoding of a page of an export to dst.
func EncodeRecords(dst []byte, records []KeyedRecord) []byte {
	return putKeyedRecords(append(dst, formatVersion), records)
}

// DecodeRecords reads what EncodeRecords or a PageWriter wrote; its error is a *CodecError.
func DecodeRecords(b []byte) ([]KeyedRecord, error) { return DecodePage(b, nil) }

// DecodePage is DecodeRecords that digests what it reads, as it stands there.
func DecodePage(b []byte, d *Digester) ([]KeyedRecord, error) {
	r := newReader("records", b)
	records := r.digestedRecords(d)
	if err := r.done(); err != nil {
		return nil, err
	}
	return records, nil
}

// PageWriter encodes records one by one, and digests them on the way.
type PageWriter struct {
	Digester Digester
	n        int
	buf      []byte
}

// NewPageWriter has room for about so many records.
func NewPageWriter(records int) *PageWriter {
	return &PageWriter{Digester: Digester{Every: max(1, records)}, buf: make([]byte, 0, records*pageRecordBytes)}
}

// pageRecordBytes is as long as most uids' records are at most.
const pageRecordBytes = 12

// Add encodes the next record.
func (w *PageWriter) Add(kr *KeyedRecord) {
	at := len(w.buf)
	w.buf = putKeyedHead(w.buf, kr)
	w.Digester.add(w.buf[at:], kr.Gaps)
	if len(kr.Gaps) > 0 {
		w.buf = putGapList(w.buf, kr.Gaps)
	}
	w.n++
}

// Page is what EncodeRecords makes of the records.
func (w *PageWriter) Page() []byte {
	page := make([]byte, 0, binary.MaxVarintLen64+1+len(w.buf))
	return append(putLen(append(page, formatVersion), w.n), w.buf...)
}

func putKeyedRecords(dst []byte, records []KeyedRecord) []byte {
	dst = putLen(dst, len(records))
	for i := range records {
		dst = putKeyedRecord(dst, &records[i])
	}
	return dst
}

func (r *reader) keyedRecords() []KeyedRecord { return r.digestedRecords(nil) }

// digestedRecords reads records in place: there are many. d, if set, digests them.
func (r *reader) digestedRecords(d *Digester) []KeyedRecord {
	n := r.count("records", keyedRecordBytesMin)
	if n == 0 {
		return nil
	}
	out := make([]KeyedRecord, n)
	for i := range out {
		from := r.off
		head := r.readKeyed(&out[i])
		if r.err != nil {
			return nil
		}
		if d != nil {
			d.add(r.b[from:head], out[i].Gaps)
		}
	}
	return out
}

func putKeyedRecord(dst []byte, kr *KeyedRecord) []byte {
	dst = putKeyedHead(dst, kr)
	if len(kr.Gaps) > 0 {
		dst = putGapList(dst, kr.Gaps)
	}
	return dst
}

// putKeyedHead is all but the ledger.
func putKeyedHead(dst []byte, kr *KeyedRecord) []byte {
	flags := byte(0)
	if kr.Key.Lo != 0 {
		flags |= keyedFingerprint
	}
	if len(kr.Gaps) > 0 {
		flags |= keyedGaps
	}
	if kr.Bound != kr.Floor || kr.Epoch != 0 {
		flags |= keyedRisk
	}
	dst = putUvarint(putKey(append(dst, flags), kr.Key), kr.Floor)
	if flags&keyedRisk != 0 {
		dst = putUvarint(putUvarint(dst, kr.Bound-kr.Floor), kr.Epoch)
	}
	return dst
}

// readKeyed answers where the record's head ends.
func (r *reader) readKeyed(kr *KeyedRecord) (head int) {
	flags := r.byte("flags")
	if flags&^(keyedFingerprint|keyedGaps|keyedRisk) != 0 {
		r.fail(fmt.Sprintf("unknown flags %#x", flags))
	}
	kr.Key, kr.Floor = r.key(flags&keyedFingerprint != 0), r.seq("floor")
	kr.Bound = kr.Floor
	if flags&keyedRisk != 0 {
		kr.Bound += ids.Seq(r.limited("bound", uint64(ids.MaxSeq-kr.Floor)))
		kr.Epoch = r.epoch()
	}
	head = r.off
	if flags&keyedGaps != 0 {
		kr.Gaps = r.gapList()
	}
	return head
}

func putOwned(dst []byte, owned []OwnedSection) []byte {
	dst = putLen(dst, len(owned))
	for _, o := range owned {
		dst = putUvarint(putUvarint(dst, o.Section), o.Epoch)
	}
	return dst
}

func (r *reader) owned() []OwnedSection {
	return items(r, r.count("owned sections", ownedBytesMin), func() OwnedSection {
		return OwnedSection{Section: r.section(), Epoch: r.epoch()}
	})
}

func sortedMoves[T any](m map[sets.MoveID]T) []sets.MoveID { return slices.Sorted(maps.Keys(m)) }
