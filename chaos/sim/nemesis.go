package sim

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// Faults says how often each kind of fault is picked, relative to the others.
type Faults map[string]int

// AllFaults is the mix of a random run.
func AllFaults() Faults {
	f := Faults{}
	for name, a := range actions {
		if !a.sets {
			f[name] = a.weight
		}
	}
	return f
}

// withMoves adds those that take several Sets.
func withMoves(f Faults) Faults {
	for name, a := range actions {
		if a.sets {
			f[name] = a.weight
		}
	}
	return f
}

// LosslessFaults are those that cost no number, with Options.Lossless: planned
// operations, crashes of processes that come back at once, and elections.
func LosslessFaults() Faults {
	return Faults{
		"kill-alloc": 8, "flap": 1, "kill-leader": 4, "kill-store": 2, "partition-clients": 2,
		"drain": 6, "scale-out": 4, "scale-in": 4, "restart-alloc": 6, "rolling-restart": 1, "clock-drift": 1,
	}
}

// PlannedFaults are what an operator does; with Options.Planned no call may fail.
func PlannedFaults() Faults {
	return Faults{"drain": 4, "scale-out": 3, "scale-in": 3, "restart-alloc": 4, "rolling-restart": 2}
}

// action is one kind of fault. Its inject picks a target and begins; what ends
// it later goes through nemesis.later. It reports false if it found no target.
type action struct {
	weight int
	// sets: it takes several Sets.
	sets   bool
	inject func(*nemesis) bool
}

// nemesis injects faults. All its choices come from one source, drawn in one
// goroutine, so that the plan of a run depends on its seed alone.
type nemesis struct {
	c    *Cluster
	r    source
	stop chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex
	counts map[string]int
	// busy hosts are under a fault already.
	busy map[string]bool
}

func newNemesis(c *Cluster, seed uint64) *nemesis {
	return &nemesis{
		c: c, r: newSource(seed, nameHash("nemesis"), 0), stop: make(chan struct{}),
		counts: map[string]int{}, busy: map[string]bool{},
	}
}

// run injects faults for a while, then ends them all.
func (x *nemesis) run(mix Faults, duration, gapMin, gapMax time.Duration) {
	names := make([]string, 0, len(mix))
	total := 0
	for name, w := range mix {
		if w > 0 {
			names = append(names, name)
			total += w
		}
	}
	slices.Sort(names)
	end := time.Now().Add(duration)
	for total > 0 && time.Now().Before(end) {
		if !x.sleep(x.r.between(gapMin, gapMax)) {
			break
		}
		pick := x.r.below(total)
		for _, name := range names {
			if pick -= mix[name]; pick < 0 {
				if actions[name].inject(x) {
					x.mu.Lock()
					x.counts[name]++
					x.mu.Unlock()
				}
				break
			}
		}
	}
	close(x.stop)
	x.wg.Wait()
}

func (x *nemesis) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-x.c.monitor.failed:
		return false
	case <-x.stop:
		return false
	}
}

// later ends a fault after d, or at once when the run's faults end.
func (x *nemesis) later(d time.Duration, f func()) {
	x.wg.Go(func() {
		x.sleep(d)
		f()
	})
}

// begin records a fault and keeps its host for it until the returned function is called.
func (x *nemesis) begin(f history.Fault, hosts ...string) (end func()) {
	x.mu.Lock()
	for _, h := range hosts {
		x.busy[h] = true
	}
	x.mu.Unlock()
	if x.c.opt.Lossless {
		f.Losses = 0
	}
	f.Planned = x.c.opt.Planned
	x.c.events.add("FAULT       %s %s", f.Name, f.Node)
	over := x.c.recorder.Fault(f)
	return func() {
		x.c.events.add("FAULT ENDS  %s %s", f.Name, f.Node)
		over()
		x.mu.Lock()
		for _, h := range hosts {
			delete(x.busy, h)
		}
		x.mu.Unlock()
	}
}

// idle picks a host of the list that is under no fault.
func (x *nemesis) idle(hosts []string) (string, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var free []string
	for _, h := range hosts {
		if !x.busy[h] {
			free = append(free, h)
		}
	}
	n := x.r.below(max(len(free), 1)) // drawn even if unused, to keep the plan in step
	if len(free) == 0 {
		return "", false
	}
	return free[n], true
}

// quiet reports that no StoreSvr is under a fault: one at a time keeps a majority.
func (x *nemesis) quiet(hosts []string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !slices.ContainsFunc(hosts, func(h string) bool { return x.busy[h] })
}

// alloc picks a running AllocSvr.
func (x *nemesis) alloc() (string, bool) { return x.idle(x.c.runningAllocs()) }

// set picks a Set.
func (x *nemesis) set() *simSet {
	if len(x.c.sets) == 1 {
		return x.c.sets[0]
	}
	return x.c.sets[x.r.below(len(x.c.sets))]
}

// store picks a StoreSvr, the leader if asked for, while no other of its Set is in trouble.
func (x *nemesis) store(leader bool) (string, bool) {
	set := x.set()
	n := x.r.below(len(set.stores))
	if !x.quiet(set.stores) {
		return "", false
	}
	if leader {
		l := x.c.leaderOf(set)
		return l, l != ""
	}
	return set.stores[n], true
}

func (x *nemesis) crashAlloc(name string, down time.Duration, lose bool) bool {
	id, ok := x.alloc()
	if !ok {
		return false
	}
	end := x.begin(history.Fault{Name: name, Node: id, Losses: 1}, id)
	x.c.crashAlloc(id, lose)
	x.later(down, func() {
		x.c.startAlloc(id)
		end()
	})
	return true
}

func (x *nemesis) crashStore(name string, leader bool) bool {
	down, silent := x.r.between(50*time.Millisecond, 3*time.Second), x.r.chance(0.3)
	id, ok := x.store(leader)
	if !ok {
		return false
	}
	end := x.begin(history.Fault{Name: name, Node: id}, id)
	x.c.crashStore(id, silent)
	x.later(down, func() {
		x.c.startStore(id)
		end()
	})
	return true
}

func (x *nemesis) pauseHost(name, id string, d time.Duration) {
	end := x.begin(history.Fault{Name: name, Node: id, Losses: 1}, id)
	x.c.net.pause(id)
	x.later(d, func() {
		x.c.net.resume(id)
		end()
	})
}

// direction of a partition as seen from the host.
const (
	bothWays = iota
	inbound
	outbound
	directions
)

// partition cuts a host from others for a while.
func (x *nemesis) partition(name, id string, others []string, direction int, d time.Duration) {
	end := x.begin(history.Fault{Name: name, Node: id, Losses: 1}, id)
	x.c.cutOff(id, others, direction)
	x.later(d, func() {
		x.c.join(id, others)
		end()
	})
}

func (c *Cluster) cutOff(id string, others []string, direction int) {
	for _, o := range others {
		if o == id {
			continue
		}
		if direction != inbound {
			c.net.cut(id, o)
		}
		if direction != outbound {
			c.net.cut(o, id)
		}
	}
}

func (c *Cluster) join(id string, others []string) {
	for _, o := range others {
		c.net.heal(id, o)
		c.net.heal(o, id)
	}
}

var actions = map[string]action{
	"kill-alloc": {weight: 16, inject: func(x *nemesis) bool {
		down := x.r.between(10*time.Millisecond, 800*time.Millisecond)
		if !x.c.opt.Lossless && x.r.chance(0.2) { // longer than its lease: it comes back to find its sections gone
			down = x.r.between(time.Second, 5*time.Second)
		}
		return x.crashAlloc("kill-alloc", down, false)
	}},
	"lose-alloc": {weight: 10, inject: func(x *nemesis) bool {
		return x.crashAlloc("lose-alloc", x.r.between(10*time.Millisecond, 4*time.Second), true)
	}},
	// The machine comes back from a reboot with what looks like its shared memory.
	"stale-arena": {weight: 3, inject: func(x *nemesis) bool {
		age, down := x.r.between(50*time.Millisecond, 3*time.Second), x.r.between(10*time.Millisecond, time.Second)
		id, ok := x.alloc()
		if !ok {
			return false
		}
		end := x.begin(history.Fault{Name: "stale-arena", Node: id, Losses: 1}, id)
		copied := x.c.copyArena(id)
		x.later(age, func() {
			x.c.crashAlloc(id, false)
			x.sleep(down)
			x.c.replaceArena(id, copied, true)
			x.c.startAlloc(id)
			end()
		})
		return true
	}},
	// A bit of the shared memory has flipped while the process was down.
	"flipped-bit": {weight: 3, inject: func(x *nemesis) bool {
		at, bit, down := x.r.within(0, 1), x.r.below(64), x.r.between(10*time.Millisecond, time.Second)
		id, ok := x.alloc()
		if !ok {
			return false
		}
		end := x.begin(history.Fault{Name: "flipped-bit", Node: id, Losses: 1}, id)
		x.c.crashAlloc(id, false)
		x.later(down, func() {
			x.c.flipBit(id, at, bit)
			x.c.startAlloc(id)
			end()
		})
		return true
	}},
	"pause-alloc": {weight: 12, inject: func(x *nemesis) bool {
		d := x.r.between(x.c.opt.TTL/2, 3*x.c.opt.TTL)
		id, ok := x.alloc()
		if ok {
			x.pauseHost("pause-alloc", id, d)
		}
		return ok
	}},
	"kill-leader": {weight: 12, inject: func(x *nemesis) bool {
		return x.crashStore("kill-leader", true)
	}},
	"kill-store": {weight: 3, inject: func(x *nemesis) bool {
		return x.crashStore("kill-store", false)
	}},
	// A StoreSvr comes back with an empty disk. It must not vote away what it acknowledged.
	"wipe-store": {weight: 2, inject: func(x *nemesis) bool {
		down, leader := x.r.between(50*time.Millisecond, 2*time.Second), x.r.chance(0.3)
		id, ok := x.store(leader)
		if !ok {
			return false
		}
		end := x.begin(history.Fault{Name: "wipe-store", Node: id}, id)
		x.c.crashStore(id, true)
		x.later(down, func() {
			x.c.wipeStore(id)
			x.c.startStore(id)
			// Until it has caught up, its group lives on the disks of the others: a
			// second fault would be the loss of a majority, which nothing survives.
			for !x.c.joined(id) && x.sleep(50*time.Millisecond) {
			}
			end()
		})
		return true
	}},
	"pause-leader": {weight: 6, inject: func(x *nemesis) bool {
		d := x.r.between(400*time.Millisecond, 2*x.c.opt.TTL)
		id, ok := x.store(true)
		if ok {
			x.pauseHost("pause-leader", id, d)
		}
		return ok
	}},
	// The leader keeps its AllocSvrs, but not its peers: it must not go on answering heartbeats.
	"isolate-leader": {weight: 8, inject: func(x *nemesis) bool {
		d, dir := x.r.between(600*time.Millisecond, 4*time.Second), x.r.below(directions)
		id, ok := x.store(true)
		if ok {
			x.partition("isolate-leader", id, x.c.setOf(id).stores, dir, d)
		}
		return ok
	}},
	"partition-leader": {weight: 5, inject: func(x *nemesis) bool {
		d := x.r.between(600*time.Millisecond, 4*time.Second)
		id, ok := x.store(true)
		if ok {
			x.partition("partition-leader", id, x.c.everyone(), bothWays, d)
		}
		return ok
	}},
	"partition-alloc": {weight: 8, inject: func(x *nemesis) bool {
		d, dir := x.r.between(x.c.opt.TTL, 3*x.c.opt.TTL), x.r.below(directions)
		id, ok := x.alloc()
		if ok {
			x.partition("partition-alloc", id, x.c.storeIDs, dir, d)
		}
		return ok
	}},
	"partition-clients": {weight: 3, inject: func(x *nemesis) bool {
		d, dir := x.r.between(100*time.Millisecond, 2*time.Second), x.r.below(directions)
		id, ok := x.alloc()
		if ok {
			x.partition("partition-clients", id, x.c.clientHosts(), dir, d)
		}
		return ok
	}},
	"loss-burst": {weight: 4, inject: func(x *nemesis) bool {
		d := x.r.between(300*time.Millisecond, 3*time.Second)
		w := x.c.opt.Weather
		w.Loss, w.Duplicate = x.r.within(0.05, 0.4), x.r.within(0.05, 0.3)
		w.Straggle, w.StraggleMax = x.r.within(0.05, 0.3), x.r.between(50*time.Millisecond, time.Second)
		if !x.quiet([]string{"weather"}) {
			return false
		}
		end := x.begin(history.Fault{Name: "loss-burst"}, "weather")
		x.c.net.setWeather(w)
		x.later(d, func() {
			x.c.net.setWeather(x.c.opt.Weather)
			end()
		})
		return true
	}},
	"clock-drift": {weight: 4, inject: func(x *nemesis) bool {
		all := append(slices.Clone(x.c.storeIDs), x.c.allocIDs()...)
		id, rate := all[x.r.below(len(all))], x.r.within(1-driftMax, 1+driftMax)
		x.begin(history.Fault{Name: "clock-drift", Node: fmt.Sprintf("%s ×%.3f", id, rate)})()
		x.c.clockOf(id).set(rate, 0)
		return true
	}},
	// A suspended AllocSvr finds that its lease is older than it thought. A
	// StoreSvr's clock does not jump while the world stands still: that would be
	// a drift without bound, which leases do not promise to survive.
	"clock-jump": {weight: 4, inject: func(x *nemesis) bool {
		jump := x.r.between(x.c.opt.TTL/4, 3*x.c.opt.TTL)
		id, ok := x.alloc()
		if !ok {
			return false
		}
		x.begin(history.Fault{Name: "clock-jump", Node: id, Losses: 1})()
		x.c.clockOf(id).set(1, jump)
		return true
	}},
	"drain": {weight: 6, inject: func(x *nemesis) bool {
		d := x.r.between(100*time.Millisecond, 3*time.Second)
		id, ok := x.alloc()
		if !ok || len(x.c.runningOf(x.c.setOf(id))) < 2 {
			return false
		}
		end := x.begin(history.Fault{Name: "drain", Node: id}, id)
		x.wg.Go(func() {
			x.c.drain(id, x.stop)
			x.sleep(d)
			x.c.undrain(id)
			end()
		})
		return true
	}},
	"scale-out": {weight: 4, inject: func(x *nemesis) bool {
		id, ok := x.idle(x.c.stoppedAllocs())
		if ok {
			end := x.begin(history.Fault{Name: "scale-out", Node: id}, id)
			x.c.startAlloc(id)
			end()
		}
		return ok
	}},
	"scale-in": {weight: 4, inject: func(x *nemesis) bool {
		id, ok := x.alloc()
		if !ok || len(x.c.runningOf(x.c.setOf(id))) <= min(2, x.c.opt.Allocs) {
			return false
		}
		end := x.begin(history.Fault{Name: "scale-in", Node: id}, id)
		x.wg.Go(func() {
			x.c.stopAlloc(id)
			end()
		})
		return true
	}},
	"restart-alloc": {weight: 5, inject: func(x *nemesis) bool {
		id, ok := x.alloc()
		if !ok {
			return false
		}
		end := x.begin(history.Fault{Name: "restart-alloc", Node: id}, id)
		x.wg.Go(func() {
			x.c.stopAlloc(id)
			x.c.startAlloc(id)
			end()
		})
		return true
	}},
	"flap": {weight: 3, inject: func(x *nemesis) bool {
		var pauses [8]time.Duration
		for i := range pauses {
			pauses[i] = x.r.between(20*time.Millisecond, 500*time.Millisecond)
		}
		id, ok := x.alloc()
		if !ok {
			return false
		}
		end := x.begin(history.Fault{Name: "flap", Node: id, Losses: 1}, id)
		x.wg.Go(func() {
			for i := 0; i < len(pauses); i += 2 {
				x.c.crashAlloc(id, false)
				x.sleep(pauses[i])
				x.c.startAlloc(id)
				x.sleep(pauses[i+1])
			}
			end()
		})
		return true
	}},
	"rolling-restart": {weight: 2, inject: func(x *nemesis) bool {
		stores := x.set().stores
		if !x.quiet(stores) {
			return false
		}
		end := x.begin(history.Fault{Name: "rolling-restart"}, stores...)
		x.wg.Go(func() {
			for _, id := range stores {
				x.c.stopStore(id)
				x.c.startStore(id)
				x.sleep(time.Second)
			}
			end()
		})
		return true
	}},
	"migrate":        {weight: 30, sets: true, inject: injectMigrate},
	"partition-sets": {weight: 6, sets: true, inject: injectPartitionSets},
	"restart-everything": {weight: 1, inject: func(x *nemesis) bool {
		down := x.r.between(100*time.Millisecond, 4*time.Second)
		hosts := append(slices.Clone(x.c.storeIDs), x.c.runningAllocs()...)
		if !x.quiet(hosts) {
			return false
		}
		end := x.begin(history.Fault{Name: "restart-everything", Losses: 1}, hosts...)
		for _, id := range hosts {
			if x.c.isStore(id) {
				x.c.crashStore(id, false)
			} else {
				x.c.crashAlloc(id, false)
			}
		}
		x.later(down, func() {
			for _, id := range hosts {
				if x.c.isStore(id) {
					x.c.startStore(id)
				} else {
					x.c.startAlloc(id)
				}
			}
			end()
		})
		return true
	}},
}
