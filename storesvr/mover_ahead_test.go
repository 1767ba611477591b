package storesvr

import (
	"slices"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

func TestPartsGrowWhileTheyAreQuickAndShrinkWhenTheyAreNot(t *testing.T) {
	for name, tt := range map[string]struct {
		now, most, keys int
		took            time.Duration
		want            int
	}{
		"quick":                       {8192, 32768, 8192, partAim / 2, 16384},
		"at no time at all":           {8192, 32768, 8192, 0, 32768},
		"close to the aim":            {8192, 32768, 8192, partAim * 4 / 5, 10240},
		"at the most":                 {32768, 32768, 32768, time.Millisecond, 32768},
		"slow":                        {8192, 32768, 8192, partAim * 8 / 5, 5120},
		"far too slow":                {8192, 32768, 8192, time.Second, 4096},
		"slow and the least":          {1024, 32768, 1024, time.Second, 1024},
		"few keys say nothing":        {8192, 32768, 10, partAim / 4, 8192},
		"few keys that are slow do":   {8192, 32768, 10, 2 * partAim, 4096},
		"configured below the least":  {4, 4, 4, time.Second, 4},
		"the least is not above most": {20, 20, 20, time.Millisecond, 20},
	} {
		if got := nextPartSize(tt.now, tt.most, tt.keys, tt.took); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// A part that was slow, for whatever reason, holds the sizes down for many parts after it.
func TestPartsAreSlowToGrowAfterASlowOne(t *testing.T) {
	var p partSize
	p.begin(32768)
	for range 3 {
		p.note(uint64(p.keys.Load()), partAim/8, partSlow/2)
	}
	if got := p.keys.Load(); got != 32768 {
		t.Fatalf("%d after three quick parts", got)
	}
	p.note(32768, partAim/2, partSlow+1)
	if got := p.keys.Load(); got != 16384 {
		t.Fatalf("%d after a part that was frozen for too long", got)
	}
	for n := 0; p.keys.Load() < 32768; n++ {
		if n > 10 {
			t.Fatal("does not grow again")
		}
		was := p.keys.Load()
		p.note(uint64(was), partAim/8, partSlow/2)
		if now := p.keys.Load(); now > was*9/8 {
			t.Fatalf("%d after %d", now, was)
		}
	}
	p.begin(20)
	if p.note(20, time.Second, time.Second); p.keys.Load() != 20 {
		t.Errorf("%d, though 20 are configured", p.keys.Load())
	}
}

// A part of few keys is frozen for nearly as long as any, so none is left over.
func TestASliceIsSplitIntoPartsOfOneSize(t *testing.T) {
	for _, tt := range []struct {
		records, keys int
		want          []int
	}{
		{1000, 1000, []int{1000}}, {1100, 1000, []int{1100}}, {1200, 1000, []int{600, 600}},
		{3000, 1000, []int{1000, 1000, 1000}}, {3400, 1000, []int{850, 850, 850, 850}}, {7, 4, []int{4, 3}}, {0, 4, []int{0}},
	} {
		s := &slice{r: sets.Range{Space: 1, Last: 1 << 20}}
		for i := range tt.records {
			s.records = append(s.records, state.KeyedRecord{Key: uid(uint64(i))})
		}
		var got []int
		for s != nil {
			rest := s.split(tt.keys)
			got = append(got, len(s.records))
			if rest != nil && rest.r.Lo != s.r.Last+1 {
				t.Errorf("%v goes on at %v", s.r, rest.r)
			}
			s = rest
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%d records in parts of about %d: %v, want %v", tt.records, tt.keys, got, tt.want)
		}
	}
}
