package state

import (
	"errors"
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// KeyedRecord is a key's record and ledger on their way from one Set to another.
type KeyedRecord struct {
	Key ids.Key
	// Floor and Bound are equal in an effective record: nothing of it is at risk.
	Floor, Bound ids.Seq
	// Epoch is 0 in an effective record: epochs are each Set's own.
	Epoch ids.Epoch
	Gaps  []Gap
}

// Effective is what the record of a key stands for if nobody raises it any more:
// what is exported. An epoch that was lost has its hole declared, exactly as
// Settle or the next owner would do it. One that has an owner at work stands at
// its floor: while the range is not frozen that is a lower bound of the truth,
// and once every owner has vacated the range it is the truth.
//
// Of a key that this Set does not own it is the record as it is: only if that
// came with an import, whole, does it compare equal with the owner's. Of st it
// looks at the meta state alone.
func Effective(st *State, k ids.Key, rec Record, gaps []Gap) KeyedRecord {
	kr := KeyedRecord{Key: k, Floor: rec.Floor, Bound: rec.Bound, Epoch: rec.Epoch, Gaps: gaps}
	if !st.Owns(k) {
		return kr
	}
	sec := k.Section(st.Meta.Genesis.Sections)
	if rec.Floor < rec.Bound && st.lost(sec, k, rec) {
		kr.Gaps = withGap(gaps, st.lossOf(sec, rec))
		kr.Floor = rec.Bound
	}
	kr.Bound, kr.Epoch = kr.Floor, 0
	return kr
}

// record is what is kept of an effective record.
func (kr *KeyedRecord) record() Record {
	n := len(kr.Gaps)
	return Record{Floor: kr.Floor, Bound: kr.Floor, HoleAtFloor: n > 0 && kr.Gaps[n-1].To == kr.Floor, Moved: true}
}

var errNotEffective = errors.New("numbers of it are at risk")

// check tells whether it may be imported.
func (kr *KeyedRecord) check() error {
	if kr.Epoch != 0 || kr.Floor != kr.Bound {
		return fmt.Errorf("key %v: %w", kr.Key, errNotEffective)
	}
	return checkLedger(kr.record(), kr.Gaps)
}

// Digest is of a list of records: the sum of their hashes, so that the digests
// of pages add up to that of the whole, however it was cut. In which epoch a hole
// was recorded is left out: it says when, and each Set has its own.
func Digest(records []KeyedRecord) uint64 {
	d := Digester{Every: len(records)}
	for i := range records {
		d.Add(&records[i])
	}
	return d.Sum()
}

// Digester digests records one by one, and each block of Every (above 0) of them by itself.
type Digester struct {
	Every  int
	n      int
	blocks []uint64
	buf    []byte
}

// Add digests the next record.
func (d *Digester) Add(kr *KeyedRecord) {
	d.buf = putKeyedHead(d.buf[:0], kr)
	d.add(d.buf, kr.Gaps)
}

// add takes the record's head as it is encoded, which may be d.buf.
func (d *Digester) add(head []byte, gaps []Gap) {
	if len(gaps) > 0 {
		d.buf = append(d.buf[:0], head...)
		for _, g := range gaps {
			d.buf = putUvarint(putUvarint(d.buf, g.From), g.To)
			d.buf = putBool(append(d.buf, byte(g.Cause)), g.Merged)
		}
		head = d.buf
	}
	if d.n%d.Every == 0 {
		d.blocks = append(d.blocks, 0)
	}
	d.n++
	d.blocks[len(d.blocks)-1] += hash(head)
}

// Blocks has the digest of each block.
func (d *Digester) Blocks() []uint64 { return d.blocks }

// Sum is the digest of all.
func (d *Digester) Sum() (sum uint64) {
	for _, b := range d.blocks {
		sum += b
	}
	return sum
}

// hash is FNV-1a with its bits mixed, since sums of it must not cancel out.
func hash(b []byte) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for _, c := range b {
		h = (h ^ uint64(c)) * prime
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
