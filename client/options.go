package client

import (
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Defaults of the options.
const (
	DefaultBudget   = 5 * time.Second
	DefaultMaxBatch = 1000
	DefaultInFlight = 2
	DefaultQueue    = 1 << 16
)

type options struct {
	transport Transport
	cluster   string
	budget    time.Duration
	maxBatch  int
	inFlight  int
	queue     int
	cache     string
	logger    *zap.Logger
	rand      *lockedRand
}

// Option changes how a Client works.
type Option func(*options)

func defaults() options {
	return options{
		transport: rpcTransport{},
		budget:    DefaultBudget,
		maxBatch:  DefaultMaxBatch,
		inFlight:  DefaultInFlight,
		queue:     DefaultQueue,
		logger:    zap.NewNop(),
		rand:      &lockedRand{r: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))},
	}
}

// WithTransport replaces the connections, in tests and simulations.
func WithTransport(t Transport) Option { return func(o *options) { o.transport = t } }

// WithCluster refuses servers of any other cluster. Without it the first
// server that answers says which one it is.
func WithCluster(name string) Option { return func(o *options) { o.cluster = name } }

// WithBudget is how long a call whose context has no deadline may take in all
// its attempts, and how long WatchKeys tries to have a key watched before it tells.
func WithBudget(d time.Duration) Option { return func(o *options) { o.budget = d } }

// WithMaxBatch is how many keys may ride in one RPC.
func WithMaxBatch(keys int) Option { return func(o *options) { o.maxBatch = keys } }

// WithInFlight is how many batches of one space may be under way to a node at a
// time. More than one are only if they are full, or take long.
func WithInFlight(batches int) Option { return func(o *options) { o.inFlight = batches } }

// WithQueue is how many keys of one space may wait for a node. Past it calls
// back off, and fail with Busy at their deadline.
func WithQueue(keys int) Option { return func(o *options) { o.queue = keys } }

// WithRouteCache keeps the routes in a file, so that a client can start while
// no server answers. A file that cannot be read is logged and replaced.
func WithRouteCache(path string) Option { return func(o *options) { o.cache = path } }

// WithLogger has the client log what it cannot return: lost subscriptions,
// unusable cache files. Without it nothing is logged.
func WithLogger(l *zap.Logger) Option { return func(o *options) { o.logger = l } }

// WithSeed makes the order of servers and the jitter of back-offs repeatable.
func WithSeed(seed uint64) Option {
	return func(o *options) { o.rand = &lockedRand{r: rand.New(rand.NewPCG(seed, 0))} }
}

func (o *options) validate() error {
	for _, c := range []struct {
		bad  bool
		name string
	}{
		{o.transport == nil, "transport"},
		{o.logger == nil, "logger"},
		{o.budget <= 0, "budget"},
		{o.maxBatch < 1, "max batch"},
		{o.inFlight < 1, "in flight"},
		{o.queue < 1, "queue"},
	} {
		if c.bad {
			return invalid(Key{}, "option %s must be set to more than nothing", c.name)
		}
	}
	return nil
}

// CallOption changes one call.
type CallOption func(*callOptions)

type callOptions struct {
	requestID    [16]byte
	hasRequestID bool
}

// WithRequestID makes a call repeatable: within the server's window (20 minutes
// by default) the same id for the same key gets the same numbers, with Replayed
// set. With another count it is refused. An id belongs to its key: for another key
// it is another request, so that one id may serve for all keys of an AllocMany. The
// client then also repeats the call itself when its outcome is unknown.
// Use the UUID of what the number is for; it must not be zero.
func WithRequestID(id [16]byte) CallOption {
	return func(o *callOptions) { o.requestID, o.hasRequestID = id, true }
}

// lockedRand is a source of randomness for several goroutines.
type lockedRand struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (l *lockedRand) intN(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.r.IntN(n)
}

func (l *lockedRand) float() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.r.Float64()
}
