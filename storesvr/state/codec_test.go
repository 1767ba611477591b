package state

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Generators draw from the whole range of each type, ends included.

func genNum[T ~uint8 | ~uint16 | ~uint32 | ~uint64](most uint64) *rapid.Generator[T] {
	return rapid.Map(rapid.Uint64Range(0, most), func(v uint64) T { return T(v) })
}

var (
	genSeq     = genNum[ids.Seq](uint64(ids.MaxSeq))
	genEpoch   = genNum[ids.Epoch](math.MaxUint64)
	genSession = genNum[ids.SessionID](math.MaxUint64)
	genSection = genNum[ids.Section](math.MaxUint32)
	genInc     = genNum[ids.Incarnation](math.MaxUint32)
	genBatch   = genNum[ids.BatchSeq](math.MaxUint64)
	genText    = rapid.String()
	genKey     = rapid.Custom(func(t *rapid.T) ids.Key {
		k := ids.Key{Space: genNum[ids.SpaceID](math.MaxUint16).Draw(t, "space"), Hi: rapid.Uint64().Draw(t, "hi")}
		if rapid.Bool().Draw(t, "name") {
			k.Lo = rapid.Uint64().Draw(t, "lo")
		}
		return k
	})
	genOp = rapid.Custom(func(t *rapid.T) Op {
		op := Op{Epoch: genEpoch.Draw(t, "epoch")}
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			op.Kind, op.Key = OpExtend, genKey.Draw(t, "key")
			op.Cur, op.Step = genSeq.Draw(t, "cur"), genSeq.Draw(t, "step")
		case 1:
			op.Kind, op.Key, op.Cur = OpReturn, genKey.Draw(t, "key"), genSeq.Draw(t, "cur")
		case 2:
			op.Kind, op.Section, op.Next = OpRelease, genSection.Draw(t, "section"), genSession.Draw(t, "next")
		case 3:
			op.Kind, op.Move, op.Part = OpVacate, genMove.Draw(t, "move"), genPart.Draw(t, "part")
		}
		return op
	})
	genAssignment = rapid.Custom(func(t *rapid.T) Assignment {
		return Assignment{Section: genSection.Draw(t, "section"), To: genSession.Draw(t, "to")}
	})
	genStore = rapid.Custom(func(t *rapid.T) StoreNode {
		return StoreNode{genText.Draw(t, "id"), genText.Draw(t, "raft"), genText.Draw(t, "rpc"), genText.Draw(t, "http")}
	})
	genSpace = rapid.Custom(func(t *rapid.T) ids.Space {
		return ids.Space{
			ID: genNum[ids.SpaceID](math.MaxUint16).Draw(t, "id"), Name: genText.Draw(t, "name"),
			Kind: genNum[ids.Kind](255).Draw(t, "kind"), MaxUID: rapid.Uint64().Draw(t, "max uid"),
		}
	})
	genSessionState = rapid.Custom(func(t *rapid.T) SessionState {
		return SessionState{
			ID: genSession.Draw(t, "id"), Incarnation: genInc.Draw(t, "inc"), Acted: genInc.Draw(t, "acted"), LastBatch: genBatch.Draw(t, "batch"),
			Node: genText.Draw(t, "node"), Addr: genText.Draw(t, "addr"), RedisAddr: genText.Draw(t, "redis"),
			HTTPAddr: genText.Draw(t, "http"), Version: genText.Draw(t, "version"),
			Leaving: rapid.Bool().Draw(t, "leaving"), Changed: rapid.Uint64().Draw(t, "changed"),
		}
	})
	genGaps = rapid.Custom(func(t *rapid.T) []Gap {
		var gaps []Gap
		last := uint64(0)
		for range rapid.IntRange(0, GapsMax).Draw(t, "holes") {
			from := rapid.Uint64Range(last+1, last+1<<rapid.IntRange(0, 50).Draw(t, "bits")).Draw(t, "from")
			last = from + rapid.Uint64Range(0, 1<<50).Draw(t, "length")
			gaps = append(gaps, Gap{
				From: ids.Seq(from), To: ids.Seq(last), Cause: genNum[Cause](255).Draw(t, "cause"),
				Epoch: genEpoch.Draw(t, "epoch"), Merged: rapid.Bool().Draw(t, "merged"),
			})
		}
		return gaps
	})
	genCommand = rapid.OneOf(
		rapid.Custom(func(t *rapid.T) Command {
			return Genesis{
				Cluster: genText.Draw(t, "cluster"), ClusterID: genText.Draw(t, "id"), Set: genText.Draw(t, "set"),
				Sections: rapid.Uint32().Draw(t, "sections"), Spaces: someOf(t, genSpace),
				Directory: rapid.Bool().Draw(t, "directory"), Ranges: someOf(t, genRange),
			}
		}),
		rapid.Custom(func(t *rapid.T) Command { return PutStore{genStore.Draw(t, "store")} }),
		rapid.Custom(func(t *rapid.T) Command { return DropStore{genText.Draw(t, "store")} }),
		rapid.Custom(func(t *rapid.T) Command {
			return Register{
				genText.Draw(t, "node"), genText.Draw(t, "addr"), genText.Draw(t, "redis"),
				genText.Draw(t, "http"), genText.Draw(t, "version"),
			}
		}),
		rapid.Custom(func(t *rapid.T) Command {
			return Resume{
				genSession.Draw(t, "session"), genInc.Draw(t, "from"), genText.Draw(t, "addr"),
				genText.Draw(t, "redis"), genText.Draw(t, "http"), genText.Draw(t, "version"),
			}
		}),
		rapid.Custom(func(t *rapid.T) Command { return Expire{genSession.Draw(t, "s"), genInc.Draw(t, "inc")} }),
		rapid.Custom(func(t *rapid.T) Command {
			return Leave{genSession.Draw(t, "s"), genInc.Draw(t, "inc"), rapid.Bool().Draw(t, "done")}
		}),
		rapid.Custom(func(t *rapid.T) Command { return Assign{someOf(t, genAssignment)} }),
		rapid.Custom(func(t *rapid.T) Command {
			return SetDraining{genText.Draw(t, "node"), rapid.Bool().Draw(t, "draining")}
		}),
		rapid.Custom(func(t *rapid.T) Command {
			return Settle{genSection.Draw(t, "s"), genEpoch.Draw(t, "e"), someOf(t, genKey), rapid.Bool().Draw(t, "done")}
		}),
		rapid.Custom(func(t *rapid.T) Command { return Advance{genKey.Draw(t, "key"), genSeq.Draw(t, "to")} }),
		rapid.Custom(func(t *rapid.T) Command {
			return Batch{genSession.Draw(t, "s"), genInc.Draw(t, "inc"), genBatch.Draw(t, "seq"), someOf(t, genOp)}
		}),
	)
	genAnyCommand = rapid.OneOf(genCommand, genSetCommand)
	genReply      = rapid.Custom(func(t *rapid.T) Reply {
		r := Reply{Refusal: genNum[Refusal](255).Draw(t, "refusal"), Applied: someOf(t, genAssignment)}
		if rapid.Bool().Draw(t, "session") {
			r.Session = genSessionState.Draw(t, "session")
		}
		r.Owned = someOf(t, rapid.Custom(func(t *rapid.T) OwnedSection {
			return OwnedSection{genSection.Draw(t, "section"), genEpoch.Draw(t, "epoch")}
		}))
		r.Results = someOf(t, rapid.Custom(func(t *rapid.T) OpResult {
			res := OpResult{
				Refusal: genNum[Refusal](resultRefusalMask).Draw(t, "refusal"), Floor: genSeq.Draw(t, "floor"),
				Bound: genSeq.Draw(t, "bound"), SectionEpoch: genEpoch.Draw(t, "epoch"),
			}
			if rapid.Bool().Draw(t, "hole") {
				res.HoleFrom = ids.Seq(rapid.Uint64Range(1, uint64(ids.MaxSeq)).Draw(t, "from"))
				res.HoleTo = ids.Seq(rapid.Uint64Range(uint64(res.HoleFrom), uint64(ids.MaxSeq)).Draw(t, "to"))
				res.HoleCause = genNum[Cause](255).Draw(t, "cause")
			}
			return res
		}))
		if rapid.Bool().Draw(t, "directory's") {
			r.Move, r.Detail = genMove.Draw(t, "move"), genText.Draw(t, "detail")
		}
		return r
	})
)

// someOf draws up to 5; none is nil, as the decoders have it.
func someOf[T any](t *rapid.T, g *rapid.Generator[T]) []T {
	s := rapid.SliceOfN(g, 0, 5).Draw(t, "some")
	if len(s) == 0 {
		return nil
	}
	return s
}

// roundTrip decodes what was encoded, behind a prefix that must be kept, and
// every truncation of it, which must be refused with a typed error.
func roundTrip[T any](t *rapid.T, v T, enc func([]byte, T) []byte, dec func([]byte) (T, error)) {
	b := enc([]byte("prefix"), v)
	if string(b[:6]) != "prefix" {
		t.Fatal("encoding does not append")
	}
	b = b[6:]
	got, err := dec(b)
	if err != nil {
		t.Fatalf("%+v: %v", v, err)
	}
	if !reflect.DeepEqual(got, v) {
		t.Fatalf("encoded %+v\ndecoded %+v", v, got)
	}
	for _, bad := range [][]byte{b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")], append(b, 0)} {
		var ce *CodecError
		if _, err := dec(bad); !errors.As(err, &ce) {
			t.Fatalf("%d of %d bytes: error %v, want a *CodecError", len(bad), len(b), err)
		}
	}
}

func TestEncodingsRoundTrip(t *testing.T) {
	t.Run("command", rapid.MakeCheck(func(t *rapid.T) {
		roundTrip(t, genAnyCommand.Draw(t, "command"), EncodeCommand, DecodeCommand)
	}))
	t.Run("reply", rapid.MakeCheck(func(t *rapid.T) {
		roundTrip(t, genReply.Draw(t, "reply"), EncodeReply, DecodeReply)
	}))
	t.Run("record", rapid.MakeCheck(func(t *rapid.T) {
		rec := Record{Floor: genSeq.Draw(t, "floor"), Epoch: genEpoch.Draw(t, "epoch"), HoleAtFloor: rapid.Bool().Draw(t, "hole")}
		rec.Bound = rec.Floor
		if rec.Epoch != 0 {
			rec.Bound = ids.Seq(rapid.Uint64Range(uint64(rec.Floor), uint64(ids.MaxSeq)).Draw(t, "bound"))
		}
		rec.Moved = rapid.Bool().Draw(t, "moved")
		roundTrip(t, rec, EncodeRecord, DecodeRecord)
	}))
	t.Run("gaps", rapid.MakeCheck(func(t *rapid.T) {
		roundTrip(t, genGaps.Draw(t, "gaps"), EncodeGaps, DecodeGaps)
	}))
	t.Run("records", rapid.MakeCheck(func(t *rapid.T) {
		roundTrip(t, someOf(t, genKeyed), EncodeRecords, DecodeRecords)
	}))
	t.Run("a page, with the digests of its blocks", rapid.MakeCheck(func(t *rapid.T) {
		records, every := someOf(t, genKeyed), rapid.IntRange(1, 5).Draw(t, "every")
		var want []uint64
		for block := range slices.Chunk(records, every) {
			want = append(want, slowDigest(block))
		}
		w := NewPageWriter(len(records))
		w.Digester.Every = every
		for i := range records {
			w.Add(&records[i])
		}
		page := w.Page()
		if whole := EncodeRecords(nil, records); !bytes.Equal(page, whole) {
			t.Fatalf("written %x, encoded %x", page, whole)
		}
		read := Digester{Every: every}
		got, err := DecodePage(page, &read)
		if err != nil || !reflect.DeepEqual(got, records) {
			t.Fatalf("read %v, %v; want %v", got, err, records)
		}
		sum := slowDigest(records)
		if !slices.Equal(read.Blocks(), want) || !slices.Equal(w.Digester.Blocks(), want) || read.Sum() != sum || Digest(records) != sum {
			t.Fatalf("digests of blocks: read %x, written %x, want %x; of all: %x, %x, want %x", read.Blocks(), w.Digester.Blocks(), want, read.Sum(), Digest(records), sum)
		}
	}))
	t.Run("meta of moves", rapid.MakeCheck(func(t *rapid.T) {
		w := movesOf(rapid.Uint64().Draw(t, "seed"), Bugs{})
		w.run(200)
		enc := func(b []byte, m Meta) []byte { return EncodeMeta(b, &m) }
		for _, s := range w.sets {
			roundTrip(t, s.Meta.Clone(), enc, DecodeMeta)
		}
	}))
	t.Run("meta", rapid.MakeCheck(func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		w := seeded(seed, Bugs{})
		w.apply(PutStore{genStore.Draw(t, "store")})
		w.run(300)
		enc := func(b []byte, m Meta) []byte { return EncodeMeta(b, &m) }
		roundTrip(t, w.s.Meta.Clone(), enc, DecodeMeta)
	}))
}

// slowDigest is what Sets of all versions agree on.
func slowDigest(records []KeyedRecord) (sum uint64) {
	for i := range records {
		b := putKeyedHead(nil, &records[i])
		for _, g := range records[i].Gaps {
			b = putUvarint(putUvarint(b, g.From), g.To)
			b = putBool(append(b, byte(g.Cause)), g.Merged)
		}
		sum += hash(b)
	}
	return sum
}

func TestDecodersRefuse(t *testing.T) {
	huge := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}
	command := func(b []byte) error { _, err := DecodeCommand(b); return err }
	reply := func(b []byte) error { _, err := DecodeReply(b); return err }
	record := func(b []byte) error { _, err := DecodeRecord(b); return err }
	gaps := func(b []byte) error { _, err := DecodeGaps(b); return err }
	meta := func(b []byte) error { _, err := DecodeMeta(b); return err }
	// A Meta whose section is owned by a session that is not there.
	s := New(NewMapKeys())
	s.Apply(1, Genesis{Cluster: "c", ClusterID: "i", Set: "s", Sections: 1, Spaces: ids.DefaultSpaces()}.OwningAll())
	s.Meta.Sections[0].Owner = 7

	tests := []struct {
		name   string
		decode func([]byte) error
		input  []byte
	}{
		{"nothing", command, nil},
		{"a newer format", command, []byte{2, tagBatch}},
		{"an unknown command", command, []byte{1, 99}},
		{"an unknown op", command, []byte{1, tagBatch, 1, 1, 1, 1, 7, 1, 0, 0}},
		{"a release with a fingerprint", command, []byte{1, tagBatch, 1, 1, 1, 1, opFingerprint | 3, 1, 0, 0}},
		{"more ops than bytes", command, append([]byte{1, tagBatch, 1, 1, 1}, huge...)},
		{"more text than bytes", command, append([]byte{1, tagDropStore}, huge...)},
		{"a bool of 2", command, []byte{1, tagLeave, 1, 1, 2}},
		{"an incarnation over 32 bits", command, append([]byte{1, tagExpire, 1}, huge...)},
		{"more results than bytes", reply, append([]byte{1, 0, 0, 0, 0}, huge...)},
		{"a hole that is none", reply, []byte{1, 0, 0, 0, 0, 1, resultHole, 1, 1, 1, 5, 4, 1}},
		{"unknown result flags", reply, []byte{1, 0, 0, 0, 0, 1, 0x40, 1, 1, 1}},
		{"unknown record flags", record, []byte{1, 4, 0, 0, 0}},
		{"a bound past the last number", record, append([]byte{1, 0, 1}, append(huge, 1)...)},
		{"numbers at risk without an epoch", record, []byte{1, 0, 5, 5, 0}},
		{"a hole at zero", gaps, []byte{1, 1, 0, 1, 1, 1, 0}},
		{"more holes than bytes", gaps, append([]byte{1}, huge...)},
		{"an owner that is not there", meta, EncodeMeta(nil, &s.Meta)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var ce *CodecError
			if err := tt.decode(tt.input); !errors.As(err, &ce) {
				t.Errorf("got %v, want a *CodecError", err)
			} else if ce.Offset < 0 || ce.Offset > len(tt.input) || ce.Problem == "" || ce.What == "" {
				t.Errorf("%+v does not say where and what", *ce)
			}
		})
	}
}

// A fixed encoding, so that a change of format cannot go unnoticed: old logs
// and snapshots must stay readable.
func TestEncodingIsTheOneOnDisk(t *testing.T) {
	b := EncodeCommand(nil, Batch{Session: 7, Incarnation: 2, Seq: 300, Ops: []Op{
		{Kind: OpExtend, Epoch: 3, Key: ids.Key{Space: 1, Hi: 42}, Cur: 57, Step: 10_000},
		{Kind: OpReturn, Epoch: 3, Key: ids.Key{Space: 2, Hi: 1, Lo: 2}, Cur: 9},
		{Kind: OpRelease, Epoch: 3, Section: 5, Next: 8},
	}})
	const want = "010c0702ac0203" + "0103012a39904e" + "12030200000000000000010000000000000002" + "09" + "03030508"
	if got := fmt.Sprintf("%x", b); got != want {
		t.Errorf("batch is encoded as\n%s, was\n%s", got, want)
	}
	if got := fmt.Sprintf("%x", EncodeRecord(nil, Record{Floor: 57, Bound: 10_057, Epoch: 3, HoleAtFloor: true})); got != "010139904e03" {
		t.Errorf("record is encoded as %s", got)
	}
	if got := fmt.Sprintf("%x", EncodeGaps(nil, []Gap{{From: 58, To: 157, Cause: CauseMachineLoss, Epoch: 2}, {From: 200, To: 200, Cause: CauseAdvance, Epoch: 3, Merged: true}})); got != "01023a630102002b00020301" {
		t.Errorf("gaps are encoded as %s", got)
	}
}

func bigBatch() Batch {
	b := Batch{Session: 1, Incarnation: 1, Seq: 1}
	for i := range uint64(4096) {
		b.Ops = append(b.Ops, Op{Kind: OpExtend, Epoch: 1, Key: uid(i * 977), Step: 10_000})
	}
	return b
}

func BenchmarkBatchOf4096(b *testing.B) {
	batch := bigBatch()
	encoded := EncodeCommand(nil, batch)
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		buf := make([]byte, 0, len(encoded))
		for b.Loop() {
			buf = EncodeCommand(buf[:0], batch)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := DecodeCommand(encoded); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("apply", func(b *testing.B) {
		b.ReportAllocs()
		s := New(NewMapKeys())
		s.Apply(1, Genesis{Cluster: "c", ClusterID: "i", Set: "s", Sections: 1024, Spaces: ids.DefaultSpaces()}.OwningAll())
		s.Apply(2, Register{Node: "a", Addr: "x"})
		var as []Assignment
		for sec := range ids.Section(1024) {
			as = append(as, Assignment{sec, 1})
		}
		s.Apply(3, Assign{as})
		for b.Loop() {
			if r := s.Apply(4, batch); r.Results[0].Refusal != OK {
				b.Fatal(r.Refusal, r.Results[0])
			}
			batch.Seq++
		}
	})
}
