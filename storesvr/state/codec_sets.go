package state

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// Kinds of commands from here on are about Sets. Never renumber.
const (
	tagSetGenesis = 13
	tagPutMap     = 14
	tagFreeze     = 15
	tagThaw       = 16
	tagSeal       = 17
	tagDrop       = 18
	tagImport     = 19
	tagActivate   = 20
	tagDiscard    = 21
	tagEndMove    = 22
	tagSweep      = 23
	tagCreateSet  = 24
	tagUpdateSet  = 25
	tagRetireSet  = 26
	tagStartMove  = 27
	tagOpenPart   = 28
	tagCommitPart = 29
	tagAbortPart  = 30
	tagEndPart    = 31
	tagAbortMove  = 32
	tagPreload    = 33
	// tagEndPartNext is EndPart with a Next.
	tagEndPartNext = 34
)

const rangeBytesMin = 3

func putSetCommand(dst []byte, c Command) []byte {
	switch c := c.(type) {
	case PutMap:
		return putPublished(append(dst, tagPutMap), &c.Published)
	case Freeze:
		dst = sets.AppendRange(putPart(append(dst, tagFreeze), c.Move, c.Part), c.Range)
		return putText(dst, c.To)
	case Thaw:
		return putBool(putPart(append(dst, tagThaw), c.Move, c.Part), c.Forced)
	case Seal:
		return putPart(append(dst, tagSeal), c.Move, c.Part)
	case Drop:
		return putPublished(putPart(append(dst, tagDrop), c.Move, c.Part), &c.Published)
	case Import:
		dst = sets.AppendRange(putPart(append(dst, tagImport), c.Move, c.Part), c.Range)
		return putKeyedRecords(putText(dst, c.From), c.Records)
	case Preload:
		dst = putText(sets.AppendRange(putUvarint(append(dst, tagPreload), c.Move), c.Range), c.From)
		return putKeyedRecords(dst, c.Records)
	case Activate:
		return putPublished(putPart(append(dst, tagActivate), c.Move, c.Part), &c.Published)
	case Discard:
		return putPart(append(dst, tagDiscard), c.Move, c.Part)
	case EndMove:
		return putUvarint(append(dst, tagEndMove), c.Move)
	case Sweep:
		return putKeys(append(dst, tagSweep), c.Keys)
	case CreateSet:
		return putSetInfo(append(dst, tagCreateSet), c.Name, c.Stores)
	case UpdateSet:
		return putSetInfo(append(dst, tagUpdateSet), c.Name, c.Stores)
	case RetireSet:
		return putText(append(dst, tagRetireSet), c.Name)
	case StartMove:
		dst = putRanges(putTexts(append(dst, tagStartMove), c.From, c.To), c.Ranges)
		return binary.AppendVarint(dst, c.NowMS)
	case OpenPart:
		return sets.AppendRange(putPart(append(dst, tagOpenPart), c.Move, c.Part), c.Range)
	case CommitPart:
		dst = putUvarint(putPart(append(dst, tagCommitPart), c.Move, c.Part), c.Keys)
		return putUvarint(binary.BigEndian.AppendUint64(dst, c.Checksum), c.FrozenUS)
	case AbortPart:
		return putText(putPart(append(dst, tagAbortPart), c.Move, c.Part), c.Reason)
	case EndPart:
		if c.Next != (sets.Range{}) {
			return sets.AppendRange(binary.AppendVarint(putPart(append(dst, tagEndPartNext), c.Move, c.Part), c.NowMS), c.Next)
		}
		return binary.AppendVarint(putPart(append(dst, tagEndPart), c.Move, c.Part), c.NowMS)
	case AbortMove:
		dst = putText(putUvarint(append(dst, tagAbortMove), c.Move), c.Reason)
		return binary.AppendVarint(dst, c.NowMS)
	}
	panic(fmt.Sprintf("state: command of unknown type %T", c))
}

func (r *reader) setCommand(tag byte) Command {
	switch tag {
	case tagPutMap:
		return PutMap{Published: r.published()}
	case tagFreeze:
		return Freeze{Move: r.move(), Part: r.part(), Range: r.rangeOf(), To: r.text("target")}
	case tagThaw:
		return Thaw{Move: r.move(), Part: r.part(), Forced: r.bool("forced")}
	case tagSeal:
		return Seal{Move: r.move(), Part: r.part()}
	case tagDrop:
		return Drop{Move: r.move(), Part: r.part(), Published: r.published()}
	case tagImport:
		return Import{Move: r.move(), Part: r.part(), Range: r.rangeOf(), From: r.text("source"), Records: r.keyedRecords()}
	case tagPreload:
		return Preload{Move: r.move(), Range: r.rangeOf(), From: r.text("source"), Records: r.keyedRecords()}
	case tagActivate:
		return Activate{Move: r.move(), Part: r.part(), Published: r.published()}
	case tagDiscard:
		return Discard{Move: r.move(), Part: r.part()}
	case tagEndMove:
		return EndMove{Move: r.move()}
	case tagSweep:
		return Sweep{Keys: r.keys()}
	default:
		return r.directoryCommand(tag)
	}
}

func (r *reader) directoryCommand(tag byte) Command {
	switch tag {
	case tagCreateSet:
		return CreateSet{Name: r.text("set"), Stores: r.texts("stores")}
	case tagUpdateSet:
		return UpdateSet{Name: r.text("set"), Stores: r.texts("stores")}
	case tagRetireSet:
		return RetireSet{Name: r.text("set")}
	case tagStartMove:
		return StartMove{From: r.text("source"), To: r.text("target"), Ranges: r.ranges(), NowMS: r.varint("now")}
	case tagOpenPart:
		return OpenPart{Move: r.move(), Part: r.part(), Range: r.rangeOf()}
	case tagCommitPart:
		return CommitPart{
			Move: r.move(), Part: r.part(), Keys: r.uvarint("keys"), Checksum: r.fixed64("checksum"),
			FrozenUS: uint32(r.limited("frozen", math.MaxUint32)),
		}
	case tagAbortPart:
		return AbortPart{Move: r.move(), Part: r.part(), Reason: r.text("reason")}
	case tagEndPart:
		return EndPart{Move: r.move(), Part: r.part(), NowMS: r.varint("now")}
	case tagEndPartNext:
		c := EndPart{Move: r.move(), Part: r.part(), NowMS: r.varint("now"), Next: r.rangeOf()}
		if c.Next == (sets.Range{}) {
			r.fail("next range: there is none")
		}
		return c
	case tagAbortMove:
		return AbortMove{Move: r.move(), Reason: r.text("reason"), NowMS: r.varint("now")}
	default:
		r.fail(fmt.Sprintf("unknown command kind %d", tag))
		return nil
	}
}

func putPart(dst []byte, m sets.MoveID, p sets.Part) []byte { return putUvarint(putUvarint(dst, m), p) }

func (r *reader) move() sets.MoveID { return sets.MoveID(r.uvarint("move")) }
func (r *reader) part() sets.Part   { return sets.Part(r.limited("part", math.MaxUint32)) }

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

// putPublished and putBytes frame what package sets encodes.
func putPublished(dst []byte, p *sets.Published) []byte {
	return putBytes(dst, sets.EncodePublished(nil, p))
}

func putBytes(dst, b []byte) []byte { return append(putLen(dst, len(b)), b...) }

func (r *reader) bytes(field string) []byte {
	n := r.count(field, 1)
	r.off += n
	return r.b[r.off-n : r.off]
}

func (r *reader) published() sets.Published {
	b := r.bytes("set map")
	if r.err != nil {
		return sets.Published{}
	}
	p, err := sets.DecodePublished(b)
	if err != nil {
		r.fail(err.Error())
	}
	return p
}

func (r *reader) rangeOf() sets.Range {
	if r.err != nil {
		return sets.Range{}
	}
	rg, n := sets.CutRange(r.b[r.off:])
	if n == 0 {
		r.fail("range: not one")
	}
	r.off += n
	return rg
}

func putRanges(dst []byte, ranges []sets.Range) []byte {
	dst = putLen(dst, len(ranges))
	for _, rg := range ranges {
		dst = sets.AppendRange(dst, rg)
	}
	return dst
}

func (r *reader) ranges() []sets.Range { return items(r, r.count("ranges", rangeBytesMin), r.rangeOf) }

func putSetInfo(dst []byte, name string, stores []string) []byte {
	dst = putLen(putText(dst, name), len(stores))
	return putTexts(dst, stores...)
}

func (r *reader) texts(field string) []string {
	return items(r, r.count(field, textBytesMin), func() string { return r.text(field) })
}

func putKeys(dst []byte, keys []ids.Key) []byte {
	dst = putLen(dst, len(keys))
	for _, k := range keys {
		dst = putKey(putBool(dst, k.Lo != 0), k)
	}
	return dst
}

func (r *reader) keys() []ids.Key {
	return items(r, r.count("keys", keyBytesMin), func() ids.Key { return r.key(r.bool("fingerprint")) })
}

// The sets part of a Meta follows the rest of it in format 2.

func putSetsMeta(dst []byte, m *Meta) []byte {
	dst = putRanges(dst, m.Ranges)
	if m.Directory != nil {
		dst = putBytes(dst, sets.EncodeDirectory(nil, m.Directory))
	} else {
		dst = putPublished(dst, &m.Published)
	}
	dst = putLen(dst, len(m.Out))
	for _, id := range sortedMoves(m.Out) {
		dst = putOutgoing(dst, m.Out[id])
	}
	dst = putLen(dst, len(m.In))
	for _, id := range sortedMoves(m.In) {
		dst = putIncoming(dst, m.In[id])
	}
	return putUvarint(dst, m.MovesEnded)
}

func (r *reader) setsMeta(m *Meta) {
	m.Ranges = r.ranges()
	if m.Genesis.Directory {
		m.Directory = r.directory()
		if m.Directory != nil {
			m.Published = m.Directory.Published
		}
	} else {
		m.Published = r.published()
	}
	m.Out, m.In = map[sets.MoveID]*Outgoing{}, map[sets.MoveID]*Incoming{}
	for range r.count("outgoing parts", outgoingBytesMin) {
		o := r.outgoing()
		m.Out[o.Move] = &o
	}
	for range r.count("incoming parts", incomingBytesMin) {
		in := r.incoming()
		m.In[in.Move] = &in
	}
	m.MovesEnded = r.move()
}

func (r *reader) directory() *sets.Directory {
	b := r.bytes("directory")
	if r.err != nil {
		return nil
	}
	d, err := sets.DecodeDirectory(b)
	if err != nil {
		r.fail(err.Error())
	}
	return d
}

const (
	outgoingBytesMin = 10
	incomingBytesMin = 8
)

func putOutgoing(dst []byte, o *Outgoing) []byte {
	dst = putText(sets.AppendRange(putPart(dst, o.Move, o.Part), o.Range), o.To)
	dst = putLen(append(dst, byte(o.Phase)), len(o.Waiting))
	for _, s := range o.Waiting {
		dst = putUvarint(dst, s)
	}
	return putUvarint(putOwned(dst, o.Vacated), o.Frozen)
}

func (r *reader) outgoing() Outgoing {
	return Outgoing{
		Move: r.move(), Part: r.part(), Range: r.rangeOf(), To: r.text("target"), Phase: OutPhase(r.byte("phase")),
		Waiting: items(r, r.count("waiting sessions", 1), r.session), Vacated: r.owned(), Frozen: r.uvarint("frozen"),
	}
}

func putIncoming(dst []byte, in *Incoming) []byte {
	dst = putText(sets.AppendRange(putPart(dst, in.Move, in.Part), in.Range), in.From)
	return putUvarint(append(dst, byte(in.Phase)), in.Keys)
}

func (r *reader) incoming() Incoming {
	return Incoming{
		Move: r.move(), Part: r.part(), Range: r.rangeOf(), From: r.text("source"), Phase: InPhase(r.byte("phase")),
		Keys: r.uvarint("keys"),
	}
}
