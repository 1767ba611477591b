package storesvr

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/storesvr/state"
)

// slowDisk takes its time to write entries.
type slowDisk struct {
	raft.LogStore
	delay *atomic.Int64
}

func (d slowDisk) StoreLogs(l []*raft.Log) error {
	time.Sleep(time.Duration(d.delay.Load()))
	return d.LogStore.StoreLogs(l)
}

// A leader whose disk takes 2 s for each write would acknowledge no heartbeat for
// longer than the lease. Another one leads, and serves, well before.
func TestALeaderWithAStuckDiskGivesWayWithinTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := emptyGroup(t, 3, nil)
		delays := map[string]*atomic.Int64{}
		for id, d := range g.disks {
			delays[id] = &atomic.Int64{}
			d.Log = slowDisk{d.Log, delays[id]}
			g.disks[id] = d
		}
		defer time.Sleep(30 * time.Second)
		defer g.stop()
		g.startAll()
		old := g.leader()
		a := attach(t, g.leader, hello("a1"))
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		delays[old.cfg.ID].Store(int64(2 * time.Second))
		written := make(chan error, 1)
		go func() {
			_, err := old.propose(t.Context(), state.SetDraining{Node: "x", Draining: true})
			written <- err
		}()
		took := eventually(t, testTTL/2, "another leader", func() bool {
			for id, n := range g.nodes {
				if ok, _ := n.Leading(); ok && id != old.cfg.ID {
					return true
				}
			}
			return false
		})
		t.Logf("another one leads after %v", took)
		if err := <-written; err == nil {
			t.Error("a leader that had been replaced acknowledged a write")
		}
		a.crash()
	})
}

func TestDelayedWritesFollowTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "delay")
	st := DelayWrites(MemoryStorage(), file)
	took := func() time.Duration {
		begin := time.Now()
		if err := st.Log.StoreLogs([]*raft.Log{{Index: 1}}); err != nil {
			t.Fatal(err)
		}
		return time.Since(begin)
	}
	for text, slow := range map[string]bool{"60ms\n": true, "": false, "soon": false} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if d := took(); slow != (d >= 60*time.Millisecond) {
			t.Errorf("%q: a write took %v", text, d)
		}
	}
}
