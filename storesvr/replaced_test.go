package storesvr

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/storesvr/state"
)

// A leader that is cut off keeps entries that nobody else has. When it is brought
// up to date by a snapshot, they must go: as a leader again it would send them on.
func TestASnapshotFromTheLeaderReplacesTheLog(t *testing.T) {
	tune := func(c *Config) { c.SnapshotThreshold, c.SnapshotInterval, c.TrailingLogs = 20, time.Second, 20 }
	simulate(t, 3, tune, func(t *testing.T, g *group) {
		old := g.leader()
		time.Sleep(time.Second)
		g.setCut(old.cfg.ID, true)
		for i := range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			_, _ = old.propose(ctx, state.SetDraining{Node: nodeID(i), Draining: true})
			cancel()
		}
		lost, _ := old.st.Log.LastIndex()
		time.Sleep(2 * time.Second)
		w := newWriter(t, g.leader())
		for i := range uint64(200) {
			w.extend(i, i+1, 100)
		}
		time.Sleep(5 * time.Second) // a snapshot, and the log before it goes
		if first, _ := w.n.st.Log.FirstIndex(); first <= lost {
			t.Fatalf("the leader's log still begins at %d", first)
		}
		g.setCut(old.cfg.ID, false)
		sameState(t, w.n, old, 200)
		list, err := old.st.Snapshots.List()
		if err != nil || len(list) == 0 {
			t.Fatalf("no snapshot: %v", err)
		}
		if first, _ := old.st.Log.FirstIndex(); first <= lost {
			t.Fatalf("entries up to %d were never committed, and the log still begins at %d, the snapshot being of %d", lost, first, list[0].Index)
		}
	})
}

func TestWhatASnapshotReplacedIsDroppedAtTheStart(t *testing.T) {
	for _, c := range []struct {
		name string
		// terms of the entries from 10 on; 0 is a hole.
		terms []uint64
		want  []uint64
	}{
		{"the log leads to the snapshot", []uint64{1, 1, 2, 2, 2}, []uint64{10, 11, 12, 13, 14}},
		{"it ends before", []uint64{1, 1, 1}, []uint64{13}},
		{"it goes another way", []uint64{1, 1, 1, 1, 1}, []uint64{13}},
		{"a hole", []uint64{1, 1, 0, 0, 2}, []uint64{13, 14}},
		{"it begins after", []uint64{0, 0, 0, 0, 2}, []uint64{13, 14}},
		{"empty", nil, []uint64{13}},
	} {
		log := raft.NewInmemStore()
		for i, term := range c.terms {
			if term != 0 {
				if err := log.StoreLog(&raft.Log{Index: uint64(10 + i), Term: term}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := dropReplaced(log, &raft.SnapshotMeta{Index: 13, Term: 2}); err != nil {
			t.Fatal(err)
		}
		var got []uint64
		for i := range uint64(20) {
			if log.GetLog(i, &raft.Log{}) == nil {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v are left, want %v", c.name, got, c.want)
		}
	}
}
