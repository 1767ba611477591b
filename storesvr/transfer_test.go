package storesvr

import (
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// heldEntries is a transport whose requests with entries hang while held is set,
// and its heartbeats do not.
type heldEntries struct {
	*raft.InmemTransport
	held    *atomic.Bool
	release chan struct{}
}

func (heldEntries) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func (h heldEntries) AppendEntries(id raft.ServerID, to raft.ServerAddress, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	if len(q.Entries) > 0 && h.held.Load() {
		<-h.release
		return io.EOF
	}
	return h.InmemTransport.AppendEntries(id, to, q, r)
}

// A goroutine that is lost fails the test, since its bubble cannot end. Whether one
// would be is for the scheduler to say, half of the times.
func TestHandingOnToPeersThatAreGoneLeavesNothingBehind(t *testing.T) {
	for range 8 {
		handOnToNobody(t)
	}
}

func handOnToNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held atomic.Bool
		release := make(chan struct{})
		g := emptyGroup(t, 3, nil)
		g.wrap = func(tr raft.Transport) raft.Transport {
			return heldEntries{tr.(*raft.InmemTransport), &held, release}
		}
		g.startAll()
		defer time.Sleep(30 * time.Second)
		defer g.stop()
		first := g.leader()
		time.Sleep(time.Second)
		held.Store(true)
		entry := first.raft.Barrier(0)
		first.handOn(t.Context())
		g.setCut(first.cfg.ID, true)
		if err := entry.Error(); err == nil {
			t.Fatal("an entry was committed that nobody else can have")
		}
		held.Store(false)
		close(release)
		g.setCut(first.cfg.ID, false)

		// It can lead again.
		time.Sleep(5 * time.Second)
		if next := g.leader(); next != first {
			if err := next.raft.LeadershipTransferToServer(raft.ServerID(first.cfg.ID), raft.ServerAddress(first.cfg.RaftAddr)).Error(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if lead := g.leader(); lead != first {
			t.Fatalf("%s leads", lead.cfg.ID)
		}
		newWriter(t, first).extend(1, 2, 100)
	})
}
