package load

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// Mix weighs the kinds of calls against each other.
type Mix struct{ Alloc, AllocN, AllocMany, Current int }

// Config of a run. Zero fields take the defaults beside them.
type Config struct {
	Clients int // 8
	Keys    []string
	Seed    uint64
	// Ops is how many calls each client makes; 0: until the context is done.
	Ops int
	// Rate is the calls per second of each client; 0: the next as soon as the last is answered.
	Rate float64
	// Timeout of a call.
	Timeout time.Duration // 5 s
	Mix     Mix           // 12 : 2 : 1 : 3
	// NMax is the most numbers that an AllocN asks for, ManyMax the most keys of an AllocMany.
	NMax    uint32 // 50
	ManyMax int    // 8
	// WithID is the share of allocations with a request id, Repeat the share of those that are sent again later.
	WithID, Repeat float64
	// Skew > 1 makes keys popular by Zipf's law; else they are equally so.
	Skew float64
}

func (c Config) filled() (Config, error) {
	if len(c.Keys) == 0 {
		return c, errors.New("load: no keys to work on")
	}
	if c.Clients == 0 {
		c.Clients = 8
	}
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.Mix == (Mix{}) {
		c.Mix = Mix{12, 2, 1, 3}
	}
	if c.NMax == 0 {
		c.NMax = 50
	}
	if c.ManyMax == 0 {
		c.ManyMax = 8
	}
	c.ManyMax = min(c.ManyMax, len(c.Keys))
	return c, nil
}

// Run drives the clients until each has made its calls, or the context is
// done; calls in flight then are still waited for, so that no outcome is
// unknown only because the test ended.
func Run(ctx context.Context, cfg Config, rec *history.Recorder, target func(client int) Target) error {
	cfg, err := cfg.filled()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for i := range cfg.Clients {
		w := newWorker(cfg, i, rec.Client(), target(i))
		wg.Go(func() { w.run(ctx) })
	}
	wg.Wait()
	return nil
}

// worker is one client.
type worker struct {
	cfg    Config
	log    *history.Log
	target Target
	rng    *rand.Rand
	zipf   *rand.Zipf
	// sent are requests with an id that may be sent again; bounded.
	sent []Request
}

// sentMax bounds what a client remembers for repeating.
const sentMax = 64

// afterFailure is the pause of a closed loop after a call that failed, so
// that a service that is down is not called in a busy loop.
const afterFailure = 5 * time.Millisecond

func newWorker(cfg Config, number int, log *history.Log, target Target) *worker {
	w := &worker{cfg: cfg, log: log, target: target, rng: rand.New(rand.NewPCG(cfg.Seed, uint64(number)))}
	if cfg.Skew > 1 {
		w.zipf = rand.NewZipf(w.rng, cfg.Skew, 1, uint64(len(cfg.Keys)-1))
	}
	return w
}

func (w *worker) run(ctx context.Context) {
	var tick <-chan time.Time
	if w.cfg.Rate > 0 {
		t := time.NewTicker(time.Duration(float64(time.Second) / w.cfg.Rate))
		defer t.Stop()
		tick = t.C
	}
	for n := 0; (w.cfg.Ops == 0 || n < w.cfg.Ops) && ctx.Err() == nil; n++ {
		if tick != nil {
			select {
			case <-tick:
			case <-ctx.Done():
				return
			}
		}
		if ok := w.call(ctx); !ok && tick == nil {
			pause(ctx, afterFailure)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// call makes one call of the mix and says whether all of it was answered.
func (w *worker) call(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Timeout)
	defer cancel()
	m := w.cfg.Mix
	switch x := w.rng.IntN(m.Alloc + m.AllocN + m.AllocMany + m.Current); {
	case x < m.Alloc:
		return one(ctx, w.log, w.target, w.request(1))
	case x < m.Alloc+m.AllocN:
		return one(ctx, w.log, w.target, w.request(w.cfg.NMax))
	case x < m.Alloc+m.AllocN+m.AllocMany:
		return w.many(ctx)
	default:
		return read(ctx, w.log, w.target, w.distinctKeys())
	}
}

func (w *worker) key() string {
	if w.zipf != nil {
		return w.cfg.Keys[w.zipf.Uint64()]
	}
	return w.cfg.Keys[w.rng.IntN(len(w.cfg.Keys))]
}

// distinctKeys draws up to ManyMax different keys.
func (w *worker) distinctKeys() []string {
	n := 1 + w.rng.IntN(w.cfg.ManyMax)
	keys := make([]string, 0, n)
	seen := map[string]bool{}
	for tries := 0; len(keys) < n && tries < 4*n; tries++ {
		if k := w.key(); !seen[k] {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	return keys
}

// request draws a new request, or one that was sent before.
func (w *worker) request(nMax uint32) Request {
	if len(w.sent) > 0 && w.rng.Float64() < w.cfg.WithID*w.cfg.Repeat {
		return w.sent[w.rng.IntN(len(w.sent))]
	}
	r := Request{Key: w.key(), N: 1 + w.rng.Uint32N(nMax)}
	if w.rng.Float64() < w.cfg.WithID {
		binary.BigEndian.PutUint64(r.ID[:8], w.rng.Uint64())
		binary.BigEndian.PutUint64(r.ID[8:], w.rng.Uint64()|1)
		if len(w.sent) < sentMax {
			w.sent = append(w.sent, r)
		} else {
			w.sent[w.rng.IntN(sentMax)] = r
		}
	}
	return r
}

// one makes a single recorded allocation.
func one(ctx context.Context, log *history.Log, target Target, r Request) bool {
	id := log.Call(history.Op{Kind: history.Alloc, Key: r.Key, N: r.N, Request: r.ID})
	a := target.Alloc(ctx, r)
	log.Return(id, a)
	return a.Outcome == history.OK
}

func (w *worker) many(ctx context.Context) bool {
	var rs []Request
	for _, k := range w.distinctKeys() {
		rs = append(rs, Request{Key: k, N: 1 + w.rng.Uint32N(3)})
	}
	return many(ctx, w.log, w.target, rs)
}

func many(ctx context.Context, log *history.Log, target Target, rs []Request) bool {
	ids := make([]int, len(rs))
	for i, r := range rs {
		ids[i] = log.Call(history.Op{Kind: history.Alloc, Key: r.Key, N: r.N, Request: r.ID})
	}
	return returned(log, ids, target.AllocMany(ctx, rs))
}

func read(ctx context.Context, log *history.Log, target Target, keys []string) bool {
	ids := make([]int, len(keys))
	for i, k := range keys {
		ids[i] = log.Call(history.Op{Kind: history.Current, Key: k})
	}
	return returned(log, ids, target.Current(ctx, keys))
}

func returned(log *history.Log, ids []int, answers []history.Op) bool {
	all := true
	for i, id := range ids {
		log.Return(id, answers[i])
		all = all && answers[i].Outcome == history.OK
	}
	return all
}
