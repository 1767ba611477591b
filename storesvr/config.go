package storesvr

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/clock"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/lease"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/disk"
	"github.com/seqsvr/seqsvr/storesvr/placement"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// Defaults of a Config.
const (
	DefaultSections          = 1024
	DefaultLeaseTTL          = 2 * time.Second
	DefaultRaftTimeout       = 300 * time.Millisecond
	DefaultSnapshotThreshold = 8192
	DefaultTrailingLogs      = 8192
	DefaultSnapshotInterval  = 20 * time.Second
)

// Config of a Node.
type Config struct {
	// ID of the node in its Raft group; Cluster and Set that it is of.
	ID, Cluster, Set string
	// ClusterID that a first leader founds the cluster with; random if empty.
	// On a node of a founded cluster it must be that cluster's, if given.
	ClusterID string
	// RPCAddr, RaftAddr and HTTPAddr are how others reach the node.
	RPCAddr, RaftAddr, HTTPAddr string
	// Resolve finds where to dial a Raft address; nil: it is one. With it, Raft
	// addresses can be names that stay while ports change.
	Resolve func(raftAddr string) string
	// Peers are the first members, this node among them. They count only with
	// Bootstrap, and only on an empty directory.
	Peers     []state.StoreNode
	Bootstrap bool
	// Directory has RPC addresses of the StoreSvrs of the Set that has the directory.
	// Empty: this Set has it. Else its first leader takes the cluster's name, id and
	// spaces from there, and the Set owns nothing until something is moved to it.
	Directory []string
	// FreezeTimeout: a range that leaves for another Set and is not sealed by then is served again.
	FreezeTimeout time.Duration
	// PartKeys is about how many keys of a move are frozen at a time at most. Of a range
	// that is in use, parts have fewer, so that they are not frozen for long.
	PartKeys int
	// Sections and Spaces that a first leader founds the Set with.
	Sections uint32
	Spaces   []ids.Space
	LeaseTTL time.Duration
	// RaftTimeout: a follower that hears nothing for so long begins an election.
	// At most lease.RaftTimeoutMax(LeaseTTL), and by default not above it.
	RaftTimeout time.Duration
	// A snapshot is taken after SnapshotThreshold entries (looked at about every
	// SnapshotInterval); TrailingLogs entries stay for followers that are not far behind.
	//
	// Fewer than are under way to a follower at once (two requests of raftMaxAppendEntries)
	// may leave it behind until the leader takes a snapshot itself: a follower whose
	// answers got lost is that far ahead of what its leader knows. If it has compacted
	// its log meanwhile, the leader looks for an entry that both have further and
	// further down, where this one has none.
	SnapshotThreshold, TrailingLogs uint64
	SnapshotInterval                time.Duration
	Clock                           clock.Clock
	Logger                          *zap.Logger
	// DialAdmin connects to another node's Admin service, to ask it or to pass a
	// call on to the leader. Nil: a follower answers from its own view, or names the leader.
	DialAdmin func(addr string) (AdminConn, error)
	// DialSets and DialSetAdmin connect to StoreSvrs of other Sets. Nil: there are none.
	DialSets     func(addr string) (SetsConn, error)
	DialSetAdmin func(addr string) (SetAdminConn, error)
	// Placement has the knobs of balancing; zero fields have their defaults.
	Placement placement.Limits
	// StateFile has the bounds of what is not flushed yet; zero fields have their defaults.
	StateFile disk.Options
	// Bugs is for fault-injection tests.
	Bugs Bugs
	// atStep, if set, is called before each step of a move that this node drives: for tests.
	atStep func(step string)
}

// AdminConn is the Admin service of another node.
type AdminConn interface {
	Status(context.Context, *seqpb.StatusRequest) (*seqpb.StatusReply, error)
	Drain(context.Context, *seqpb.DrainRequest) (DrainStream, error)
	Undrain(context.Context, *seqpb.DrainRequest) (*seqpb.UndrainReply, error)
	Rebalance(context.Context, *seqpb.RebalanceRequest) (*seqpb.RebalanceReply, error)
	AddStore(context.Context, *seqpb.AddStoreRequest) (*seqpb.StoreChangeReply, error)
	RemoveStore(context.Context, *seqpb.RemoveStoreRequest) (*seqpb.StoreChangeReply, error)
	Close() error
}

// SetsConn is the Sets service of a StoreSvr.
type SetsConn interface {
	Directory(context.Context, *seqpb.DirectoryRequest) (*seqpb.DirectoryReply, error)
	Command(context.Context, *seqpb.SetCommandRequest) (*seqpb.SetCommandReply, error)
	Export(context.Context, *seqpb.ExportRequest) (*seqpb.ExportReply, error)
	PartState(context.Context, *seqpb.PartStateRequest) (*seqpb.PartStateReply, error)
	Verdict(context.Context, *seqpb.VerdictRequest) (*seqpb.VerdictReply, error)
	Close() error
}

// SetAdminConn is the SetAdmin service of another node.
type SetAdminConn interface {
	SetList(context.Context, *seqpb.SetListRequest) (*seqpb.SetListReply, error)
	SetCreate(context.Context, *seqpb.SetCreateRequest) (*seqpb.SetChangeReply, error)
	SetRetire(context.Context, *seqpb.SetRetireRequest) (*seqpb.SetChangeReply, error)
	SetMove(context.Context, *seqpb.SetMoveRequest) (*seqpb.SetMoveReply, error)
	SetMoves(context.Context, *seqpb.SetMovesRequest) (*seqpb.SetMovesReply, error)
	SetAbort(context.Context, *seqpb.SetAbortRequest) (*seqpb.SetMoveReply, error)
	Close() error
}

// DrainStream is the receiving end of Admin.Drain; io.EOF ends it.
type DrainStream interface {
	Recv() (*seqpb.DrainProgress, error)
}

// Bugs switches rules off, so that fault-injection tests can show that they
// would notice. Never set outside tests.
type Bugs struct {
	State state.Bugs
	// AckBeforeCommit answers a batch with what it would do, without waiting for a quorum.
	AckBeforeCommit bool
	// SkipVerifyLeader acknowledges heartbeats and answers reads without asking a quorum.
	SkipVerifyLeader bool
	// SkipLeaderWait lets a new leader expire at once whom it has not heard from.
	SkipLeaderWait bool
	// SkipSeal commits a part of a move that its source has not sealed.
	SkipSeal bool
	// ThawSealed has a leader propose to thaw also what is sealed, without a verdict.
	ThawSealed bool
}

func (c Config) withDefaults() Config {
	if c.Sections == 0 {
		c.Sections = DefaultSections
	}
	if len(c.Spaces) == 0 {
		c.Spaces = ids.DefaultSpaces()
	}
	if c.LeaseTTL == 0 {
		c.LeaseTTL = DefaultLeaseTTL
	}
	if c.RaftTimeout == 0 {
		c.RaftTimeout = min(DefaultRaftTimeout, lease.RaftTimeoutMax(c.LeaseTTL))
	}
	if c.SnapshotThreshold == 0 {
		c.SnapshotThreshold = DefaultSnapshotThreshold
	}
	if c.TrailingLogs == 0 {
		c.TrailingLogs = DefaultTrailingLogs
	}
	if c.SnapshotInterval == 0 {
		c.SnapshotInterval = DefaultSnapshotInterval
	}
	if c.FreezeTimeout == 0 {
		c.FreezeTimeout = sets.FreezeTimeoutDefault
	}
	if c.PartKeys == 0 {
		c.PartKeys = sets.PartKeysDefault
	}
	if c.Clock == nil {
		c.Clock = clock.Boottime()
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

// ConfigError names a setting that cannot be used, and why.
type ConfigError struct{ Key, Reason string }

func (e *ConfigError) Error() string { return fmt.Sprintf("storesvr: %s: %s", e.Key, e.Reason) }

// leaseTTLMin leaves a heartbeat interval that timers can keep.
const leaseTTLMin = 50 * time.Millisecond

func (c *Config) validate() error {
	for _, r := range []struct{ key, value string }{
		{"id", c.ID}, {"cluster", c.Cluster}, {"set", c.Set}, {"rpc_addr", c.RPCAddr}, {"raft_addr", c.RaftAddr},
	} {
		if r.value == "" {
			return &ConfigError{Key: r.key, Reason: "must not be empty"}
		}
		if len(r.value) > preambleTextMax {
			return &ConfigError{Key: r.key, Reason: fmt.Sprintf("%d bytes, at most %d are allowed", len(r.value), preambleTextMax)}
		}
	}
	if c.Sections > state.SectionsMax {
		return &ConfigError{Key: "sections", Reason: fmt.Sprintf("%d, at most %d are allowed", c.Sections, state.SectionsMax)}
	}
	if c.LeaseTTL < leaseTTLMin {
		return &ConfigError{Key: "lease_ttl", Reason: fmt.Sprintf("%v is below the least of %v", c.LeaseTTL, leaseTTLMin)}
	}
	if err := c.validateSets(); err != nil {
		return err
	}
	if most := lease.RaftTimeoutMax(c.LeaseTTL); c.RaftTimeout > most {
		return &ConfigError{Key: "raft_timeout", Reason: fmt.Sprintf("%v is more than %v, two margins of the lease_ttl of %v: a leader that was deposed may acknowledge a heartbeat for that long", c.RaftTimeout, most, c.LeaseTTL)}
	}
	if !c.Bootstrap {
		return nil
	}
	self := false
	seen := map[string]bool{}
	for _, p := range c.Peers {
		if p.ID == "" || p.RaftAddr == "" {
			return &ConfigError{Key: "peers", Reason: "each needs an id and a raft address"}
		}
		if seen[p.ID] {
			return &ConfigError{Key: "peers", Reason: fmt.Sprintf("%q is listed twice", p.ID)}
		}
		seen[p.ID] = true
		if p.ID == c.ID {
			self = true
			if p.RaftAddr != c.RaftAddr {
				return &ConfigError{Key: "peers", Reason: fmt.Sprintf("%q has raft address %s there, but %s is its own", p.ID, p.RaftAddr, c.RaftAddr)}
			}
		}
	}
	if !self {
		return &ConfigError{Key: "peers", Reason: fmt.Sprintf("%q, this node, is not among them", c.ID)}
	}
	return nil
}

func (c *Config) validateSets() error {
	if c.FreezeTimeout < sets.FreezeTimeoutMin {
		return &ConfigError{Key: "freeze_timeout", Reason: fmt.Sprintf("%v is below the least of %v", c.FreezeTimeout, sets.FreezeTimeoutMin)}
	}
	if c.PartKeys < sets.PartKeysMin || c.PartKeys > sets.PartKeysMax {
		return &ConfigError{Key: "part_keys", Reason: fmt.Sprintf("%d is outside [%d, %d]", c.PartKeys, sets.PartKeysMin, sets.PartKeysMax)}
	}
	if len(c.Directory) > 0 && c.DialSets == nil {
		return &ConfigError{Key: "directory", Reason: "this node cannot call other Sets"}
	}
	for i, a := range c.Directory {
		switch {
		case a == "" || len(a) > preambleTextMax:
			return &ConfigError{Key: "directory", Reason: fmt.Sprintf("%q is no address", a)}
		case a == c.RPCAddr:
			return &ConfigError{Key: "directory", Reason: fmt.Sprintf("%s is this node itself: leave directory empty on the Set that has the directory", a)}
		case slices.Contains(c.Directory[:i], a):
			return &ConfigError{Key: "directory", Reason: fmt.Sprintf("%s is listed twice", a)}
		}
	}
	return nil
}

// margin is by how much a holder's lease ends before the leader's.
func (c *Config) margin() time.Duration { return lease.Margin(c.LeaseTTL) }

func (c *Config) heartbeat() time.Duration { return c.LeaseTTL / 5 }

func (c *Config) self() state.StoreNode {
	return state.StoreNode{ID: c.ID, RaftAddr: c.RaftAddr, RPCAddr: c.RPCAddr, HTTPAddr: c.HTTPAddr}
}
