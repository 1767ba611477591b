package storesvr

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// stuckShare of the Raft timeout is how long a write to the log may take before
// a leader falls silent.
const stuckShare = 2

// writing has when the write of entries that is under way began. Raft writes them
// in its main loop, so there is one at most.
type writing struct{ since atomic.Pointer[time.Time] }

func (w *writing) begin() (end func()) {
	now := time.Now()
	w.since.Store(&now)
	return func() { w.since.Store(nil) }
}

// lasts is how long it has been going on; 0 when nothing is being written.
func (w *writing) lasts() time.Duration {
	if t := w.since.Load(); t != nil {
		return time.Since(*t)
	}
	return 0
}

// stuckTransport makes a leader whose disk is stuck fall silent.
//
// Raft writes to its log in the loop that also verifies leadership and steps down,
// but sends heartbeats from elsewhere: with a write that takes seconds it would
// stay the leader and acknowledge nothing, until the leases of all owners have run
// out. Without its heartbeats the others elect one whose disk works, within the leases.
type stuckTransport struct {
	raft.Transport
	log *writing
	max time.Duration
}

// StuckError is why a leader sends no heartbeats.
type StuckError struct{ Lasts time.Duration }

func (e *StuckError) Error() string {
	return fmt.Sprintf("a write to the raft log takes %v already: another store should lead, look at this one's disk", e.Lasts.Round(time.Millisecond))
}

func (s *stuckTransport) stuck() error {
	if d := s.log.lasts(); d > s.max {
		return &StuckError{Lasts: d}
	}
	return nil
}

// AppendEntries sends what a leader has for a follower, heartbeats too.
func (s *stuckTransport) AppendEntries(id raft.ServerID, to raft.ServerAddress, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	if err := s.stuck(); err != nil {
		return err
	}
	return s.Transport.AppendEntries(id, to, q, r)
}

// AppendEntriesPipeline does the same without waiting for answers; an idle one
// serves as a heartbeat too.
func (s *stuckTransport) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := s.Transport.AppendEntriesPipeline(id, to)
	if err != nil {
		return nil, err
	}
	return &stuckPipeline{AppendPipeline: p, s: s}, nil
}

type stuckPipeline struct {
	raft.AppendPipeline
	s *stuckTransport
}

func (p *stuckPipeline) AppendEntries(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if err := p.s.stuck(); err != nil {
		return nil, err
	}
	return p.AppendPipeline.AppendEntries(q, r)
}

// RequestPreVote passes on; embedding the interface hides it.
func (s *stuckTransport) RequestPreVote(id raft.ServerID, to raft.ServerAddress, q *raft.RequestPreVoteRequest, r *raft.RequestPreVoteResponse) error {
	pv, ok := s.Transport.(raft.WithPreVote)
	if !ok {
		return errors.New("the transport has no pre-vote")
	}
	return pv.RequestPreVote(id, to, q, r)
}

// Close passes on too.
func (s *stuckTransport) Close() error { return closeTransport(s.Transport) }
