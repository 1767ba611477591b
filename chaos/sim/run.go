package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/chaos/check"
	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/chaos/load"
	"github.com/seqsvr/seqsvr/client"
)

// Run simulates one cluster under faults and judges what it did. Violations
// are in the report; they do not fail t.
func Run(t *testing.T, opt Options) Report {
	t.Helper()
	opt = opt.withDefaults()
	rep := Report{Seed: opt.Seed}
	synctest.Test(t, func(*testing.T) {
		c := newCluster(opt)
		c.run(&rep)
		if !rep.OK() {
			rep.Log = c.dump()
		}
	})
	return rep
}

func (c *Cluster) run(rep *Report) {
	for _, id := range c.storeIDs {
		c.startStore(id)
	}
	for _, id := range c.firstAllocs() {
		c.startAlloc(id)
	}
	c.foundSets()
	clients, err := c.dialClients()
	if err != nil {
		rep.Violations = append(rep.Violations, "clients: "+err.Error())
	} else {
		c.drive(rep, clients)
		for _, cl := range clients {
			_ = cl.Close()
		}
	}
	c.wind(rep)
	rep.Simulated = time.Since(c.begun)
}

// What the processes log when one takes over from another.
const (
	saidResumed = "session resumed, no number is lost"
	saidExpired = "lease ran out"
	saidLeading = "leading"
)

// drive runs the workload under faults, and then sees to it that every key is served again.
func (c *Cluster) drive(rep *Report, clients []*client.Client) {
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	cfg := load.Config{
		Clients: c.opt.Clients, Keys: c.keys(), Seed: c.opt.Seed, Rate: c.opt.Rate,
		Timeout: c.opt.CallTimeout, NMax: uint32(c.opt.Step), ManyMax: 6,
		WithID: c.opt.WithID, Repeat: c.opt.Repeat, Skew: 1.2,
	}
	wg.Go(func() {
		if err := load.Run(ctx, cfg, c.recorder, func(i int) load.Target { return load.SDK(clients[i]) }); err != nil {
			c.monitor.violation("workload: %v", err)
		}
	})
	if c.custody != nil {
		wg.Go(func() { c.custody.watch(ctx.Done()) })
	}
	x := newNemesis(c, c.opt.Seed)
	x.run(c.opt.Faults, c.opt.Duration, c.opt.GapMin, c.opt.GapMax)
	rep.Faults = x.counts

	c.net.healAll()
	c.net.setWeather(calm())
	for _, id := range c.storeIDs {
		if c.stores[id].node == nil {
			c.startStore(id)
		}
	}
	for _, id := range c.firstAllocs() {
		if !c.allocs[id].running {
			c.startAlloc(id)
		}
	}
	c.events.add("the faults are over")
	healed := time.Now()
	patience, cancel := context.WithTimeout(ctx, c.opt.Patience)
	defer cancel()
	if err := load.Finish(patience, c.recorder, c.keys(), load.SDK(clients[0])); err != nil {
		c.monitor.violation("not available %v after the faults: %v", c.opt.Patience, err)
	}
	rep.Recovery = time.Since(healed)
	if len(c.sets) > 1 {
		c.awaitMoves(patience)
		rep.Moves, rep.Parts = c.moved()
	}
	stop()
	wg.Wait()
	c.askAgain(load.SDK(clients[0]))
}

// askPatience is what every key has to be answered within when nothing goes on.
const askPatience = time.Second

// askAgain asks for every key once more, when no lease can run any more of a
// process that is gone, and nobody else asks. What the workload asked for while
// another key was waited for may have been in vain for good reason: a machine
// that was lost keeps its sections for as long as its lease. Whether a key is
// ever served again is judged by this.
func (c *Cluster) askAgain(target load.Target) {
	// An election that has not ended yet, then that leader's wait for owners that it does not hear from.
	time.Sleep(c.opt.TTL + 3*c.opt.TTL/2)
	c.events.add("every key is asked for once more")
	if c.opt.atEnd != nil {
		c.opt.atEnd(c)
	}
	ctx, cancel := context.WithTimeout(context.Background(), askPatience)
	defer cancel()
	if err := load.Finish(ctx, c.recorder, c.keys(), target); err != nil {
		c.monitor.violation("not served when every lease had ended or was renewed: %v", err)
	}
}

// firstAllocs are the AllocSvrs that a run begins and ends with.
func (c *Cluster) firstAllocs() (all []string) {
	for _, set := range c.sets {
		all = append(all, set.allocs[:c.opt.Allocs]...)
	}
	return all
}

// wind stops everything in order, and looks at what is left.
func (c *Cluster) wind(rep *Report) {
	for _, id := range c.runningAllocs() {
		c.stopAlloc(id)
	}
	c.examine()
	for _, id := range c.storeIDs {
		c.crashStore(id, false)
	}
	for _, id := range c.storeIDs {
		<-c.stores[id].ended
	}
	for _, id := range c.allocIDs() {
		<-c.allocs[id].ended
	}
	c.net.close()

	c.monitor.settle(c.recorder.History())
	h := c.recorder.History()
	h.Seed, h.Step = c.opt.Seed, int64(c.opt.Step)
	if c.opt.Planned && len(c.sets) == 1 {
		// No window is lost, so saying that one begins anew is no excuse.
		for i := range h.Ops {
			h.Ops[i].WindowSince = 0
		}
	}
	verdict := check.Check(h, check.Options{Limits: c.opt.Limits})
	for i := range h.Ops {
		if o := &h.Ops[i]; o.Client != c.monitor.ghosts.Number() {
			rep.Operations++
			if o.Outcome == history.OK {
				rep.Answered++
			}
		}
	}
	rep.Evicted = c.evicted.Load()
	rep.NumbersLost = verdict.NumbersLost
	rep.Unserved = map[string]time.Duration{}
	for name, ms := range verdict.MaxUnavailableMS {
		rep.Unserved[name] = time.Duration(ms) * time.Millisecond
	}
	rep.Resumed, rep.Expired = c.events.counted(saidResumed), c.events.counted(saidExpired)
	rep.Elected = c.events.counted(saidLeading)
	rep.Failovers = rep.Resumed + rep.Expired + rep.Elected
	rep.Violations = append(rep.Violations, c.monitor.violations()...)
	for _, v := range verdict.Violations {
		rep.Violations = append(rep.Violations, v.String())
	}
}

func (c *Cluster) keys() []string {
	var keys []string
	for i := range c.opt.UIDs {
		keys = append(keys, uidKey(uidOf(i)))
	}
	for i := range c.opt.Names {
		keys = append(keys, fmt.Sprintf("conv/room-%d", i))
	}
	return keys
}

func (c *Cluster) dialClients() ([]*client.Client, error) {
	clients := make([]*client.Client, c.opt.Clients)
	errs := make([]error, c.opt.Clients)
	var wg sync.WaitGroup
	for i, host := range c.clientHosts() {
		wg.Go(func() { clients[i], errs[i] = c.dial(host, uint64(i)) })
	}
	wg.Wait()
	return clients, errors.Join(errs...)
}

// dial makes the SDK's client no of a run, trying until somebody is there.
func (c *Cluster) dial(host string, no uint64) (*client.Client, error) {
	var servers []string
	for _, id := range c.allocIDs() {
		servers = append(servers, rpcAddr(id))
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.opt.Patience)
	defer cancel()
	for {
		cl, err := client.Dial(ctx, servers,
			client.WithTransport(transport{net: c.net, from: c.net.start(host), bugs: c.opt.Bugs, starts: no%2 == 0}),
			client.WithCluster(clusterName), client.WithSeed(c.opt.Seed*100+no))
		if err == nil || ctx.Err() != nil {
			return cl, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// dump writes the last events to a file and names it.
func (c *Cluster) dump() string {
	name := filepath.Join(os.TempDir(), fmt.Sprintf("seqsvr-sim-%d.log", c.opt.Seed))
	f, err := os.Create(name)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	c.events.dump(f)
	return name
}

// uidOf is the i-th uid of a run: over several sections, some sharing a block.
func uidOf(i int) uint64 { return uint64(i) * 97 }

func uidKey(uid uint64) string { return fmt.Sprintf("uid/%d", uid) }
