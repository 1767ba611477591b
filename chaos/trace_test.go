package chaos

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/chaos/check"
	"github.com/seqsvr/seqsvr/chaos/faults"
	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/chaos/load"
	"github.com/seqsvr/seqsvr/internal/testdata"
)

// traceRun replays the trace of a chat service: 30 % of its messages are sent
// again under their request ids, many while the first is under way, and neighbours
// overtake each other.
type traceRun struct {
	t       *testing.T
	f       *fleet
	trace   *testdata.Trace
	sends   []testdata.Send
	rec     *history.Recorder
	targets []load.Target
	late    chan struct{} // closed: no pauses any more
}

func newTraceRun(t *testing.T, f *fleet) *traceRun {
	trace, err := testdata.ChatTrace()
	must(t, err)
	r := &traceRun{t: t, f: f, trace: trace, rec: history.NewRecorder(), targets: f.targets(t, 4), late: make(chan struct{})}
	sends := trace.Sends
	if long() == 0 {
		sends = sends[:8000]
	}
	rng := rand.New(rand.NewPCG(30, 30))
	type placed struct {
		testdata.Send
		at float64
	}
	var all []placed
	messages, again := 0, 0
	for i, s := range sends {
		if !s.Retry {
			messages++
		} else {
			again++
		}
		all = append(all, placed{s, float64(i) + 20*rng.Float64()})
	}
	for again*10 < messages*3 {
		i := rng.IntN(len(sends))
		s := sends[i]
		s.Retry = true
		again++
		// With its first sending or soon after it; one in ten much later.
		at := float64(i) + 20*rng.Float64()
		if rng.IntN(10) == 0 {
			at += 3000 * rng.Float64()
		}
		all = append(all, placed{s, at})
	}
	slices.SortFunc(all, func(a, b placed) int { return cmp.Compare(a.at, b.at) })
	for _, p := range all {
		r.sends = append(r.sends, p.Send)
	}
	t.Logf("the trace: %d messages, %d of them sent again", messages, again)
	return r
}

// harm is a fault as the history knows it.
func (r *traceRun) harm(f history.Fault, do func()) {
	end := r.rec.Fault(f)
	do()
	end()
}

// kill kills a process that is started again at once. If that took too long for its
// lease, its machine may have been given up.
func (r *traceRun) kill(node string) {
	begin, stamp := time.Now(), r.rec.Stamp()
	r.harm(history.Fault{Name: "kill-alloc", Node: node}, func() {
		must(r.t, r.f.Kill(node))
		must(r.t, r.f.Start(r.t.Context(), node))
	})
	if time.Since(begin) > r.f.LeaseTTL()*8/10 {
		r.rec.Add(history.Fault{Name: faults.SlowRestart, Node: node, Start: stamp, End: r.rec.Stamp(), Losses: 1})
	}
}

// hurry: the faults are over.
func (r *traceRun) hurry() { close(r.late) }

// replay sends at a pace that lasts over all faults; a sender repeats until it has its answer.
func (r *traceRun) replay(ctx context.Context) {
	const senders = 32
	pace := 14 * time.Second
	if long() == 1 {
		pace = 40 * time.Second
	}
	work := make(chan testdata.Send)
	var wg sync.WaitGroup
	for i := range senders {
		log, target := r.rec.Client(), r.targets[i%len(r.targets)]
		wg.Go(func() {
			for s := range work {
				r.send(ctx, log, target, s)
			}
		})
	}
	const part = 40
	ticks := time.NewTicker(pace * part / time.Duration(len(r.sends)))
	defer ticks.Stop()
	for i, s := range r.sends {
		if i%part == 0 {
			select {
			case <-ticks.C:
			case <-r.late:
			case <-ctx.Done():
			}
		}
		work <- s
	}
	close(work)
	wg.Wait()
}

func (r *traceRun) send(ctx context.Context, log *history.Log, target load.Target, s testdata.Send) {
	req := load.Request{Key: "conv/" + r.trace.Conversations[s.Conversation].Name, N: 1, ID: r.trace.RequestID(s.Message)}
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(ctx, 10*time.Second)
		id := log.Call(history.Op{Kind: history.Alloc, Key: req.Key, N: 1, Request: req.ID})
		a := target.Alloc(call, req)
		cancel()
		log.Return(id, a)
		if a.Outcome == history.OK {
			return
		}
	}
}

// judge: the checker holds each message to one number within what request ids
// promise, and every hole to be declared. Here it is counted.
func (r *traceRun) judge() {
	t := r.t
	h := r.rec.History()
	keys := map[string]bool{}
	for i := range h.Ops {
		keys[h.Ops[i].Key] = true
	}
	var all []string
	for k := range keys {
		all = append(all, k)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	must(t, load.Finish(ctx, r.rec, all, r.targets[0]))
	h = r.rec.History()
	rep := judge(t, h, check.Options{})
	numbers := map[history.RequestID]map[int64]bool{}
	replayed := 0
	for i := range h.Ops {
		o := &h.Ops[i]
		if o.Outcome != history.OK || o.Kind != history.Alloc || o.Request.IsZero() {
			continue
		}
		if o.Replayed {
			replayed++
		}
		if numbers[o.Request] == nil {
			numbers[o.Request] = map[int64]bool{}
		}
		numbers[o.Request][o.First] = true
	}
	twice := 0
	for _, n := range numbers {
		if len(n) > 1 {
			twice++
		}
	}
	t.Logf("%d messages numbered, %d answers replayed; %d messages have two numbers, since a machine took the window; %d numbers lost in %d holes",
		len(numbers), replayed, twice, rep.NumbersLost, rep.DeclaredGaps)
	if replayed == 0 || rep.DeclaredGaps == 0 {
		t.Error("this test wants repeated answers, and holes")
	}
	if twice*20 > len(numbers) {
		t.Errorf("%d of %d messages have two numbers", twice, len(numbers))
	}
}
