package storesvr

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// logGuard notices when Raft's log cannot be read or written. Raft answers most
// such errors with a panic in a goroutine of its own, which would take the whole
// process down; the guard tells the node instead and ends that goroutine, as if
// the machine had halted there. The node then shuts Raft down.
type logGuard struct {
	raft.LogStore
	fail func(error)
	// running: Raft's goroutines are the callers. Before, errors are returned to Start.
	running atomic.Bool
	// broken is the first failed change. After it nothing is written any more: what
	// the kernel could not write it may have dropped, and a later write that
	// succeeds would stand on it.
	broken atomic.Pointer[error]
	// writing times StoreLogs.
	writing writing
	// applied answers the last applied index: entries up to it are committed for ever.
	applied func() uint64
	// deleting: Raft compacts the log in one goroutine while another may fit it to a snapshot.
	deleting sync.Mutex
}

// halt does not return when Raft is running.
func halt(running *atomic.Bool, fail func(error), err error) {
	fail(err)
	if running.Load() {
		runtime.Goexit()
	}
}

func (g *logGuard) GetLog(index uint64, l *raft.Log) error {
	err := g.LogStore.GetLog(index, l)
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) {
		halt(&g.running, g.fail, err)
	}
	return err
}

func (g *logGuard) StoreLog(l *raft.Log) error { return g.StoreLogs([]*raft.Log{l}) }

func (g *logGuard) StoreLogs(logs []*raft.Log) error {
	defer g.writing.begin()()
	return g.change(func() error { return g.LogStore.StoreLogs(logs) })
}

func (g *logGuard) change(write func() error) error {
	if first := g.broken.Load(); first != nil {
		return *first
	}
	err := write()
	if err != nil {
		g.broken.Store(&err)
		g.fail(err)
	}
	return err
}

// DeleteRange drops old entries, or a suffix that a new leader has other entries
// for. A suffix that was applied here was committed: a leader who lacks it was
// elected by a quorum that has lost its data, and following it would fork the state.
//
// Of old entries the last stays, so that the log has the snapshot's own entry
// whenever it has one after it: a leader that disagrees about what follows looks
// for the last entry that both have, and Raft finds the snapshot's only in the log.
func (g *logGuard) DeleteRange(from, to uint64) error {
	g.deleting.Lock()
	defer g.deleting.Unlock()
	last, err := g.LogStore.LastIndex()
	first, ferr := g.LogStore.FirstIndex()
	if err := errors.Join(err, ferr); err != nil {
		return g.change(func() error { return err })
	}
	if applied := g.applied(); to >= last && from > first && from <= applied {
		err := &LostQuorumError{From: from, Applied: applied}
		halt(&g.running, g.fail, err)
		return err
	}
	if from <= first && to < last {
		to--
	}
	// An installed snapshot may have emptied the log since Raft looked.
	if last == 0 || to < first {
		return nil
	}
	return g.change(func() error { return g.LogStore.DeleteRange(from, to) })
}

// LostQuorumError: the leader wants entries replaced that were committed.
type LostQuorumError struct{ From, Applied uint64 }

func (e *LostQuorumError) Error() string {
	return fmt.Sprintf("the leader has other entries from %d on, but those up to %d were committed and applied here: "+
		"a majority of the StoreSvrs has lost its data; stop them all and keep this node's directory, it has the newer state", e.From, e.Applied)
}

// stableGuard is the same for Raft's vote and term.
type stableGuard struct {
	raft.StableStore
	fail    func(error)
	running atomic.Bool
}

func (g *stableGuard) Set(k, v []byte) error {
	err := g.StableStore.Set(k, v)
	if err != nil {
		halt(&g.running, g.fail, err)
	}
	return err
}

func (g *stableGuard) SetUint64(k []byte, v uint64) error {
	err := g.StableStore.SetUint64(k, v)
	if err != nil {
		halt(&g.running, g.fail, err)
	}
	return err
}
