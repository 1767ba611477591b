package state

import (
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// What came in is given up on the directory's word, but never against its map.
func TestWhatTheMapGivesToASetIsNotDiscarded(t *testing.T) {
	spaces := []ids.Space{{ID: 1, Name: "uid", Kind: ids.KindUID, MaxUID: 999}}
	d := sets.NewDirectory("a", spaces)
	if err := d.CreateSet("b", []string{"b:1"}); err != nil {
		t.Fatal(err)
	}
	s := New(NewMapKeys())
	index := uint64(0)
	apply := func(want Refusal, c Command) {
		t.Helper()
		index++
		if r := s.Apply(index, c); r.Refusal != want {
			t.Fatalf("%T: %v, want %v", c, r.Refusal, want)
		}
		if err := Check(s); err != nil {
			t.Fatal(err)
		}
	}
	r := sets.Range{Space: 1, Lo: 0, Last: 99}
	apply(OK, Genesis{Cluster: "c", ClusterID: "id", Set: "b", Sections: 1, Spaces: spaces})
	apply(OK, PutMap{Published: d.Published})
	apply(OK, Import{Move: 1, Part: 1, Range: r, From: "a"})
	apply(OK, Discard{Move: 1, Part: 1})
	apply(OK, Import{Move: 1, Part: 2, Range: r, From: "a"})
	given, err := d.Map.Give(sets.Range{Space: 1, Lo: 99, Last: 99}, "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	d.Published.Map = given
	apply(OK, PutMap{Published: d.Published})
	apply(RefusedDirectory, Discard{Move: 1, Part: 2})
	if in := s.Meta.In[1]; in.Phase != InImporting {
		t.Errorf("a refused discard left %+v", in)
	}
}
