package storesvr

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
)

// handOnTries outnumber the idle connections that a restarted peer has left dead: each costs one.
const handOnTries = raftPool + 1

// transferPause is how long to wait for a transfer that is under way.
const transferPause = time.Millisecond

// errTransferOnce refuses to hand leadership on in a term in which that ran out of time.
var errTransferOnce = errors.New("it took too long before, and one try is all that a term allows: stop this store, and the others elect")

// transfer hands leadership on to the peer that has most of the log.
//
// A transfer asks the replication to that peer to catch up, through a queue of one.
// One that runs out of time leaves its question there. If the peer is gone, nobody
// takes the question out: the next transfer of the same leadership then waits for a
// place for ever, also once leadership is lost, and all the while Raft refuses
// proposals because a transfer is under way. Replications are new with each
// leadership, so one that ran out of time is the last of its term.
func (n *Node) transfer(ctx context.Context) error {
	term := n.raft.CurrentTerm()
	if n.transferred.Load() == term {
		return errTransferOnce
	}
	try := func() error { return n.await(ctx, func() error { return n.raft.LeadershipTransfer().Error() }) }
	began := time.Now()
	err := try()
	// Raft answers that one has failed a moment before it takes the next.
	for errors.Is(err, raft.ErrLeadershipTransferInProgress) && pause(ctx, transferPause) {
		began = time.Now()
		err = try()
	}
	if err != nil && (time.Since(began) >= n.cfg.RaftTimeout || errors.As(err, new(*UnknownOutcomeError))) {
		n.transferred.Store(term)
	}
	return err
}

// handOn gives leadership to a peer, if there is one, so that nobody has to wait for an election.
func (n *Node) handOn(ctx context.Context) {
	if n.raft.State() != raft.Leader || len(n.members()) < 2 || n.failure.get() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 4*n.cfg.RaftTimeout)
	defer cancel()
	var err error
	for range handOnTries {
		if err = n.transfer(ctx); err == nil {
			return
		}
		if ctx.Err() != nil || n.raft.State() != raft.Leader {
			break
		}
	}
	// No harm: the others notice and elect. When the whole Set stops at once there is nobody to notice.
	n.log.Info("leadership was not handed on, the peers have to elect", zap.Error(err))
}
