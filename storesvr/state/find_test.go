package state

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// findingKeys finds many keys at once.
type findingKeys struct{ *MapKeys }

func (f findingKeys) Find(keys []ids.Key) []Found {
	out := make([]Found, len(keys))
	for i, k := range keys {
		out[i].Record, out[i].Known = f.Get(k)
		out[i].HasGaps = len(f.Gaps(k)) > 0
	}
	return out
}

// Records found together come to the same as found one by one, also when one
// import has a key twice or in no order.
func TestAnImportIsTheSameHoweverItsKeysAreFound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		plain, finding := NewMapKeys(), NewMapKeys()
		states := []*State{New(plain), New(findingKeys{finding})}
		r := sets.Range{Space: 1, Lo: 0, Last: 99}
		for _, s := range states {
			s.Apply(1, Genesis{Cluster: "c", ClusterID: "id", Set: "s2", Sections: 4, Spaces: ids.DefaultSpaces()})
		}
		for part := range sets.Part(rapid.IntRange(1, 6).Draw(rt, "imports")) {
			c := Import{Move: 1, Part: 1, Range: r, From: "s1"}
			for range rapid.IntRange(0, 12).Draw(rt, "records") {
				floor := ids.Seq(rapid.Uint64Range(1, 20).Draw(rt, "floor"))
				kr := KeyedRecord{Key: ids.Key{Space: 1, Hi: rapid.Uint64Range(0, 9).Draw(rt, "key")}, Floor: floor, Bound: floor}
				if rapid.Bool().Draw(rt, "hole") {
					kr.Gaps = []Gap{{From: 1, To: floor, Cause: CauseAdvance}}
				}
				c.Records = append(c.Records, kr)
			}
			if rapid.IntRange(0, 3).Draw(rt, "order") > 0 {
				slices.SortStableFunc(c.Records, func(a, b KeyedRecord) int { return a.Key.Compare(b.Key) })
			}
			for _, s := range states {
				if rep := s.Apply(uint64(part)+2, c); rep.Refusal != OK {
					rt.Fatal(rep.Refusal)
				}
			}
		}
		if !maps.Equal(plain.records, finding.records) || !reflect.DeepEqual(plain.gaps, finding.gaps) {
			rt.Fatalf("one by one %v %v, together %v %v", plain.records, plain.gaps, finding.records, finding.gaps)
		}
		if a, b := *states[0].Meta.In[1], *states[1].Meta.In[1]; a != b {
			rt.Fatalf("one by one %+v, together %+v", a, b)
		}
	})
}
