package state

import (
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
)

const gapBytesMin = 5

const (
	recordHoleAtFloor = 0x01
	recordMoved       = 0x02
)

// EncodeRecord appends the encoding of rec to dst.
func EncodeRecord(dst []byte, rec Record) []byte {
	flags := byte(0)
	if rec.HoleAtFloor {
		flags |= recordHoleAtFloor
	}
	if rec.Moved {
		flags |= recordMoved
	}
	dst = putUvarint(append(dst, formatVersion, flags), rec.Floor)
	dst = putUvarint(dst, rec.Bound-rec.Floor)
	return putUvarint(dst, rec.Epoch)
}

// DecodeRecord reads what EncodeRecord wrote; its error is a *CodecError.
func DecodeRecord(b []byte) (Record, error) {
	r := reader{what: "record", b: b}
	r.version()
	flags := r.byte("flags")
	if flags&^(recordHoleAtFloor|recordMoved) != 0 {
		r.fail(fmt.Sprintf("unknown flags %#x", flags))
	}
	rec := Record{HoleAtFloor: flags&recordHoleAtFloor != 0, Moved: flags&recordMoved != 0, Floor: r.seq("floor")}
	rec.Bound = rec.Floor + ids.Seq(r.limited("bound", uint64(ids.MaxSeq-rec.Floor)))
	rec.Epoch = r.epoch()
	if rec.Epoch == 0 && rec.Floor != rec.Bound {
		r.fail("numbers at risk without an epoch")
	}
	if err := r.done(); err != nil {
		return Record{}, err
	}
	return rec, nil
}

// EncodeGaps appends the encoding of a key's ledger to dst.
func EncodeGaps(dst []byte, gaps []Gap) []byte {
	return putGapList(append(dst, formatVersion), gaps)
}

func putGapList(dst []byte, gaps []Gap) []byte {
	dst = putLen(dst, len(gaps))
	last := ids.Seq(0)
	for _, g := range gaps {
		dst = putUvarint(putUvarint(dst, g.From-last), g.To-g.From)
		dst = putUvarint(append(dst, byte(g.Cause)), g.Epoch)
		dst = putBool(dst, g.Merged)
		last = g.To
	}
	return dst
}

// DecodeGaps reads what EncodeGaps wrote; its error is a *CodecError.
func DecodeGaps(b []byte) ([]Gap, error) {
	r := reader{what: "gaps", b: b}
	r.version()
	gaps := r.gapList()
	if err := r.done(); err != nil {
		return nil, err
	}
	return gaps, nil
}

func (r *reader) gapList() []Gap {
	last := ids.Seq(0)
	return items(r, r.count("holes", gapBytesMin), func() Gap {
		g := Gap{From: last + ids.Seq(r.limited("hole", uint64(ids.MaxSeq-last)))}
		g.To = g.From + ids.Seq(r.limited("hole", uint64(ids.MaxSeq-g.From)))
		if g.From == last {
			r.fail("hole does not lie after the one before it")
		}
		g.Cause, g.Epoch, g.Merged = Cause(r.byte("cause")), r.epoch(), r.bool("merged")
		last = g.To
		return g
	})
}
