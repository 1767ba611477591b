package config

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"github.com/seqsvr/seqsvr/allocsvr"
)

// arenaMinMB is the smallest arena that holds keys.
const arenaMinMB = 2

// AllocSvr is the configuration of an allocsvr.
type AllocSvr struct {
	Cluster, Node               string
	RPCListen, RPCAdvertise     string
	RedisListen, RedisAdvertise string
	HTTPListen, HTTPAdvertise   string
	RedisPassword               string
	Stores                      []string
	Arena                       string
	ArenaMaxMB                  int
	ArenaHighWater              int
	IdleAfter                   time.Duration
	Data                        string
	MaxN                        uint32
	MaxBatchKeys, MaxInFlight   int
	MaxWatchedKeys              int
	StopLinger, StopTimeout     time.Duration
	MaxMessageBytes             int
	Pprof                       bool
	Steps                       Steps
	Requests                    Requests
	Spaces                      []string
	Log                         Log
	// SpaceSettings is Spaces, read.
	SpaceSettings map[string]allocsvr.SpaceConfig
}

// Declare declares the keys.
func (c *AllocSvr) Declare(fs *pflag.FlagSet) {
	fs.StringVar(&c.Cluster, "cluster", "seqsvr", "name of the cluster")
	fs.StringVar(&c.Node, "node", "", "name of this node, unique in the cluster")
	for _, e := range c.endpoints() {
		switch e.flag {
		case "rpc":
			e.declare(fs, "127.0.0.1:7100", "HOST:PORT for clients")
		case "redis":
			e.declare(fs, "", "HOST:PORT for clients that speak the Redis protocol; empty for none")
		case "http":
			e.declare(fs, "", "HOST:PORT of the admin HTTP server; empty for none")
		}
	}
	fs.StringVar(&c.RedisPassword, "redis-password", "", "password that Redis clients must give; empty for none")
	Secret(fs, "redis-password")
	fs.StringSliceVar(&c.Stores, "stores", nil, "RPC addresses of the Set's StoreSvrs")
	fs.StringVar(&c.Arena, "arena", "", "file of the counters in memory, on a memory file system (default: in /dev/shm, named for cluster and node)")
	fs.IntVar(&c.ArenaMaxMB, "arena-max-mb", 1024, "largest size of the arena in MB")
	fs.IntVar(&c.ArenaHighWater, "arena-high-water", 90, "percent of the arena from which on the keys used the longest ago are handed back; 0 for never, then a full arena refuses new keys")
	fs.DurationVar(&c.IdleAfter, "idle-after", time.Hour, "hand keys back that were not used for that long; 0 for never")
	fs.StringVar(&c.Data, "data", "", "directory to keep the route cache in; empty for none")
	c.Steps.Declare(fs)
	c.Requests.declare(fs)
	fs.StringSliceVar(&c.Spaces, "spaces", nil, "what differs for single spaces, each NAME:KEY=VALUE[:KEY=VALUE…] of the keys step_…, request_window and request_entries_max")
	fs.Uint32Var(&c.MaxN, "max-n", 1_000_000, "most numbers of one key in one request")
	fs.IntVar(&c.MaxBatchKeys, "max-batch-keys", 10_000, "most keys in one request")
	fs.IntVar(&c.MaxInFlight, "max-in-flight", 16_384, "most requests that wait at once")
	fs.IntVar(&c.MaxWatchedKeys, "max-watched-keys", allocsvr.DefaultMaxWatchedKeys, "most keys of all subscriptions to keys together")
	fs.DurationVar(&c.StopLinger, "stop-linger", 200*time.Millisecond, "how long a stop goes on telling callers where to go")
	fs.DurationVar(&c.StopTimeout, "stop-timeout", 10*time.Second, "how long handing everything back may take in a stop")
	fs.IntVar(&c.MaxMessageBytes, "max-message-bytes", 4<<20, "largest message that is accepted")
	fs.BoolVar(&c.Pprof, "pprof", false, "serve /debug/pprof on the admin HTTP server")
	c.Log.declare(fs)
}

func (c *AllocSvr) endpoints() []endpoint {
	return []endpoint{
		{flag: "rpc", listen: &c.RPCListen, advertise: &c.RPCAdvertise},
		{flag: "redis", listen: &c.RedisListen, advertise: &c.RedisAdvertise, optional: true},
		{flag: "http", listen: &c.HTTPListen, advertise: &c.HTTPAdvertise, optional: true},
	}
}

// Check validates, and fills what follows from other keys.
func (c *AllocSvr) Check(k *Keys) error {
	var problems []error
	add := func(errs ...error) { problems = append(problems, errs...) }
	add(checkName(k, "cluster", c.Cluster)...)
	add(checkName(k, "node", c.Node)...)
	for _, e := range c.endpoints() {
		add(e.check(k)...)
	}
	if len(c.Stores) == 0 {
		add(k.Problem("stores", "at least one is needed: the RPC addresses of the Set's StoreSvrs"))
	}
	seen := map[string]bool{}
	for _, s := range c.Stores {
		if err := advertised(s, true); err != nil {
			add(k.Problem("stores", "%v", err))
		} else if seen[s] {
			add(k.Problem("stores", "%q is listed twice", s))
		}
		seen[s] = true
	}
	if c.ArenaMaxMB < arenaMinMB {
		add(k.Problem("arena-max-mb", "%d: must be at least %d: an arena grows by 1 MB, beside its table of sections", c.ArenaMaxMB, arenaMinMB))
	}
	if c.ArenaHighWater < 0 || c.ArenaHighWater > 99 {
		add(k.Problem("arena-high-water", "%d is outside [0, 99]", c.ArenaHighWater))
	}
	if c.IdleAfter != 0 {
		add(atLeast(k, "idle-after", c.IdleAfter, time.Second)...)
	}
	add(c.Steps.Check(func(key, format string, a ...any) error { return k.Problem(flagOf(key), format, a...) })...)
	add(c.Requests.check(func(key, format string, a ...any) error { return k.Problem(flagOf(key), format, a...) })...)
	var err error
	if c.SpaceSettings, err = c.parseSpaceSettings(); err != nil {
		add(k.Problem("spaces", "%v", err))
	}
	if c.MaxN < 1 {
		add(k.Problem("max-n", "must be at least 1"))
	}
	if c.MaxBatchKeys < 1 {
		add(k.Problem("max-batch-keys", "must be at least 1"))
	}
	if c.MaxInFlight < 1 {
		add(k.Problem("max-in-flight", "must be at least 1"))
	}
	if c.MaxWatchedKeys < 1 {
		add(k.Problem("max-watched-keys", "must be at least 1"))
	}
	if c.StopLinger < 0 {
		add(k.Problem("stop-linger", "%v is negative", c.StopLinger))
	}
	add(atLeast(k, "stop-timeout", c.StopTimeout, 100*time.Millisecond)...)
	if c.MaxMessageBytes < 64<<10 || c.MaxMessageBytes > 64<<20 {
		add(k.Problem("max-message-bytes", "%d is outside [64 KB, 64 MB]", c.MaxMessageBytes))
	}
	add(c.Log.check(k)...)
	return errors.Join(problems...)
}
