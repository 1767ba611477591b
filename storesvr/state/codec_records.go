package state

import (
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

// DecodeRecords reads what EncodeRecords wrote; its error is a *CodecError.
func DecodeRecords(b []byte) ([]KeyedRecord, error) {
	r := newReader("records", b)
	records := r.keyedRecords()
	if err := r.done(); err != nil {
		return nil, err
	}
	return records, nil
}

func putKeyedRecords(dst []byte, records []KeyedRecord) []byte {
	dst = putLen(dst, len(records))
	for i := range records {
		dst = putKeyedRecord(dst, &records[i])
	}
	return dst
}

func (r *reader) keyedRecords() []KeyedRecord {
	return items(r, r.count("records", keyedRecordBytesMin), r.keyedRecord)
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

func (r *reader) keyedRecord() KeyedRecord {
	flags := r.byte("flags")
	if flags&^(keyedFingerprint|keyedGaps|keyedRisk) != 0 {
		r.fail(fmt.Sprintf("unknown flags %#x", flags))
	}
	kr := KeyedRecord{Key: r.key(flags&keyedFingerprint != 0), Floor: r.seq("floor")}
	kr.Bound = kr.Floor
	if flags&keyedRisk != 0 {
		kr.Bound += ids.Seq(r.limited("bound", uint64(ids.MaxSeq-kr.Floor)))
		kr.Epoch = r.epoch()
	}
	if flags&keyedGaps != 0 {
		kr.Gaps = r.gapList()
	}
	return kr
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
