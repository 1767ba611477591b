package allocsvr

import (
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
)

func frozenPB(move uint64, part uint32, lo, last uint64) *seqpb.FrozenRange {
	return &seqpb.FrozenRange{Move: move, Part: part, Range: &seqpb.Range{Space: 1, Lo: lo, Last: last}}
}

func TestAFreezeVacatesOnlyAfterALookThatFoundNothing(t *testing.T) {
	var b freezes
	if !b.directed([]*seqpb.FrozenRange{frozenPB(1, 1, 0, 255)}) || b.directed([]*seqpb.FrozenRange{frozenPB(1, 1, 0, 255)}) {
		t.Fatal("the first directive changes what is shut, its repetition does not")
	}
	f := b.find(1, 1)
	if f.step() != freezeClose || f.looked(look{elsewhere: 1}) != freezeWait || f.step() != freezeClose {
		t.Fatal("keys under release are waited for, and looked for again")
	}
	if f.looked(look{closed: 2}) != freezeWait || f.step() != freezeWait || f.returned(1) || f.step() != freezeWait {
		t.Fatal("hand-backs are waited for")
	}
	if !f.returned(1) || f.step() != freezeClose || f.looked(look{closed: 1}) != freezeWait || !f.returned(1) {
		t.Fatal("after them the range is looked at again")
	}
	if f.looked(look{}) != freezeVacate || f.step() != freezeWait {
		t.Fatal("nothing found: vacate, once")
	}
	b.directed(nil)
	if len(b.shut()) != 1 {
		t.Fatal("open again while the vacation is under way")
	}
	f.vacated()
	if !b.directed(nil) || len(b.shut()) != 0 {
		t.Fatal("not over")
	}
}

// What a look has closed itself goes back in front of the vacation, in the same batch if
// it fits. Nothing else may be on its way or elsewhere then.
func TestAFreezeVacatesBehindTheReturnsOfItsOwnLook(t *testing.T) {
	begun := []*eviction{{}, {}}
	for _, c := range []struct {
		look look
		want freezeStep
	}{
		{look{closed: 2, begun: begun}, freezeVacate},
		{look{closed: 3, begun: begun}, freezeWait},
		{look{closed: 2, elsewhere: 1, begun: begun}, freezeWait},
		{look{closed: 2, doubted: 1, begun: begun}, freezeWait},
	} {
		f := &freeze{listed: true}
		if got := f.looked(c.look); got != c.want {
			t.Errorf("%+v: step %d, want %d", c.look, got, c.want)
		}
		if f.again(); c.want == freezeVacate && f.step() != freezeClose {
			t.Error("a vacation that was not sent is not followed by a look")
		}
	}
}

func TestADoubtedKeyKeepsTheRangeFromBeingVacated(t *testing.T) {
	var b freezes
	b.directed([]*seqpb.FrozenRange{frozenPB(1, 1, 0, 255)})
	if f := b.find(1, 1); f.looked(look{closed: 1, doubted: 1}) != freezeWait || f.step() != freezeWait || f.phase != freezeStuck {
		t.Fatalf("%+v", f)
	}
	if !b.directed(nil) {
		t.Fatal("does not end with the freeze")
	}
}

// The next part of a move begins its own freeze: what is shut does not open in between.
func TestThePartsOfAMoveAreFreezesOfTheirOwn(t *testing.T) {
	var b freezes
	b.directed([]*seqpb.FrozenRange{frozenPB(1, 1, 0, 255)})
	b.find(1, 1).looked(look{closed: 3})
	b.directed([]*seqpb.FrozenRange{frozenPB(1, 2, 0, 255), frozenPB(2, 1, 256, 511), {Move: 3}})
	if got := b.shut(); len(b.list) != 3 || len(got) != 1 || got[0] != (sets.Range{Space: 1, Last: 511}) {
		t.Fatalf("%v", got)
	}
	if b.find(1, 1).step() != freezeWait || b.find(1, 2).step() != freezeClose {
		t.Fatal("the old part goes on, or the new one does not begin")
	}
	b.find(1, 1).returned(3)
	if b.settle(); len(b.list) != 2 {
		t.Fatal("the old part does not end")
	}
}

func TestASectionOfARangeIsNotLeftOut(t *testing.T) {
	for _, c := range []struct {
		r    sets.Range
		want int
	}{
		{sets.Range{Space: 1, Lo: 0, Last: 0}, 1},
		{sets.Range{Space: 1, Lo: 255, Last: 256}, 2},
		{sets.Range{Space: 1, Lo: 7 * 256, Last: 9*256 - 1}, 2},
		{sets.Range{Space: 1, Lo: 0, Last: 8*256 - 1}, 8},
		{sets.Range{Space: 2, Lo: 0, Last: ^ids.Position(0)}, 8},
	} {
		got := map[ids.Section]int{}
		eachSection(c.r, 8, func(s ids.Section) { got[s]++ })
		if len(got) != c.want {
			t.Errorf("%v: %v", c.r, got)
		}
		for _, p := range []ids.Position{c.r.Lo, c.r.Last} {
			if got[(ids.Key{Space: c.r.Space, Hi: uint64(p)}).Section(8)] != 1 {
				t.Errorf("%v: the section of %d is in %v", c.r, p, got)
			}
		}
	}
}
