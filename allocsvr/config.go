package allocsvr

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/handover"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/allocsvr/session"
	"github.com/seqsvr/seqsvr/internal/clock"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// How the StoreSvr group is reached; see package session.
type (
	StoreConn     = session.StoreConn
	SessionStream = session.SessionStream
	DialStore     = session.DialStore
)

// How other AllocSvrs are reached; see package handover.
type (
	PeerConn = handover.PeerConn
	DialPeer = handover.DialPeer
)

// Config of a Server. The zero value of a limit means its default.
type Config struct {
	// Node is this AllocSvr's name, unique in the cluster; Cluster is the cluster's.
	Node, Cluster string
	// Addr, RedisAddr and HTTPAddr are how others reach it. Addr is required.
	Addr, RedisAddr, HTTPAddr string
	// Stores are RPC addresses of the Set's StoreSvrs, at least one.
	Stores []string
	Dial   DialStore
	// DialPeer reaches the next owners of sections that are moved away; nil: they
	// get no request ids.
	DialPeer DialPeer

	// ArenaPath, ArenaMaxBytes, Region and BootID: see arena.Options.
	ArenaPath     string
	ArenaMaxBytes int64
	Region        arena.Region
	BootID        string
	// DataDir keeps the route cache; "" keeps none.
	DataDir string

	// Steps is how many numbers raises ask for.
	Steps raise.Steps
	// Spaces has what differs for single spaces, by their names.
	Spaces map[string]SpaceConfig
	// IdleAfter: a key that was not used for that long is handed back, some time
	// before half of it more has passed; negative: never.
	IdleAfter time.Duration
	// ArenaHighWater, in percent of the arena: from there on the keys that were used
	// the longest ago are handed back, until a tenth of the arena is free below it.
	// Negative: never; then a full arena refuses new keys.
	ArenaHighWater int
	// Window is how long request ids are remembered; WindowEntriesMax bounds how many
	// are, of all spaces. See dedupe.Options for the defaults.
	Window           time.Duration
	WindowEntriesMax int
	// MaxN is the most numbers of one key in one request; at most 2^31 − 1.
	MaxN uint32
	// MaxBatchKeys is the most keys in one request.
	MaxBatchKeys int
	// MaxInFlight is the most requests that wait at once.
	MaxInFlight int
	// MaxWatchedKeys is the most keys of all subscriptions together.
	MaxWatchedKeys int
	// MaxWait bounds a request that brings no deadline of its own.
	MaxWait time.Duration
	// StopLinger is how long Stop goes on telling callers where to go after
	// everything was handed back. StopTimeout bounds the handing back.
	StopLinger, StopTimeout time.Duration

	Clock  clock.Clock
	Logger *zap.Logger
	// Jitter spreads back-offs; nil is ±25 %.
	Jitter  func(time.Duration) time.Duration
	Version string

	// Bugs is for fault-injection tests. Leave it zero.
	Bugs Bugs
}

// SpaceConfig is what differs for one space. The zero value of a field: nothing.
type SpaceConfig struct {
	Steps raise.Steps
	// Window is how long request ids of its keys are remembered; WindowEntriesMax
	// bounds how many of them are, within Config.WindowEntriesMax.
	Window           time.Duration
	WindowEntriesMax int
}

// Bugs switches single rules off, so that tests can show that they would
// notice. Never set outside tests.
type Bugs struct {
	// IgnoreLease serves after the lease has run out.
	IgnoreLease bool
	// HandBackBeforeClose hands keys back while callers still take numbers, and closes after it.
	HandBackBeforeClose bool
	// ReopenClosing serves a section again, in the same epoch, when the leader stops revoking it.
	ReopenClosing bool
	// ForgetBeforeAck forgets keys when their hand-back was sent, not when it was acknowledged.
	ForgetBeforeAck bool
	// ServeFrozen goes on serving a range that is leaving for another Set, and says
	// that nothing of it is held.
	ServeFrozen bool
	Arena       arena.Bugs
}

// The defaults of Config.
const (
	DefaultStep           ids.Seq = 10_000
	DefaultIdleAfter              = time.Hour
	DefaultArenaHighWater         = 90
	DefaultMaxN                   = 1_000_000
	DefaultMaxBatchKeys           = 10_000
	DefaultMaxInFlight            = 16_384
	DefaultMaxWatchedKeys         = 1 << 20
	DefaultMaxWait                = 5 * time.Second
	DefaultStopLinger             = 200 * time.Millisecond
	DefaultStopTimeout            = 10 * time.Second
)

// maxNMax is what a record of a request id can tell.
const maxNMax = 1<<31 - 1

func (c *Config) setDefaults() error {
	var errs []error
	need := func(ok bool, field string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s is not set", field))
		}
	}
	need(c.Node != "", "Node")
	need(c.Cluster != "", "Cluster")
	need(c.Addr != "", "Addr")
	need(len(c.Stores) > 0, "Stores")
	need(c.Dial != nil, "Dial")
	orDefault(&c.Steps, raise.Fixed(DefaultStep))
	orDefault(&c.MaxN, DefaultMaxN)
	orDefault(&c.IdleAfter, DefaultIdleAfter)
	orDefault(&c.ArenaHighWater, DefaultArenaHighWater)
	orDefault(&c.MaxBatchKeys, DefaultMaxBatchKeys)
	orDefault(&c.MaxInFlight, DefaultMaxInFlight)
	orDefault(&c.MaxWatchedKeys, DefaultMaxWatchedKeys)
	orDefault(&c.MaxWait, DefaultMaxWait)
	orDefault(&c.StopLinger, DefaultStopLinger)
	orDefault(&c.StopTimeout, DefaultStopTimeout)
	if err := c.Steps.Check(); err != nil {
		errs = append(errs, fmt.Errorf("field Steps: %w", err))
	}
	for name, sp := range c.Spaces {
		if sp.Steps == (raise.Steps{}) {
			continue
		}
		if err := sp.Steps.Check(); err != nil {
			errs = append(errs, fmt.Errorf("field Steps of space %s: %w", name, err))
		}
	}
	if c.ArenaHighWater > 100 {
		errs = append(errs, fmt.Errorf("an ArenaHighWater of %d %% is above 100", c.ArenaHighWater))
	}
	if c.MaxN > maxNMax {
		errs = append(errs, fmt.Errorf("a MaxN of %d is above %d", c.MaxN, maxNMax))
	}
	if c.Clock == nil {
		c.Clock = clock.Boottime()
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Jitter == nil {
		c.Jitter = func(d time.Duration) time.Duration {
			return d + time.Duration((rand.Float64()-0.5)/2*float64(d))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("allocsvr configuration: %w", errors.Join(errs...))
	}
	return nil
}

// knowsSpaces refuses what is configured of spaces that the cluster does not have.
func (c *Config) knowsSpaces(spaces []ids.Space) error {
	var known []string
	for _, sp := range spaces {
		known = append(known, sp.Name)
	}
	for name := range c.Spaces {
		if !slices.Contains(known, name) {
			return fmt.Errorf("the configuration of allocsvr %s speaks of space %q, and the cluster has %v: correct its spaces", c.Node, name, known)
		}
	}
	return nil
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
