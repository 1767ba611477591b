package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// stateFormat is of state.db. Format 1 had an entry for each uid, too.
const stateFormat = 2

// Buckets of state.db, and the keys of the meta bucket.
var (
	bucketMeta = []byte("meta")
	// bucketBlocks has the records of uids, bucketNames those of names.
	bucketBlocks = []byte("blocks")
	bucketNames  = []byte("records")
	bucketGaps   = []byte("gaps")

	buckets = [][]byte{bucketMeta, bucketBlocks, bucketNames, bucketGaps}

	keyFormat = []byte("format")
	keyState  = []byte("state")
)

// keyBytes is a key on disk: space, hi, lo, big-endian, so that bbolt's order is ids.Key's.
const keyBytes = 2 + 8 + 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func appendKey(dst []byte, k ids.Key) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(k.Space))
	dst = binary.BigEndian.AppendUint64(dst, k.Hi)
	return binary.BigEndian.AppendUint64(dst, k.Lo)
}

func decodeKey(b []byte) (ids.Key, error) {
	if len(b) != keyBytes {
		return ids.Key{}, fmt.Errorf("key of %d bytes, want %d", len(b), keyBytes)
	}
	return ids.Key{
		Space: ids.SpaceID(binary.BigEndian.Uint16(b)),
		Hi:    binary.BigEndian.Uint64(b[2:]),
		Lo:    binary.BigEndian.Uint64(b[10:]),
	}, nil
}

// seal appends the checksum of a key and its value to the value. The key is in
// it so that a value under the wrong key is noticed too.
func seal(key, value []byte) []byte {
	return binary.LittleEndian.AppendUint32(value, valueSum(key, value))
}

func valueSum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}

var errChecksum = errors.New("checksum does not match")

// unseal gives the value without its checksum. It shares b's memory.
func unseal(key, b []byte) ([]byte, error) {
	n := len(b) - 4
	if n < 0 {
		return nil, fmt.Errorf("value of %d bytes is too short for its checksum", len(b))
	}
	if valueSum(key, b[:n]) != binary.LittleEndian.Uint32(b[n:]) {
		return nil, errChecksum
	}
	return b[:n:n], nil
}

func openRecord(key, b []byte) (state.Record, error) {
	v, err := unseal(key, b)
	if err != nil {
		return state.Record{}, err
	}
	return state.DecodeRecord(v)
}

func openGaps(key, b []byte) ([]state.Gap, error) {
	v, err := unseal(key, b)
	if err != nil {
		return nil, err
	}
	return state.DecodeGaps(v)
}

// encodeHead is the value of keyState: the applied index, then the meta state.
func encodeHead(applied uint64, meta *state.Meta) []byte {
	b := binary.LittleEndian.AppendUint64(nil, applied)
	return state.EncodeMeta(b, meta)
}

func decodeHead(v []byte) (uint64, *state.Meta, error) {
	if len(v) < 8 {
		return 0, nil, fmt.Errorf("meta state of %d bytes", len(v))
	}
	m, err := state.DecodeMeta(v[8:])
	if err != nil {
		return 0, nil, err
	}
	return binary.LittleEndian.Uint64(v), &m, nil
}
