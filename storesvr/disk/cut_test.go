package disk

import (
	"slices"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// Whether memory has more blocks than the range or fewer, and names beside them.
func TestAPageOfARangeHasWhatIsInMemoryAlone(t *testing.T) {
	name := func(hi uint64) ids.Key { return ids.Key{Space: 2, Hi: hi, Lo: 1} }
	s := openTest(t, t.TempDir(), Options{FlushKeys: 1 << 20})
	var all []ids.Key
	for no := range uint64(20) {
		first := 2 * no << ids.BlockShift
		all = append(all, uid(first), uid(first+255))
	}
	all = append(all, name(5), name(1<<20), name(^uint64(0)))
	for _, k := range all {
		s.Put(k, rec(1))
	}
	s.Commit(1, testMeta())
	for _, r := range []sets.Range{
		{Space: 1, Lo: 512, Last: 767},
		{Space: 1, Lo: 255, Last: 1024},
		{Space: 1, Lo: 255, Last: 38<<8 + 255},
		{Space: 1, Lo: 0, Last: 1<<32 - 1},
		{Space: 1, Lo: 300, Last: 400},
		{Space: 2, Lo: 5, Last: 1 << 20},
		{Space: 2, Lo: 6, Last: 1<<64 - 1},
	} {
		want := slices.DeleteFunc(slices.Clone(all), func(k ids.Key) bool { return !r.Contains(k.Space, k.Position()) })
		page, _, done := s.Cut(Filter{Within: &r}, ids.Key{}, 100).Read()
		var got []ids.Key
		for _, kr := range page {
			got = append(got, kr.Key)
		}
		if !done || !slices.Equal(got, want) {
			t.Errorf("range %v: got %v, want %v", r, got, want)
		}
	}
}
