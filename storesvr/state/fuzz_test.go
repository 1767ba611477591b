package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// fuzzDecoder: whatever is accepted is stable under encoding, and whatever is
// not is refused with a typed error.
func fuzzDecoder[T any](f *testing.F, enc func([]byte, T) []byte, dec func([]byte) (T, error)) {
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := dec(b)
		if err != nil {
			var ce *CodecError
			if !errors.As(err, &ce) {
				t.Fatalf("error %T is not a *CodecError", err)
			}
			return
		}
		once := enc(nil, v)
		again, err := dec(once)
		if err != nil {
			t.Fatalf("own encoding refused: %v", err)
		}
		if twice := enc(nil, again); !bytes.Equal(once, twice) {
			t.Fatalf("encoding is not stable:\n%x\n%x", once, twice)
		}
	})
}

func FuzzDecodeCommand(f *testing.F) {
	for _, c := range fuzzPlay() {
		f.Add(EncodeCommand(nil, c))
	}
	fuzzDecoder(f, EncodeCommand, DecodeCommand)
}

func FuzzDecodeReply(f *testing.F) {
	s := New(NewMapKeys())
	for i, c := range fuzzPlay() {
		f.Add(EncodeReply(nil, s.Apply(uint64(i), c)))
	}
	fuzzDecoder(f, EncodeReply, DecodeReply)
}

func FuzzDecodeMeta(f *testing.F) {
	s := New(NewMapKeys())
	for i, c := range fuzzPlay() {
		s.Apply(uint64(i), c)
		f.Add(EncodeMeta(nil, &s.Meta))
	}
	fuzzDecoder(f, func(b []byte, m Meta) []byte { return EncodeMeta(b, &m) }, DecodeMeta)
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add(EncodeRecord(nil, Record{}))
	f.Add(EncodeRecord(nil, Record{Floor: 57, Bound: 10_057, Epoch: 3}))
	fuzzDecoder(f, EncodeRecord, DecodeRecord)
}

func FuzzDecodeGaps(f *testing.F) {
	f.Add(EncodeGaps(nil, nil))
	f.Add(EncodeGaps(nil, []Gap{{From: 1, To: 9, Cause: CauseAdvance}, {From: 20, To: 20, Cause: CauseMachineLoss, Epoch: 9}}))
	fuzzDecoder(f, EncodeGaps, DecodeGaps)
}

func FuzzDecodeRecords(f *testing.F) {
	f.Add(EncodeRecords(nil, []KeyedRecord{
		{Key: uid(5), Floor: 57, Bound: 57, Gaps: []Gap{{From: 1, To: 9, Cause: CauseAdvance}}},
		{Key: ids.Key{Space: 2, Hi: 1, Lo: 2}, Floor: 1, Bound: 11, Epoch: 3},
	}))
	fuzzDecoder(f, EncodeRecords, DecodeRecords)
}

// FuzzApply applies any list of commands, each preceded by its length in two
// bytes, and checks the invariants after each, and that a replica which went
// through the encoding of its state holds the same.
func FuzzApply(f *testing.F) {
	var play []byte
	for _, c := range fuzzPlay() {
		play = appendFramed(play, c)
	}
	f.Add(play)
	f.Fuzz(func(t *testing.T, b []byte) {
		s := New(NewMapKeys())
		s.Apply(1, fuzzPlay()[0])
		for index := uint64(2); len(b) >= 2; index++ {
			n := min(int(binary.BigEndian.Uint16(b)), len(b)-2)
			c, err := DecodeCommand(b[2 : 2+n])
			b = b[2+n:]
			if err != nil {
				continue
			}
			before := EncodeMeta(nil, &s.Meta)
			reply := s.Apply(index, c)
			if err := Check(s); err != nil {
				t.Fatalf("after %+v: %v", c, err)
			}
			if reply.Refusal != OK && !bytes.Equal(before, EncodeMeta(nil, &s.Meta)) {
				t.Fatalf("%+v was refused (%v), but changed the state", c, reply.Refusal)
			}
			if _, err := DecodeReply(EncodeReply(nil, reply)); err != nil {
				t.Fatalf("reply %+v: %v", reply, err)
			}
		}
		if _, err := DecodeMeta(EncodeMeta(nil, &s.Meta)); err != nil {
			t.Fatal(err)
		}
	})
}

func appendFramed(b []byte, c Command) []byte {
	e := EncodeCommand(nil, c)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(e))), e...)
}

// fuzzPlay is a short life of a cluster with every kind of command in it.
func fuzzPlay() []Command {
	key, name := uid(5), ids.Key{Space: 2, Hi: 1, Lo: 2}
	part := sets.Range{Space: 1, Last: 511}
	return []Command{
		Genesis{Cluster: "c", ClusterID: "i", Set: "s", Sections: 2, Spaces: ids.DefaultSpaces()}.OwningAll(),
		PutStore{StoreNode{ID: "s1", RaftAddr: "r:1", RPCAddr: "g:1"}},
		Register{Node: "a", Addr: "a:1"},
		Register{Node: "b", Addr: "b:1"},
		Assign{[]Assignment{{0, 1}, {1, 2}}},
		Advance{Key: name, To: 100},
		Batch{1, 1, 1, []Op{
			{Kind: OpExtend, Epoch: 1, Key: key, Step: 100},
			{Kind: OpExtend, Epoch: 1, Key: name, Step: 100},
		}},
		Batch{1, 1, 2, []Op{
			{Kind: OpExtend, Epoch: 1, Key: key, Cur: 57, Step: 100},
			{Kind: OpReturn, Epoch: 1, Key: key, Cur: 60},
		}},
		Resume{Session: 1, From: 1, Addr: "a:2"},
		Expire{Session: 1, Incarnation: 2},
		Assign{[]Assignment{{0, 2}}},
		Batch{2, 1, 1, []Op{{Kind: OpExtend, Epoch: 2, Key: name, Step: 7}}},
		Settle{Section: 0, Epoch: 1, Keys: []ids.Key{key, name}, Done: true},
		SetDraining{Node: "b", Draining: true},
		Leave{Session: 2, Incarnation: 1},
		Batch{2, 1, 2, []Op{
			{Kind: OpReturn, Epoch: 2, Key: name, Cur: 201},
			{Kind: OpRelease, Epoch: 2, Section: 0},
			{Kind: OpRelease, Epoch: 1, Section: 1, Next: 2},
		}},
		Leave{Session: 2, Incarnation: 1, Done: true},
		DropStore{ID: "s1"},
		CreateSet{Name: "t", Stores: []string{"t:1"}},
		StartMove{From: "s", To: "t", Ranges: []sets.Range{part}, NowMS: 5},
		OpenPart{Move: 1, Part: 1, Range: part},
		Register{Node: "c", Addr: "c:1"},
		SetDraining{Node: "b"},
		Assign{[]Assignment{{0, 3}}},
		Batch{3, 1, 1, []Op{{Kind: OpExtend, Epoch: 4, Key: key, Step: 10}}},
		Freeze{Move: 1, Part: 1, Range: part, To: "t"},
		Batch{3, 1, 2, []Op{{Kind: OpReturn, Epoch: 4, Key: key, Cur: 60}, {Kind: OpVacate, Move: 1, Part: 1}}},
		Seal{Move: 1, Part: 1},
		Thaw{Move: 1, Part: 1},
		CommitPart{Move: 1, Part: 1, Keys: 1, Checksum: 7, FrozenUS: 900},
		Drop{Move: 1, Part: 1},
		EndPart{Move: 1, Part: 1, NowMS: 6},
		EndMove{Move: 1},
		Sweep{Keys: []ids.Key{key}},
		StartMove{From: "t", To: "s", NowMS: 7},
		OpenPart{Move: 2, Part: 1, Range: part},
		Import{Move: 2, Part: 1, Range: part, From: "t", Records: []KeyedRecord{{Key: key, Floor: 80, Bound: 80}}},
		AbortPart{Move: 2, Part: 1, Reason: "r"},
		Discard{Move: 2, Part: 1},
		EndPart{Move: 2, Part: 1, NowMS: 8, Next: part},
		Import{Move: 2, Part: 2, Range: part, From: "t"},
		Preload{Move: 2, Range: part, From: "t", Records: []KeyedRecord{{Key: key, Floor: 70, Bound: 70}}},
		CommitPart{Move: 2, Part: 2},
		Activate{Move: 2, Part: 2},
		EndPart{Move: 2, Part: 2, NowMS: 9},
		AbortMove{Move: 2, Reason: "r"},
		PutMap{},
		UpdateSet{Name: "t", Stores: []string{"t:2"}},
		RetireSet{Name: "t"},
	}
}
