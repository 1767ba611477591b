package storesvr

import (
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/storesvr/disk"
)

func closeTransport(tr raft.Transport) error {
	if c, ok := tr.(raft.WithClose); ok {
		return c.Close()
	}
	return nil
}

// newRaft gives Raft's panics at its start, which mean an unreadable log, back as errors.
func newRaft(conf *raft.Config, f raft.FSM, logs raft.LogStore, stable raft.StableStore, snaps raft.SnapshotStore, tr raft.Transport) (r *raft.Raft, err error) {
	defer func() {
		if p := recover(); p != nil {
			cause, ok := p.(error)
			if !ok {
				cause = fmt.Errorf("%v", p)
			}
			err = fmt.Errorf("start raft: %w", cause)
		}
	}()
	return raft.NewRaft(conf, f, logs, stable, snaps, tr)
}

func (n *Node) raftConfig() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(n.cfg.ID)
	c.HeartbeatTimeout = n.cfg.RaftTimeout
	c.ElectionTimeout = n.cfg.RaftTimeout
	// The longest that Raft allows: what rests on leadership is verified each
	// time, so a short lease would only make a busy machine lose its leader.
	c.LeaderLeaseTimeout = n.cfg.RaftTimeout
	c.CommitTimeout = raftCommitTimeout
	c.MaxAppendEntries = raftMaxAppendEntries
	c.BatchApplyCh = true
	c.ShutdownOnRemove = false
	c.SnapshotThreshold = n.cfg.SnapshotThreshold
	c.SnapshotInterval = n.cfg.SnapshotInterval
	c.TrailingLogs = n.cfg.TrailingLogs
	// The state is in state.db; catchUp has seen to it that it is not behind the snapshots.
	c.NoSnapshotRestoreOnStart = true
	c.NoLegacyTelemetry = true
	c.NotifyCh = n.notify
	c.Logger = newHclog(n.log.Named("raft"))
	return c
}

func (n *Node) bootstrap(conf *raft.Config, stable raft.StableStore, tr raft.Transport) error {
	if !n.cfg.Bootstrap {
		return nil
	}
	has, err := raft.HasExistingState(n.st.Log, stable, n.st.Snapshots)
	if err != nil {
		return fmt.Errorf("look for raft state: %w", err)
	}
	if has {
		return nil
	}
	var c raft.Configuration
	for _, p := range n.cfg.Peers {
		c.Servers = append(c.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.RaftAddr)})
	}
	if err := raft.BootstrapCluster(conf, n.st.Log, stable, n.st.Snapshots, tr, c); err != nil {
		return fmt.Errorf("bootstrap raft: %w", err)
	}
	return nil
}

// catchUp restores the newest snapshot if the state is behind it — the process
// died between receiving the snapshot and restoring it — and refuses a storage
// whose parts do not fit together.
func (n *Node) catchUp() error {
	list, err := n.st.Snapshots.List()
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	var snapIndex uint64
	if len(list) > 0 {
		snapIndex = list[0].Index
		if err := dropReplaced(n.st.Log, list[0]); err != nil {
			return fmt.Errorf("drop what snapshot %s replaces: %w", list[0].ID, err)
		}
		if err := n.restoreNewest(list[0].ID); err != nil {
			return fmt.Errorf("snapshot %s: %w", list[0].ID, err)
		}
	}
	first, err := n.st.Log.FirstIndex()
	if err != nil {
		return fmt.Errorf("read the raft log: %w", err)
	}
	last, err := n.st.Log.LastIndex()
	if err != nil {
		return fmt.Errorf("read the raft log: %w", err)
	}
	const remedy = "move the whole directory away and start the node again, so that it takes the state from its peers"
	if first > snapIndex+1 {
		return &disk.MissingError{Path: "raft log", Remedy: remedy,
			Reason: fmt.Sprintf("it begins at entry %d, but the newest snapshot is of %d", first, snapIndex)}
	}
	if applied := n.fsm.appliedIndex(); applied > max(last, snapIndex) {
		return &disk.MissingError{Path: "raft log", Remedy: remedy,
			Reason: fmt.Sprintf("it ends at entry %d, but %d was applied", max(last, snapIndex), applied)}
	}
	return nil
}

// dropReplaced fits the log to the newest snapshot before Raft runs, if the process
// died before that was done.
func dropReplaced(log raft.LogStore, snap *raft.SnapshotMeta) error {
	return fitLog(log, snap, dropTail)
}

func (n *Node) restoreNewest(id string) error {
	_, r, err := n.st.Snapshots.Open(id)
	if err != nil {
		return err
	}
	defer r.Close()
	return n.fsm.Restore(r)
}
