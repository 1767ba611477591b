package state

import (
	"encoding/hex"
	"math"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

var (
	genMove  = genNum[sets.MoveID](math.MaxUint64)
	genPart  = genNum[sets.Part](math.MaxUint32)
	genRange = rapid.Custom(func(t *rapid.T) sets.Range {
		lo := rapid.Uint64().Draw(t, "lo")
		return sets.Range{
			Space: genNum[ids.SpaceID](math.MaxUint16).Draw(t, "space"),
			Lo:    ids.Position(lo), Last: ids.Position(rapid.Uint64Range(lo, math.MaxUint64).Draw(t, "last")),
		}
	})
	genKeyed = rapid.Custom(func(t *rapid.T) KeyedRecord {
		kr := KeyedRecord{Key: genKey.Draw(t, "key"), Floor: genSeq.Draw(t, "floor"), Gaps: genGaps.Draw(t, "gaps")}
		kr.Bound = kr.Floor
		if rapid.Bool().Draw(t, "at risk") {
			kr.Epoch = genEpoch.Draw(t, "epoch")
			kr.Bound = ids.Seq(rapid.Uint64Range(uint64(kr.Floor), uint64(ids.MaxSeq)).Draw(t, "bound"))
		}
		return kr
	})
	genPublished = rapid.Custom(func(t *rapid.T) sets.Published {
		if rapid.Bool().Draw(t, "none") {
			return sets.Published{}
		}
		d := sets.NewDirectory("s1", ids.DefaultSpaces())
		if err := d.CreateSet("s2", []string{"a:1", "b:2"}); err != nil {
			t.Fatal(err)
		}
		lo := ids.Position(rapid.Uint64Range(0, ids.DefaultMaxUID).Draw(t, "lo"))
		last := ids.Position(rapid.Uint64Range(uint64(lo), ids.DefaultMaxUID).Draw(t, "last"))
		m, err := d.Map.Give(sets.Range{Space: 1, Lo: lo, Last: last}, "s1", "s2")
		if err != nil {
			t.Fatal(err)
		}
		d.Map = m
		return d.Published
	})
	genStores     = rapid.Custom(func(t *rapid.T) []string { return someOf(t, genText) })
	genMS         = rapid.Int64()
	genSetCommand = rapid.Custom(func(t *rapid.T) Command {
		m, p, r := genMove.Draw(t, "move"), genPart.Draw(t, "part"), genRange.Draw(t, "range")
		text := genText.Draw(t, "text")
		all := []func() Command{
			func() Command { return PutMap{genPublished.Draw(t, "map")} },
			func() Command { return Freeze{m, p, r, text} },
			func() Command { return Thaw{m, p, rapid.Bool().Draw(t, "forced")} },
			func() Command { return Seal{m, p} },
			func() Command { return Drop{m, p, genPublished.Draw(t, "map")} },
			func() Command { return Import{m, p, r, text, someOf(t, genKeyed)} },
			func() Command { return Activate{m, p, genPublished.Draw(t, "map")} },
			func() Command { return Discard{m, p} },
			func() Command { return EndMove{m} },
			func() Command { return Sweep{someOf(t, genKey)} },
			func() Command { return CreateSet{text, genStores.Draw(t, "stores")} },
			func() Command { return UpdateSet{text, genStores.Draw(t, "stores")} },
			func() Command { return RetireSet{text} },
			func() Command { return StartMove{text, text, someOf(t, genRange), genMS.Draw(t, "now")} },
			func() Command { return OpenPart{m, p, r} },
			func() Command {
				return CommitPart{m, p, rapid.Uint64().Draw(t, "keys"), rapid.Uint64().Draw(t, "sum"), rapid.Uint32().Draw(t, "us")}
			},
			func() Command { return AbortPart{m, p, text} },
			func() Command { return EndPart{m, p, genMS.Draw(t, "now"), sets.Range{}} },
			func() Command { return EndPart{m, p, genMS.Draw(t, "now"), r} },
			func() Command { return Preload{m, r, text, someOf(t, genKeyed)} },
			func() Command { return AbortMove{m, text, genMS.Draw(t, "now")} },
		}
		return all[rapid.IntRange(0, len(all)-1).Draw(t, "which")]()
	})
)

// What was written before there were Sets reads as a cluster of one Set, which
// owns everything, and is written the same way as long as it is that.
func TestStateOfATimeBeforeSetsOwnsEverything(t *testing.T) {
	const (
		oldGenesis = "01010163016901730202010375696401ffffffff0f0204636f6e760200"
		oldMeta    = "010163016901730202010375696401ffffffff0f0204636f6e76020002020201010b02010005020102010101016203623a3100000000040102733103723a3103673a3100000b"
	)
	c, err := DecodeCommand(unhex(t, oldGenesis))
	if err != nil {
		t.Fatal(err)
	}
	want := Genesis{Cluster: "c", ClusterID: "i", Set: "s", Sections: 2, Spaces: ids.DefaultSpaces()}.OwningAll()
	if !reflect.DeepEqual(c, want) {
		t.Errorf("the old genesis reads as %+v", c)
	}
	m, err := DecodeMeta(unhex(t, oldMeta))
	if err != nil {
		t.Fatal(err)
	}
	s := State{Meta: m}
	if !s.Owns(uid(0)) || !s.Owns(uid(ids.DefaultMaxUID)) || m.Directory == nil || m.Published.Home != "s" || m.Published.Map.Version != 1 {
		t.Errorf("the old state reads as owning %v with map %+v", m.Ranges, m.Published)
	}
	if got := hex.EncodeToString(EncodeMeta(nil, &m)); got != oldMeta {
		t.Errorf("it is written as %s", got)
	}
	if err := m.Directory.CreateSet("s2", []string{"x:1"}); err != nil {
		t.Fatal(err)
	}
	if b := EncodeMeta(nil, &m); b[0] != metaVersion {
		t.Errorf("with a second Set it is written in format %d, which an older program would misread", b[0])
	}
}

func unhex(t *testing.T, s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSetCommandsHaveAFixedEncoding(t *testing.T) {
	r := sets.Range{Space: 1, Lo: 256, Last: 511}
	for want, c := range map[string]Command{
		"010f03020180" + "02ff01" + "0162":        Freeze{Move: 3, Part: 2, Range: r, To: "b"},
		"0110030201":                              Thaw{Move: 3, Part: 2, Forced: true},
		"01130302018002ff0101610100018002" + "39": Import{Move: 3, Part: 2, Range: r, From: "a", Records: []KeyedRecord{{Key: uid(256), Floor: 57, Bound: 57}}},
	} {
		if got := hex.EncodeToString(EncodeCommand(nil, c)); got != want {
			t.Errorf("%T is encoded as %s, was %s", c, got, want)
		}
	}
}
