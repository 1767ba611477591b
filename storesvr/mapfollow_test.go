package storesvr

import (
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// A newer map is left to the end of a part that stands at its verdict, but not for long.
func TestANewerMapComesAlongWithTheEndOfAPartOrIsKeptByItself(t *testing.T) {
	simulateSets(t, map[string]int{"s1": 1, "s2": 1}, nil, func(t *testing.T, w *realm) {
		n := w.of["s2"].leader()
		l := n.leads()
		newer := metaOf(t, n).Published
		newer.Map.Version += 100 // the directory's own news are no such map
		propose := func(c state.Command) {
			t.Helper()
			if rep, err := n.propose(t.Context(), c); err != nil || rep.Refusal != state.OK {
				t.Fatalf("%T: %v %v", c, rep.Refusal, err)
			}
		}
		ask := func() (came bool, took time.Duration) {
			begin := time.Now()
			came = l.mapComesAlong(newer.Map.Version)
			return came, time.Since(begin)
		}
		if came, took := ask(); came || took != 0 {
			t.Errorf("with no part at hand: %v after %v", came, took)
		}
		propose(state.Import{Move: 1, Part: 1, Range: sets.Range{Space: 1, Lo: 0, Last: 99}, From: "s1"})
		if came, took := ask(); came || took != mapAlong {
			t.Errorf("with a part that does not end: %v after %v", came, took)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(mapAlong / 2)
			propose(state.PutMap{Published: newer})
		}()
		if came, took := ask(); !came || took < mapAlong/2 || took >= mapAlong {
			t.Errorf("with a map that comes: %v after %v", came, took)
		}
		<-done
		done = make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(mapAlong / 2)
			propose(state.Discard{Move: 1, Part: 1})
		}()
		newer.Map.Version++
		if came, took := ask(); came || took < mapAlong/2 || took >= mapAlong {
			t.Errorf("with a part that ends without a map: %v after %v", came, took)
		}
		<-done
	})
}
