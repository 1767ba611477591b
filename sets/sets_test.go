package sets

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
	"pgregory.net/rapid"
)

var testSpaces = []ids.Space{
	{ID: 1, Name: "uid", Kind: ids.KindUID, MaxUID: 9999},
	{ID: 2, Name: "conv", Kind: ids.KindName},
}

func TestRangeTextRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		edge := rapid.SampledFrom([]uint64{0, 1, math.MaxUint64 - 1, math.MaxUint64})
		pos := rapid.OneOf(rapid.Uint64(), edge)
		a, b := pos.Draw(t, "a"), pos.Draw(t, "b")
		r := Range{Space: 3, Lo: ids.Position(min(a, b)), Last: ids.Position(max(a, b))}
		got, err := ParseRange(3, r.Text())
		if err != nil || got != r {
			t.Fatalf("%+v as %q reads back as %+v, %v", r, r.Text(), got, err)
		}
	})
}

func TestParseRangeRefuses(t *testing.T) {
	for _, text := range []string{"", "-", "5", "a-b", "-5-7", "7-5", "5-5", "0-0", "0-18446744073709551617", "18446744073709551616-", "1-2-3", " 1-2", "+1-2"} {
		if r, err := ParseRange(1, text); !errors.Is(err, ErrBadRange) {
			t.Errorf("%q: got %v, %v, want ErrBadRange", text, r, err)
		}
	}
}

func TestParseRangeIsHalfOpen(t *testing.T) {
	for text, want := range map[string]Range{
		"0-1000":                 {Space: 1, Lo: 0, Last: 999},
		"5-6":                    {Space: 1, Lo: 5, Last: 5},
		"5-":                     {Space: 1, Lo: 5, Last: math.MaxUint64},
		"0-18446744073709551615": {Space: 1, Lo: 0, Last: math.MaxUint64 - 1},
		"0-18446744073709551616": {Space: 1, Lo: 0, Last: math.MaxUint64},
	} {
		if got, err := ParseRange(1, text); err != nil || got != want {
			t.Errorf("%q: got %+v, %v, want %+v", text, got, err, want)
		}
	}
}

func TestSingleOwnsEverything(t *testing.T) {
	m := Single("s1", testSpaces)
	if err := m.Validate(testSpaces); err != nil {
		t.Fatal(err)
	}
	for _, p := range []ids.Position{0, 1, 9999} {
		if s, ok := m.Lookup(1, p); !ok || s != "s1" {
			t.Errorf("uid %d: %q, %v", p, s, ok)
		}
	}
	if _, ok := m.Lookup(1, 10000); ok {
		t.Error("a position past the space's end has an owner")
	}
	if s, ok := m.Lookup(2, math.MaxUint64); !ok || s != "s1" {
		t.Errorf("the last name position: %q, %v", s, ok)
	}
	if _, ok := m.Lookup(3, 0); ok {
		t.Error("an unknown space has an owner")
	}
}

// namesWhole covers space 2, so that the cases below are about space 1.
var namesWhole = Entry{Range: Whole(testSpaces[1]), Set: "a"}

func uids(lo, last ids.Position, set string) Entry {
	return Entry{Range: Range{Space: 1, Lo: lo, Last: last}, Set: set}
}

func TestValidateNamesTheOffenders(t *testing.T) {
	sets := []string{"a", "b"}
	t.Run("overlap", func(t *testing.T) {
		m := Map{Sets: sets, Entries: []Entry{uids(0, 500, "a"), uids(500, 9999, "b"), namesWhole}}
		var e *OverlapError
		if err := m.Validate(testSpaces); !errors.As(err, &e) || e.A.Set != "a" || e.B.Set != "b" {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("hole", func(t *testing.T) {
		m := Map{Sets: sets, Entries: []Entry{uids(0, 499, "a"), uids(600, 9999, "b"), namesWhole}}
		var e *HoleError
		if err := m.Validate(testSpaces); !errors.As(err, &e) || e.Before.Set != "a" || e.After.Set != "b" ||
			e.Hole != (Range{Space: 1, Lo: 500, Last: 599}) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("hole at the start", func(t *testing.T) {
		m := Map{Sets: sets, Entries: []Entry{uids(1, 9999, "a"), namesWhole}}
		var e *HoleError
		if err := m.Validate(testSpaces); !errors.As(err, &e) || e.Before != nil || e.After.Set != "a" {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("hole at the end", func(t *testing.T) {
		m := Map{Sets: sets, Entries: []Entry{uids(0, 9998, "a"), namesWhole}}
		var e *HoleError
		if err := m.Validate(testSpaces); !errors.As(err, &e) || e.Before.Set != "a" || e.After != nil {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("a whole space left out", func(t *testing.T) {
		m := Map{Sets: sets, Entries: []Entry{uids(0, 9999, "a")}}
		var e *HoleError
		if err := m.Validate(testSpaces); !errors.As(err, &e) || e.Hole != Whole(testSpaces[1]) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("a declared hole is fine", func(t *testing.T) {
		m := Map{Sets: sets, Entries: []Entry{uids(0, 499, "a"), uids(500, 599, Unassigned), uids(600, 9999, "b"), namesWhole}}
		if err := m.Validate(testSpaces); err != nil {
			t.Fatal(err)
		}
		if s, ok := m.Lookup(1, 550); ok {
			t.Fatalf("an unassigned position has owner %q", s)
		}
	})
	t.Run("unknown set", func(t *testing.T) {
		m := Map{Sets: sets, Entries: []Entry{uids(0, 9999, "c"), namesWhole}}
		var e *UnknownSetError
		if err := m.Validate(testSpaces); !errors.As(err, &e) || e.Entry.Set != "c" {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("outside the space", func(t *testing.T) {
		m := Map{Sets: sets, Entries: []Entry{uids(0, 10000, "a"), namesWhole}}
		var e *OutsideError
		if err := m.Validate(testSpaces); !errors.As(err, &e) || e.Space.Name != "uid" {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("unknown space", func(t *testing.T) {
		m := Map{Sets: sets, Entries: []Entry{uids(0, 9999, "a"), namesWhole, {Range: Range{Space: 7}, Set: "a"}}}
		var e *OutsideError
		if err := m.Validate(testSpaces); !errors.As(err, &e) || e.Space.ID != 0 {
			t.Fatalf("got %v", err)
		}
	})
	for name, m := range map[string]Map{
		"unsorted entries": {Sets: sets, Entries: []Entry{uids(500, 9999, "b"), uids(0, 499, "a"), namesWhole}},
		"unsorted sets":    {Sets: []string{"b", "a"}, Entries: []Entry{uids(0, 9999, "a"), namesWhole}},
		"a set twice":      {Sets: []string{"a", "a"}, Entries: []Entry{uids(0, 9999, "a"), namesWhole}},
		"an unnamed set":   {Sets: []string{"", "a"}, Entries: []Entry{uids(0, 9999, "a"), namesWhole}},
		"a reversed range": {Sets: sets, Entries: []Entry{uids(9, 3, "a"), namesWhole}},
	} {
		t.Run(name, func(t *testing.T) {
			var e *FormError
			if err := m.Validate(testSpaces); !errors.As(err, &e) {
				t.Fatalf("got %v, want a FormError", err)
			}
		})
	}
}

// Assemble and Lookup are checked against the slow and obvious: ask each Set's ranges in turn.
func TestLookupAgreesWithTheRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cuts := rapid.SliceOfNDistinct(rapid.Uint64Range(1, 9999), 0, 8, rapid.ID[uint64]).Draw(t, "cuts")
		cuts = append(cuts, 0, 10000)
		slices.Sort(cuts)
		owned := map[string][]Range{"a": nil, "b": nil, "c": {Whole(testSpaces[1])}}
		for i := 1; i < len(cuts); i++ {
			set := rapid.SampledFrom([]string{"a", "b", "c", Unassigned}).Draw(t, "set")
			if set != Unassigned {
				owned[set] = append(owned[set], Range{Space: 1, Lo: ids.Position(cuts[i-1]), Last: ids.Position(cuts[i] - 1)})
			}
		}
		m, err := Assemble(4, owned, testSpaces)
		if err != nil {
			t.Fatal(err)
		}
		if m.Version != 4 {
			t.Fatalf("version %d", m.Version)
		}
		for range 20 {
			space := ids.SpaceID(rapid.IntRange(1, 2).Draw(t, "space"))
			p := ids.Position(rapid.Uint64Range(0, 10001).Draw(t, "position"))
			want := ""
			for set, ranges := range owned {
				for _, r := range ranges {
					if r.Contains(space, p) {
						want = set
					}
				}
			}
			if got, ok := m.Lookup(space, p); got != want || ok != (want != "") {
				t.Fatalf("%d/%d: got %q, want %q", space, p, got, want)
			}
		}
		for set := range owned {
			for _, r := range m.Owned(set) {
				if s, _ := m.Lookup(r.Space, r.Lo); s != set {
					t.Fatalf("Owned(%q) has %v, which Lookup gives to %q", set, r, s)
				}
			}
		}
	})
}

func TestAssembleRefusesOverlappingSets(t *testing.T) {
	_, err := Assemble(1, map[string][]Range{
		"a": {{Space: 1, Lo: 0, Last: 600}},
		"b": {{Space: 1, Lo: 600, Last: 9999}},
	}, testSpaces)
	var e *OverlapError
	if !errors.As(err, &e) {
		t.Fatalf("got %v", err)
	}
}

func FuzzParseRange(f *testing.F) {
	f.Add("0-1000")
	f.Add("5-18446744073709551616")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRange(1, text)
		if err != nil {
			return
		}
		if r.Lo > r.Last {
			t.Fatalf("%q reads as an empty range %+v", text, r)
		}
		if again, err := ParseRange(1, r.Text()); err != nil || again != r {
			t.Fatalf("%q: %+v reads back as %+v, %v", text, r, again, err)
		}
	})
}
