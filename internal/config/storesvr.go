package config

import (
	"errors"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/lease"
	"github.com/seqsvr/seqsvr/sets"
)

// StoreSvr is the configuration of a storesvr.
type StoreSvr struct {
	Cluster, Set, Node, ClusterID      string
	Data                               string
	RPCListen, RPCAdvertise            string
	RaftListen, RaftAdvertise          string
	HTTPListen, HTTPAdvertise          string
	Peers, Directory                   []string
	Bootstrap                          bool
	Sections                           uint32
	Spaces                             []string
	LeaseTTL, RaftTimeout, StopTimeout time.Duration
	FreezeTimeout                      time.Duration
	PartKeys                           int
	SnapshotThreshold, TrailingLogs    uint64
	MaxMessageBytes                    int
	Pprof                              bool
	TestLogDelay                       string
	Log                                Log
	// PeerList and SpaceList are Peers and Spaces, read.
	PeerList  []Peer
	SpaceList []ids.Space
}

const (
	leaseTTLMin = 100 * time.Millisecond
	// raftTimeout is the default of raft_timeout; the least is what the least lease_ttl allows.
	raftTimeout    = 300 * time.Millisecond
	raftTimeoutMin = 20 * time.Millisecond
	// trailingLogsMin is twice what a leader has under way to a follower: see storesvr.Config.
	trailingLogsMin = 512
)

// Declare declares the keys.
func (c *StoreSvr) Declare(fs *pflag.FlagSet) {
	fs.StringVar(&c.Cluster, "cluster", "seqsvr", "name of the cluster")
	fs.StringVar(&c.Set, "set", "s1", "name of the Set that this node belongs to")
	fs.StringVar(&c.Node, "node", "", "name of this node, unique in its Set")
	fs.StringVar(&c.ClusterID, "cluster-id", "", "identity to found the cluster with (default: a random one)")
	fs.StringVar(&c.Data, "data", "", "directory of this node's state")
	for _, e := range c.endpoints() {
		switch e.flag {
		case "rpc":
			e.declare(fs, "127.0.0.1:7110", "HOST:PORT for AllocSvrs and administration")
		case "raft":
			e.declare(fs, "127.0.0.1:7120", "HOST:PORT for the other StoreSvrs of the Set")
		case "http":
			e.declare(fs, "", "HOST:PORT of the admin HTTP server; empty for none")
		}
	}
	fs.StringSliceVar(&c.Peers, "peers", nil, "first members of the Set, this node among them, each ID=RAFT_ADDR/RPC_ADDR[/HTTP_ADDR]")
	fs.BoolVar(&c.Bootstrap, "bootstrap", false, "found the Set with these peers, if the directory is empty; the same on each of them")
	fs.StringSliceVar(&c.Directory, "directory", nil, "RPC addresses of the StoreSvrs of the Set that has the directory; empty if this Set is to have it")
	fs.DurationVar(&c.FreezeTimeout, "freeze-timeout", sets.FreezeTimeoutDefault, "how long a range may be frozen for a move to another Set before it is served here again")
	fs.IntVar(&c.PartKeys, "part-keys", sets.PartKeysDefault, "about how many keys of a move to another Set are frozen at a time at most")
	fs.Uint32Var(&c.Sections, "sections", 1024, "sections to found the Set with")
	fs.StringSliceVar(&c.Spaces, "spaces", spaceTexts(ids.DefaultSpaces()), "spaces to found the cluster with, each NAME:uid[:MAX_UID] or NAME:name")
	fs.DurationVar(&c.LeaseTTL, "lease-ttl", 2*time.Second, "how long an AllocSvr may serve without hearing from the leader")
	fs.DurationVar(&c.RaftTimeout, "raft-timeout", raftTimeout, "how long without a leader before an election; at most a fifth of lease_ttl, and less by default where that is less")
	fs.DurationVar(&c.StopTimeout, "stop-timeout", 10*time.Second, "how long a stop may take")
	fs.Uint64Var(&c.SnapshotThreshold, "snapshot-threshold", 8192, "log entries before a snapshot is taken")
	fs.Uint64Var(&c.TrailingLogs, "trailing-logs", 8192, "log entries kept after a snapshot, for followers that lag")
	fs.IntVar(&c.MaxMessageBytes, "max-message-bytes", 4<<20, "largest message that is accepted")
	fs.BoolVar(&c.Pprof, "pprof", false, "serve /debug/pprof on the admin HTTP server")
	fs.StringVar(&c.TestLogDelay, "test-log-delay", "", "for tests of slow disks only, never in production: each write to the Raft log takes longer by the duration in this file, e.g. 2s")
	c.Log.declare(fs)
}

func (c *StoreSvr) endpoints() []endpoint {
	return []endpoint{
		{flag: "rpc", listen: &c.RPCListen, advertise: &c.RPCAdvertise, fixedPort: true},
		{flag: "raft", listen: &c.RaftListen, advertise: &c.RaftAdvertise, fixedPort: true},
		{flag: "http", listen: &c.HTTPListen, advertise: &c.HTTPAdvertise, optional: true},
	}
}

// Check validates, and fills what follows from other keys.
func (c *StoreSvr) Check(k *Keys) error {
	var problems []error
	add := func(errs ...error) { problems = append(problems, errs...) }
	add(checkName(k, "cluster", c.Cluster)...)
	add(checkName(k, "set", c.Set)...)
	add(checkName(k, "node", c.Node)...)
	if c.Data == "" {
		add(k.Problem("data", "must be given"))
	}
	for _, e := range c.endpoints() {
		add(e.check(k)...)
	}
	add(c.checkTimes(k)...)
	add(atLeast(k, "stop-timeout", c.StopTimeout, 100*time.Millisecond)...)
	add(atLeast(k, "freeze-timeout", c.FreezeTimeout, sets.FreezeTimeoutMin)...)
	if c.PartKeys < sets.PartKeysMin || c.PartKeys > sets.PartKeysMax {
		add(k.Problem("part-keys", "%d is outside [%d, %d]", c.PartKeys, sets.PartKeysMin, sets.PartKeysMax))
	}
	add(c.checkDirectory(k)...)
	if c.Sections < 1 || c.Sections > 65536 {
		add(k.Problem("sections", "%d is outside [1, 65536]", c.Sections))
	}
	if c.MaxMessageBytes < 64<<10 || c.MaxMessageBytes > 64<<20 {
		add(k.Problem("max-message-bytes", "%d is outside [64 KB, 64 MB]", c.MaxMessageBytes))
	}
	if c.SnapshotThreshold < 1 {
		add(k.Problem("snapshot-threshold", "must be at least 1"))
	}
	if c.TrailingLogs < trailingLogsMin {
		add(k.Problem("trailing-logs", "must be at least %d: a follower whose answers got lost needs that much of its log to agree with its leader", trailingLogsMin))
	}
	var err error
	if c.SpaceList, err = parseSpaces(c.Spaces); err != nil {
		add(k.Problem("spaces", "%v", err))
	} else if len(c.SpaceList) == 0 {
		add(k.Problem("spaces", "at least one is needed"))
	}
	add(c.checkPeers(k)...)
	add(c.Log.check(k)...)
	return errors.Join(problems...)
}

func (c *StoreSvr) checkDirectory(k *Keys) (problems []error) {
	for i, a := range c.Directory {
		switch err := advertised(a, true); {
		case err != nil:
			problems = append(problems, k.Problem("directory", "%v", err))
		case a == c.RPCAdvertise:
			problems = append(problems, k.Problem("directory", "%s is this node itself: leave it empty on the Set that is to have the directory", a))
		case slices.Contains(c.Directory[:i], a):
			problems = append(problems, k.Problem("directory", "%s is listed twice", a))
		}
	}
	return problems
}

// checkTimes also shortens the default of raft_timeout to what lease_ttl allows.
func (c *StoreSvr) checkTimes(k *Keys) []error {
	if bad := atLeast(k, "lease-ttl", c.LeaseTTL, leaseTTLMin); bad != nil {
		return bad
	}
	most := lease.RaftTimeoutMax(c.LeaseTTL)
	if !k.given("raft-timeout") {
		c.RaftTimeout = min(c.RaftTimeout, most)
	}
	if c.RaftTimeout > most {
		return []error{k.Problem("raft-timeout", "%v is more than %v, a fifth of the lease_ttl of %v: a leader that was deposed may acknowledge a lease for that long", c.RaftTimeout, most, c.LeaseTTL)}
	}
	return atLeast(k, "raft-timeout", c.RaftTimeout, raftTimeoutMin)
}

func (c *StoreSvr) checkPeers(k *Keys) (problems []error) {
	if len(c.Peers) == 0 {
		if c.Bootstrap {
			problems = append(problems, k.Problem("peers", "bootstrap needs them: list the first members, this node among them"))
		}
		return problems
	}
	used := map[string]string{}
	self := false
	for _, text := range c.Peers {
		p, err := parsePeer(text)
		if err != nil {
			problems = append(problems, k.Problem("peers", "%v", err))
			continue
		}
		for _, v := range []string{"id " + p.ID, "address " + p.RaftAddr, "address " + p.RPCAddr} {
			if other, ok := used[v]; ok {
				problems = append(problems, k.Problem("peers", "%q: %s is that of %q too", text, v, other))
			}
			used[v] = text
		}
		c.PeerList = append(c.PeerList, p)
		if p.ID != c.Node {
			continue
		}
		self = true
		if p.RaftAddr != c.RaftAdvertise {
			problems = append(problems, k.Problem("peers", "%q: this node's raft_advertise is %q", text, c.RaftAdvertise))
		}
		if p.RPCAddr != c.RPCAdvertise {
			problems = append(problems, k.Problem("peers", "%q: this node's rpc_advertise is %q", text, c.RPCAdvertise))
		}
	}
	if !self && len(problems) == 0 {
		problems = append(problems, k.Problem("peers", "this node, %q, is not among %s", c.Node, joined(c.Peers)))
	}
	return problems
}
