package storesvr

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// contacts knows which peers do not answer the leader's heartbeats.
type contacts struct {
	events   chan raft.Observation
	observer *raft.Observer

	mu   sync.Mutex
	lost map[raft.ServerID]time.Time
}

func newContacts() *contacts {
	c := &contacts{events: make(chan raft.Observation, 64), lost: map[raft.ServerID]time.Time{}}
	c.observer = raft.NewObserver(c.events, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.FailedHeartbeatObservation, raft.ResumedHeartbeatObservation, raft.RaftState, raft.PeerObservation:
			return true
		}
		return false
	})
	return c
}

func (c *contacts) run(until <-chan struct{}) {
	for {
		select {
		case <-until:
			return
		case o := <-c.events:
			c.note(o)
		}
	}
}

func (c *contacts) note(o raft.Observation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch d := o.Data.(type) {
	case raft.FailedHeartbeatObservation:
		c.lost[d.PeerID] = d.LastContact
	case raft.ResumedHeartbeatObservation:
		delete(c.lost, d.PeerID)
	case raft.PeerObservation:
		if d.Removed {
			delete(c.lost, d.Peer.ID)
		}
	case raft.RaftState: // a new leader knows nothing yet
		clear(c.lost)
	}
}

// since is for how long a peer has not answered; 0 if it does.
func (c *contacts) since(id raft.ServerID) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.lost[id]
	if !ok {
		return 0
	}
	return max(time.Since(at), time.Millisecond)
}
