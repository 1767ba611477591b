package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/chaos/load"
	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// play is a scripted scenario: a calm network, no random fault, and calls that
// go to a chosen AllocSvr without the SDK's retries, so that each step is certain.
type play struct {
	*Cluster
	t    *testing.T
	from *process
	log  *history.Log
	wg   sync.WaitGroup
}

func (c *Cluster) play(t *testing.T) *play {
	return &play{Cluster: c, t: t, from: c.net.start("c1"), log: c.recorder.Client()}
}

// alloc asks one AllocSvr for n numbers of a uid, and records what came of it.
func (p *play) alloc(node string, uid uint64, n uint32, patience time.Duration) (first int64, err error) {
	id := p.log.Call(history.Op{Kind: history.Alloc, Key: uidKey(uid), N: n})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	rep, err := seqConn{p.net, p.from, rpcAddr(node)}.Alloc(ctx, &seqpb.AllocRequest{
		Space: "uid", Uids: []uint64{uid}, Counts: []uint32{n}, TimeoutMs: uint32(patience / time.Millisecond),
	})
	a := history.Op{Outcome: history.Unknown}
	switch {
	case errors.Is(err, ErrRefused):
		a.Outcome, a.Err = history.Failed, "unavailable"
	case err != nil:
		a.Err = "unknown_result"
	case len(rep.Failures) > 0:
		f := rep.Failures[0]
		err = fmt.Errorf("%s: %s", f.Code, f.Message)
		if f.Code != seqpb.Code_CODE_UNKNOWN_RESULT {
			a.Outcome, a.Err = history.Failed, f.Code.String()
		}
	default:
		first = int64(rep.First[0])
		a = history.Op{Outcome: history.OK, First: first, Count: n}
		for _, d := range rep.Discontinuities {
			a.HoleFrom, a.HoleTo = int64(d.From), int64(d.To)
		}
	}
	p.log.Return(id, a)
	return first, err
}

// sdkAlloc asks for a number of a uid through the SDK, and records what came of it.
func (p *play) sdkAlloc(c *client.Client, uid uint64, patience time.Duration) history.Op {
	id := p.log.Call(history.Op{Kind: history.Alloc, Key: uidKey(uid), N: 1})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a := load.SDK(c).Alloc(ctx, load.Request{Key: uidKey(uid), N: 1})
	p.log.Return(id, a)
	return a
}

// mustAlloc repeats until the call succeeds at whoever serves the key now.
func (p *play) mustAlloc(uid uint64, n uint32, patience time.Duration) (node string, first int64) {
	p.t.Helper()
	last := errors.New("nobody is running")
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, node := range p.runningAllocs() {
			first, err := p.alloc(node, uid, n, 500*time.Millisecond)
			if err == nil {
				return node, first
			}
			last = err
		}
	}
	p.t.Fatalf("uid %d is not served: %v", uid, last)
	return "", 0
}

// must fails the scenario: it could not be played as written.
func (p *play) must(ok bool, format string, args ...any) {
	p.t.Helper()
	if !ok {
		p.events.dump(p.t.Output())
		p.t.Fatalf(format, args...)
	}
}

// batchOf decodes an Execute request; nil for any other message.
func batchOf(m *Message) *state.Batch {
	if m == nil {
		return nil
	}
	req, ok := m.Body.(*seqpb.ExecuteRequest)
	if !ok {
		return nil
	}
	cmd, err := state.DecodeCommand(req.Batch)
	if err != nil {
		return nil
	}
	b, ok := cmd.(state.Batch)
	if !ok {
		return nil
	}
	return &b
}

// has reports whether the batch has an operation of this kind.
func has(b *state.Batch, kind state.OpKind) bool {
	if b == nil {
		return false
	}
	for i := range b.Ops {
		if b.Ops[i].Kind == kind {
			return true
		}
	}
	return false
}

// background runs something beside the script; the scenario waits for it at its end.
func (p *play) background(f func()) { p.wg.Go(f) }

// runPlay plays a trap and says what the checkers found.
func runPlay(t *testing.T, seed uint64, tr trap, bugs Bugs) []string {
	t.Helper()
	opt := Options{Seed: seed, Bugs: bugs, Allocs: 2, Spares: -1, Weather: calm(), Step: 1000}
	if tr.tune != nil {
		tr.tune(&opt)
	}
	opt = opt.withDefaults()
	var rep Report
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(opt)
		if c.custody != nil {
			c.custody.mind(uidKey(one))
		}
		for _, id := range c.storeIDs {
			c.startStore(id)
		}
		for _, id := range c.firstAllocs() {
			c.startAlloc(id)
		}
		c.foundSets()
		over := make(chan struct{})
		p := c.play(t)
		if c.custody != nil {
			p.background(func() { c.custody.watch(over) })
		}
		tr.play(p)
		close(over)
		p.net.Hook(nil)
		p.net.healAll()
		p.wg.Wait()
		c.wind(&rep)
		if *dumpFlag {
			t.Logf("events of %q with %+v: %s", tr.name, bugs, c.dump())
		}
	})
	return rep.Violations
}

// mustAllocAt repeats at one node until the call succeeds.
func (p *play) mustAllocAt(node string, uid uint64, n uint32, patience time.Duration) (first int64) {
	p.t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if first, err = p.alloc(node, uid, n, 500*time.Millisecond); err == nil {
			return first
		}
	}
	p.must(false, "%s does not serve uid %d: %v", node, uid, err)
	return 0
}

// other is an AllocSvr that is not this one.
func (p *play) other(node string) string {
	for _, id := range p.allocIDs() {
		if id != node {
			return id
		}
	}
	return ""
}

// cutOff stops everything between a host and others, both ways.
func (p *play) cutOff(host string, others []string) { p.Cluster.cutOff(host, others, bothWays) }

// expectLoss tells the checker that an owner's memory was lost.
func (p *play) expectLoss(node string) {
	p.recorder.Fault(history.Fault{Name: "loss", Node: node, Losses: 1})()
}

// ownerOf is the AllocSvr that owns a section, once there is one.
func (p *play) ownerOf(sec ids.Section) (node string) {
	p.t.Helper()
	for range 500 {
		time.Sleep(10 * time.Millisecond)
		if l := p.leader(); l != "" {
			_ = p.stores[l].node.Inspect(func(_ uint64, st *state.State) {
				if ses := st.Meta.Sessions[st.Meta.Sections[sec].Owner]; ses != nil {
					node = ses.Node
				}
			})
		}
		if node != "" {
			return node
		}
	}
	p.must(false, "nobody owns section %d", sec)
	return ""
}

// tell sends an AllocSvr a message on its session as if it came from the leader.
func (p *play) tell(node string, d *seqpb.SessionDown) {
	p.t.Helper()
	p.net.mu.Lock()
	down, ok := p.net.downs[[2]string{node, "Session"}].(*lane[seqpb.SessionDown, *seqpb.SessionDown])
	p.net.mu.Unlock()
	p.must(ok && down.send(d) == nil, "%s has no session", node)
}
