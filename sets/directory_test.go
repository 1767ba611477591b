package sets

import (
	"bytes"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqsvr/seqsvr/internal/ids"
)

func testDirectory(t testing.TB) *Directory {
	t.Helper()
	d := NewDirectory("s1", testSpaces)
	for _, name := range []string{"s3", "s2"} {
		if err := d.CreateSet(name, []string{name + ":1"}); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func span(lo, last ids.Position) Range { return Range{Space: 1, Lo: lo, Last: last} }

// moveAll carries a move out in parts of at most n positions.
func moveAll(t testing.TB, d *Directory, id MoveID, n uint64) {
	t.Helper()
	for {
		m, _ := d.Move(id)
		if m.Over() {
			return
		}
		r := m.Left()[0]
		r.Last = min(r.Last, r.Lo+ids.Position(n-1))
		p := m.Part + 1
		for _, err := range []error{d.OpenPart(id, p, r), d.CommitPart(id, p, 1, 2, 100), d.EndPart(id, p, 9), d.Check()} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestAMoveInPartsLeavesAMergedMap(t *testing.T) {
	d := testDirectory(t)
	before := d.Map
	id, err := d.StartMove("s1", "s2", []Range{span(100, 199), span(300, 349)}, testSpaces, 1)
	if err != nil {
		t.Fatal(err)
	}
	moveAll(t, d, id, 30)
	want := []Range{span(100, 199), span(300, 349)}
	if got := d.Map.Owned("s2"); !slices.Equal(got, want) {
		t.Errorf("s2 owns %v", got)
	}
	if m, _ := d.Move(id); m.State != MoveDone || m.Parts != 6 || m.Keys != 6 || m.Checksum != 12 || m.EndedMS != 9 || m.Left() != nil || !slices.Equal(m.Moved(), want) {
		t.Errorf("the move is %+v", m)
	}
	if d.Map.Version != before.Version+6 {
		t.Errorf("version %d after 6 parts from %d", d.Map.Version, before.Version)
	}
	back, err := d.StartMove("s2", "s1", nil, testSpaces, 1)
	if err != nil {
		t.Fatal(err)
	}
	moveAll(t, d, back, 1000)
	if !slices.Equal(d.Map.Entries, before.Entries) {
		t.Errorf("there and back the map is %v, was %v", d.Map.Entries, before.Entries)
	}
	if d.EndedThrough() != back {
		t.Errorf("ended through %d", d.EndedThrough())
	}
}

// idOfSpace is a range that names its space by the id.
var idOfSpace = regexp.MustCompile(`(^|[^:\w])\d+:\d+-`)

func TestTheDirectoryRefuses(t *testing.T) {
	d := testDirectory(t)
	id, err := d.StartMove("s1", "s2", []Range{span(0, 99)}, testSpaces, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.OpenPart(id, 1, span(0, 9)); err != nil {
		t.Fatal(err)
	}
	start := func(from, to string, r ...Range) error {
		_, err := d.StartMove(from, to, r, testSpaces, 1)
		return err
	}
	owner := testDirectory(t)
	owner.Home = "s3"
	other := testDirectory(t)
	beside, err := other.StartMove("s1", "s2", []Range{span(0, 99)}, testSpaces, 1)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		err  error
		want any
	}{
		"a move to itself":            {start("s1", "s1", span(500, 501)), new(*SameSetError)},
		"an unknown source":           {start("sx", "s1"), new(*NoSuchSetError)},
		"an unknown target":           {start("s1", "sx"), new(*NoSuchSetError)},
		"an overlapping move":         {start("s1", "s3", span(99, 120)), new(*OverlappingMoveError)},
		"a move of nothing":           {start("s2", "s1"), new(*NothingToMoveError)},
		"a range of another set":      {start("s2", "s1", span(500, 501)), new(*NotOwnedError)},
		"a range outside its space":   {start("s1", "s2", span(9000, 10_000)), new(*OutsideError)},
		"an unknown space":            {start("s1", "s2", Range{Space: 7}), new(*OutsideError)},
		"an empty range":              {start("s1", "s2", span(7, 6)), new(*EmptyRangeError)},
		"a range named twice":         {start("s1", "s2", span(500, 600), span(600, 700)), new(*OverlappingRangesError)},
		"a name that is taken":        {d.CreateSet("s2", []string{"other:1"}), new(*NameTakenError)},
		"no name":                     {d.CreateSet("", []string{"x:1"}), new(*BadNameError)},
		"a set without stores":        {d.CreateSet("s9", nil), new(*BadStoresError)},
		"a store named twice":         {d.UpdateSet("s2", []string{"x:1", "x:1"}), new(*BadStoresError)},
		"retiring the directory":      {d.RetireSet("s1"), new(*InUseError)},
		"retiring a target":           {d.RetireSet("s2"), new(*InUseError)},
		"retiring an owner":           {owner.RetireSet("s1"), new(*StillOwnsError)},
		"a part beside its move":      {other.OpenPart(beside, 1, span(700, 701)), new(*PartRangeError)},
		"retiring what is not there":  {d.RetireSet("sx"), new(*NoSuchSetError)},
		"an unknown move":             {d.CommitPart(9, 1, 0, 0, 0), new(*NoSuchMoveError)},
		"a part not at hand":          {d.CommitPart(id, 2, 0, 0, 0), new(*PartError)},
		"a second open part":          {d.OpenPart(id, 2, span(10, 19)), new(*PartError)},
		"the end of an open part":     {d.EndPart(id, 1, 1), new(*PartError)},
		"an abort of a part not open": {d.AbortPart(id, 2, "r"), new(*PartError)},
	} {
		if tt.err == nil || !errors.As(tt.err, tt.want) || tt.err.Error() == "" {
			t.Errorf("%s: %v", name, tt.err)
		}
		if text := Text(tt.err, testSpaces); idOfSpace.MatchString(text) && name != "an unknown space" {
			t.Errorf("%s: an operator is told of a space by its id: %s", name, text)
		}
	}
	if want := testDirectory(t); !reflect.DeepEqual(d.Published, want.Published) {
		t.Errorf("refusals changed the map to %+v", d.Published)
	}
}

func TestCommittedAndAbortedExcludeEachOther(t *testing.T) {
	open := func() (*Directory, MoveID) {
		d := testDirectory(t)
		id, _ := d.StartMove("s1", "s2", []Range{span(0, 99)}, testSpaces, 1)
		if err := d.OpenPart(id, 1, span(0, 9)); err != nil {
			t.Fatal(err)
		}
		return d, id
	}
	d, id := open()
	if err := d.AbortPart(id, 1, "r"); err != nil || d.Verdict(id, 1) != VerdictAborted {
		t.Fatal(err, d.Verdict(id, 1))
	}
	if err := d.CommitPart(id, 1, 0, 0, 0); err == nil {
		t.Error("an aborted part is committed")
	}
	if err := d.EndPart(id, 1, 1); err != nil {
		t.Fatal(err)
	}
	if err := d.CommitPart(id, 1, 0, 0, 0); err == nil {
		t.Error("an aborted part is committed after its end")
	}
	if v := d.Verdict(id, 1); v != VerdictAborted {
		t.Errorf("of a part that was aborted and has ended the verdict is %v", v)
	}
	if err := d.OpenPart(id, 1, span(0, 9)); err == nil {
		t.Error("a part number is used twice")
	}
	d, id = open()
	if err := d.CommitPart(id, 1, 0, 0, 0); err != nil || d.Verdict(id, 1) != VerdictCommitted {
		t.Fatal(err, d.Verdict(id, 1))
	}
	if err := d.AbortPart(id, 1, "r"); err == nil {
		t.Error("a committed part is aborted")
	}
	if err := d.AbortMove(id, "r", 5); err != nil || d.Verdict(id, 1) != VerdictCommitted {
		t.Error(err, d.Verdict(id, 1))
	}
	if err := d.EndPart(id, 1, 6); err != nil {
		t.Fatal(err)
	}
	if v := d.Verdict(id, 1); v != VerdictOver {
		t.Errorf("of a part that was committed and has ended the verdict is %v", v)
	}
	if m, _ := d.Move(id); m.State != MoveAborted || !slices.Equal(m.Moved(), []Range{span(0, 9)}) || !slices.Equal(d.Map.Owned("s2"), m.Moved()) {
		t.Errorf("what was committed did not stay moved: %+v", m)
	}
	d, id = open()
	if err := d.AbortMove(id, "r", 5); err != nil || d.Verdict(id, 1) != VerdictAborted {
		t.Error(err, d.Verdict(id, 1))
	}
}

func TestEveryPartThatHasEndedIsKnownToBeOverForEver(t *testing.T) {
	d := testDirectory(t)
	start := func() MoveID {
		id, err := d.StartMove("s1", "s2", []Range{span(0, 99)}, testSpaces, 1)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	want := func(id MoveID, p Part, v Verdict) {
		t.Helper()
		if got := d.Verdict(id, p); got != v {
			t.Errorf("move %d, part %d: %v, want %v", id, p, got, v)
		}
	}
	id := start()
	want(id, 1, VerdictOpen)
	for p := Part(1); p <= 2; p++ {
		for _, err := range []error{d.OpenPart(id, p, span(0, 9)), d.AbortPart(id, p, "r"), d.EndPart(id, p, 1)} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	want(id, 1, VerdictOver)
	want(id, 2, VerdictAborted)
	want(id, 3, VerdictOpen)
	if err := d.AbortMove(id, "r", 1); err != nil {
		t.Fatal(err)
	}
	want(id, 2, VerdictAborted)
	for range EndedMax {
		if err := d.AbortMove(start(), "r", 1); err != nil {
			t.Fatal(err)
		}
	}
	if _, listed := d.Move(id); listed {
		t.Fatal("the move is remembered")
	}
	want(id, 1, VerdictOver)
	want(id, 2, VerdictOver)
	// What nobody has heard of is waited for.
	want(d.LastMove+1, 1, VerdictOpen)
	want(0, 1, VerdictOpen)
	want(id, 0, VerdictOpen)
}

func TestMovesUnderWayAreBounded(t *testing.T) {
	d := testDirectory(t)
	for i := range RunningMax {
		if _, err := d.StartMove("s1", "s2", []Range{span(ids.Position(i)*10, ids.Position(i)*10+5)}, testSpaces, 1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.StartMove("s1", "s2", []Range{span(9000, 9001)}, testSpaces, 1); !errors.As(err, new(*TooManyMovesError)) {
		t.Error(err)
	}
	// All but the first end, and others come and go, until they are too far ahead of it.
	for id := MoveID(2); id <= RunningMax; id++ {
		if err := d.AbortMove(id, "r", 1); err != nil {
			t.Fatal(err)
		}
	}
	for {
		id, err := d.StartMove("s1", "s2", []Range{span(9000, 9001)}, testSpaces, 1)
		if err != nil {
			if !errors.As(err, new(*TooManyMovesError)) || d.LastMove != SpanMax {
				t.Errorf("after move %d: %v", d.LastMove, err)
			}
			break
		}
		if err := d.AbortMove(id, "r", 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Check(); err != nil {
		t.Error(err)
	}
}

// drawn is a directory after some random changes, each of which kept its invariants.
func drawn(t *rapid.T) *Directory {
	d := NewDirectory("s1", testSpaces)
	names := []string{"s1", "s2", "s3"}
	for range rapid.IntRange(0, 40).Draw(t, "changes") {
		before := EncodeDirectory(nil, d)
		id := MoveID(rapid.IntRange(1, 4).Draw(t, "move"))
		m, _ := d.Move(id)
		p := m.Part + Part(rapid.IntRange(0, 1).Draw(t, "next"))
		from, to := rapid.SampledFrom(names).Draw(t, "from"), rapid.SampledFrom(names).Draw(t, "to")
		lo := ids.Position(rapid.Uint64Range(0, 9999).Draw(t, "lo"))
		r := span(lo, min(9999, lo+ids.Position(rapid.Uint64Range(0, 3000).Draw(t, "len"))))
		if left := m.Left(); len(left) > 0 && rapid.Bool().Draw(t, "fits") {
			r = left[0]
			r.Last = min(r.Last, r.Lo+500)
		}
		var err error
		switch rapid.IntRange(0, 8).Draw(t, "what") {
		case 0:
			err = d.CreateSet(to, []string{"x:1"})
		case 1:
			err = d.UpdateSet(to, []string{from})
		case 2:
			err = d.RetireSet(to)
		case 3:
			_, err = d.StartMove(from, to, []Range{r}, testSpaces, 1)
		case 4:
			err = d.OpenPart(id, p, r)
		case 5:
			err = d.CommitPart(id, m.Part, 3, 4, rapid.Uint32().Draw(t, "us"))
		case 6:
			err = d.AbortPart(id, p, "r")
		case 7:
			err = d.EndPart(id, m.Part, 2)
		case 8:
			err = d.AbortMove(id, "r", 2)
		}
		if err != nil && !bytes.Equal(before, EncodeDirectory(nil, d)) {
			t.Fatalf("refused with %v, but changed", err)
		}
		if err := d.Check(); err != nil {
			t.Fatal(err)
		}
		if err := d.Map.Validate(testSpaces); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func TestDirectoriesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawn(t)
		got, err := DecodeDirectory(EncodeDirectory(nil, d))
		if err != nil || !bytes.Equal(EncodeDirectory(nil, got), EncodeDirectory(nil, d)) {
			t.Fatalf("%+v reads back as %+v, %v", d, got, err)
		}
		p, err := DecodePublished(EncodePublished(nil, &d.Published))
		if err != nil || !reflect.DeepEqual(p, d.Published) {
			t.Fatalf("%+v reads back as %+v, %v", d.Published, p, err)
		}
	})
}

func TestFrozenP99IsNoLessThanTheTruth(t *testing.T) {
	var f Frozen
	for us := uint32(1); us <= 100_000; us += 10 {
		f.note(us)
	}
	if got := f.P99MS(); got < 99 || got > 149 || f.MaxMS() < 99.9 {
		t.Errorf("p99 %v ms, max %v ms of 0 to 100 ms", got, f.MaxMS())
	}
}

func FuzzDecodePublished(f *testing.F) {
	f.Add(EncodePublished(nil, &Published{}))
	f.Add(EncodePublished(nil, &testDirectory(f).Published))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := DecodePublished(b)
		if err != nil {
			var ce *CodecError
			if !errors.As(err, &ce) {
				t.Fatalf("error %T", err)
			}
			return
		}
		again, err := DecodePublished(EncodePublished(nil, &p))
		if err != nil || !reflect.DeepEqual(p, again) {
			t.Fatalf("%+v reads back as %+v, %v", p, again, err)
		}
	})
}

func FuzzDecodeDirectory(f *testing.F) {
	d := testDirectory(f)
	id, _ := d.StartMove("s1", "s2", []Range{span(0, 99)}, testSpaces, 1)
	moveAll(f, d, id, 40)
	f.Add(EncodeDirectory(nil, d))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := DecodeDirectory(b)
		if err != nil {
			return
		}
		if _, err := DecodeDirectory(EncodeDirectory(nil, d)); err != nil {
			t.Fatal(err)
		}
	})
}
