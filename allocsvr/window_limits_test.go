package allocsvr

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func TestAnIDIsRememberedForTheWindowOfItsSpace(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1", func(c *Config) {
			c.Spaces = map[string]SpaceConfig{"conv": {Window: time.Minute}}
		})
		conv, _ := ids.DefaultSpaces()[1].NameKey("c")
		replayed := func(k ids.Key) bool {
			t.Helper()
			res, err := a.AllocOne(context.Background(), k, 1, rid(1))
			if err != nil {
				t.Fatal(err)
			}
			return res.Replayed
		}
		if replayed(uid(1)) || replayed(conv) {
			t.Fatal("replayed the first time")
		}
		time.Sleep(time.Minute - time.Second)
		if !replayed(uid(1)) || !replayed(conv) {
			t.Error("forgotten before a minute has passed")
		}
		time.Sleep(2 * time.Second)
		if !replayed(uid(1)) || replayed(conv) {
			t.Error("after a minute only conv may be forgotten")
		}
		time.Sleep(19*time.Minute - 2*time.Second)
		if !replayed(uid(1)) {
			t.Error("forgotten before 20 minutes have passed")
		}
		time.Sleep(2 * time.Second)
		if replayed(uid(1)) {
			t.Error("remembered for more than 20 minutes")
		}
	})
}

// A full window forgets the oldest, and every reply says since when nothing is forgotten.
func TestAFullWindowSaysSinceWhenItIsComplete(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"of the node":  func(c *Config) { c.WindowEntriesMax = 1000 },
		"of the space": func(c *Config) { c.Spaces = map[string]SpaceConfig{"uid": {WindowEntriesMax: 1000}} },
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, auto, func(r *rig) {
				a := r.boot("a1", change)
				conv := &seqpb.AllocRequest{Space: "conv", Names: []string{"c"}, RequestIds: [][]byte{rid(9)[:]}}
				call := func(i uint64) (first uint64, replayed bool, since uint64) {
					t.Helper()
					id := make([]byte, 16)
					binary.BigEndian.PutUint64(id[8:], i+1)
					rep, err := a.Alloc(context.Background(), &seqpb.AllocRequest{Space: "uid", Uids: []uint64{7}, RequestIds: [][]byte{id}})
					if err != nil || len(rep.Failures) > 0 {
						t.Fatal(rep, err)
					}
					return rep.First[0], len(rep.Replayed) > 0, rep.WindowSinceMs
				}
				if _, err := a.Alloc(context.Background(), conv); err != nil {
					t.Fatal(err)
				}
				const n = 3000
				at := make([]uint64, n)
				for i := range uint64(n) {
					at[i] = uint64(time.Now().UnixMilli())
					if first, replayed, _ := call(i); first != i+1 || replayed {
						t.Fatalf("call %d: %d, %v", i, first, replayed)
					}
					time.Sleep(time.Millisecond)
				}
				kept := 0
				for i := uint64(n); i > 0; i-- { // the newest first: what is forgotten is allocated anew, and takes place
					first, replayed, since := call(i - 1)
					switch {
					case replayed && first == i:
						kept++
					case replayed || at[i-1] >= since:
						t.Fatalf("call %d, of %d, was answered %d, replayed: %v; complete since %d", i-1, at[i-1], first, replayed, since)
					}
					if !replayed {
						break
					}
				}
				if kept < 700 || kept > 1100 {
					t.Errorf("%d are remembered of at most 1000", kept)
				}
				if st := a.Stats(); st.RequestIDsForgotten == 0 || st.RequestIDs > 1200 {
					t.Errorf("%d ids, %d forgotten", st.RequestIDs, st.RequestIDsForgotten)
				}
				rep, err := a.Alloc(context.Background(), conv)
				if err != nil {
					t.Fatal(err)
				}
				if other := len(rep.Replayed) > 0; other != (name == "of the space") {
					t.Errorf("another space's id is remembered: %v", other)
				}
			})
		})
	}
}
