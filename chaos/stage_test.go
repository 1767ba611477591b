package chaos

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/chaos/check"
	"github.com/seqsvr/seqsvr/chaos/faults"
	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/chaos/load"
	"github.com/seqsvr/seqsvr/internal/cluster"
)

// startProcesses is startFleet for what needs more than numbers of nodes.
func startProcesses(t *testing.T, o cluster.ProcessOptions) *fleet {
	t.Helper()
	for _, name := range []string{"storesvr", "allocsvr"} {
		program(t, name)
	}
	o.Bin, o.LeaseTTL = binDir, leaseTTL
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	ctx, cancel := context.WithTimeout(t.Context(), readyWithin)
	defer cancel()
	p, err := cluster.StartProcesses(ctx, o)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			p.Logs(t.Output(), 4<<10)
		}
		p.Stop()
	})
	return &fleet{Cluster: faults.Processes(p, leaseTTL), p: p, client: dialClient(t, p.Addrs()...)}
}

// stage is one act under load: what the clients saw of it is judged by itself.
type stage struct {
	t   *testing.T
	f   *fleet
	rec *history.Recorder
	ctx context.Context // ends with the test
	// no is what its keys are made of: see freshKeys.
	no uint64
}

// clients of a stage.
type clients struct {
	targets []load.Target
	// keys are how many; 0 means 200.
	keys    int
	rate    float64
	mix     load.Mix
	timeout time.Duration
}

const calm = 300 * time.Millisecond

// stages counts, so that each has keys of its own: a history begins at number 1.
var stages atomic.Uint64

// freshKeys are half uids, neighbours and far apart, half conversations.
func freshKeys(n int) (no uint64, keys []string) {
	no = stages.Add(1)
	keys = make([]string, n)
	for i := range keys {
		switch uid := no<<20 + uint64(i); i % 4 {
		case 0:
			keys[i] = fmt.Sprintf("uid/%d", uid)
		case 1:
			keys[i] = fmt.Sprintf("uid/%d", no<<20+uint64(i)<<8)
		default:
			keys[i] = fmt.Sprintf("conv/stage_%d_%d", no, i)
		}
	}
	return no, keys
}

// underLoad warms keys, lets the clients run while act does what it does, and
// ends with one allocation, one read and the ledger of each key.
func (f *fleet) underLoad(t *testing.T, c clients, act func(*stage)) *history.History {
	t.Helper()
	rec := history.NewRecorder()
	no, keys := freshKeys(cmp.Or(c.keys, 200))
	for at := range slices.Chunk(keys, 500) {
		log := rec.Client()
		ids := make([]int, len(at))
		reqs := make([]load.Request, len(at))
		for i, k := range at {
			reqs[i] = load.Request{Key: k, N: 1}
			ids[i] = log.Call(history.Op{Kind: history.Alloc, Key: k, N: 1})
		}
		for i, a := range c.targets[0].AllocMany(t.Context(), reqs) {
			log.Return(ids[i], a)
			if a.Outcome != history.OK {
				t.Fatalf("warming %s: %s %s", reqs[i].Key, a.Outcome, a.Err)
			}
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() {
		cfg := load.Config{Clients: len(c.targets), Keys: keys, Seed: 1, Rate: c.rate, Mix: c.mix, Timeout: c.timeout}
		done <- load.Run(ctx, cfg, rec, func(i int) load.Target { return c.targets[i] })
	}()
	pause(t, calm)
	act(&stage{t: t, f: f, rec: rec, ctx: t.Context(), no: no})
	pause(t, calm)
	stop()
	must(t, <-done)
	fctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, load.Finish(fctx, rec, keys, c.targets[0]))
	return rec.History()
}

// harm is a fault that lasts while do runs.
func (s *stage) harm(f history.Fault, do func()) {
	s.t.Helper()
	end := s.rec.Fault(f)
	do()
	end()
}

// planned is an operation that must not cost a call.
func (s *stage) planned(name, node string, do func()) {
	s.t.Helper()
	begin := time.Now()
	s.harm(history.Fault{Name: name, Node: node, Planned: true}, do)
	s.t.Logf("%-16s %-3s took %v", name, node, time.Since(begin).Round(time.Millisecond))
}

// lossless fails unless every number was received and every call answered.
func lossless(t *testing.T, r *check.Report) {
	t.Helper()
	if r.NumbersLost > 0 || r.DeclaredGaps > 0 {
		t.Errorf("%d numbers lost in %d holes, none may be", r.NumbersLost, r.DeclaredGaps)
	}
	if r.Failed+r.Unknown > 0 {
		t.Errorf("%d calls failed and %d are of unknown outcome, none may be", r.Failed, r.Unknown)
	}
}

// latency is how long calls took: those that were under way in one of the
// faults, or those that were not near any.
type latency struct {
	calls         int
	p50, p99, max time.Duration
}

func (l latency) String() string {
	us := time.Microsecond
	return fmt.Sprintf("%d calls, p50 %v, p99 %v, longest %v", l.calls, l.p50.Round(10*us), l.p99.Round(10*us), l.max.Round(10*us))
}

// latencies of calls around each kind of fault; "" has those of quiet times.
func latencies(h *history.History) map[string]latency {
	const near = int64(200 * time.Millisecond)
	took := map[string][]time.Duration{}
	for i := range h.Ops {
		o := &h.Ops[i]
		if o.Return == 0 {
			continue
		}
		name := ""
		for _, f := range h.Faults {
			if o.Call <= f.End+near && o.Return >= f.Start {
				name = f.Name
			}
		}
		took[name] = append(took[name], time.Duration(o.Return-o.Call))
	}
	out := map[string]latency{}
	for name, all := range took {
		slices.Sort(all)
		n := len(all)
		out[name] = latency{calls: n, p50: all[n/2], p99: all[n*99/100], max: all[n-1]}
	}
	return out
}

func logLatencies(t *testing.T, h *history.History) {
	t.Helper()
	all := latencies(h)
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		shown := name
		if shown == "" {
			shown = "(quiet)"
		}
		t.Logf("%-16s %v", shown, all[name])
	}
}
