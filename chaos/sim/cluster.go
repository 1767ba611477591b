package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// Bugs of all packages; the zero value is the correct system.
type Bugs struct {
	Store storesvr.Bugs
	Alloc allocsvr.Bugs
	// LostIsNotSent: clients are told that a call was not sent when its answer is lost.
	LostIsNotSent bool
}

const (
	clusterName = "sim"
	clusterID   = "sim-cluster"
)

// Cluster is a whole cluster inside one bubble of simulated time.
type Cluster struct {
	evicted  atomic.Uint64 // keys that processes handed back one by one
	opt      Options
	net      *Network
	events   *ring
	recorder *history.Recorder
	monitor  *monitor
	begun    time.Time

	// sets has one or two; the first has the directory. storeIDs are the stores of all.
	sets     []*simSet
	storeIDs []string
	custody  *custody // nil with one Set
	mu       sync.Mutex
	stores   map[string]*storeHost
	allocs   map[string]*allocHost
}

// storeHost is a machine with a disk, on which a StoreSvr runs or not.
type storeHost struct {
	id      string
	set     *simSet
	clock   *skewed
	storage storesvr.Storage
	proc    *process
	node    *storesvr.Node
	// ended is closed when the last process's goroutines are gone.
	ended chan struct{}
}

// allocHost is a machine with shared memory, on which an AllocSvr runs or not.
type allocHost struct {
	id     string
	set    *simSet
	clock  *skewed
	region *arena.Heap
	boot   int
	proc   *process
	server *allocsvr.Server
	// running is set from start until crash or stop begins.
	running bool
	ended   chan struct{}
}

func over() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// newCluster makes the machines; nothing runs yet.
func newCluster(opt Options) *Cluster {
	events := newRing(20_000)
	rec := history.NewRecorder()
	c := &Cluster{
		opt: opt, events: events, net: newNetwork(opt.Seed, events),
		recorder: rec, monitor: newMonitor(events, rec), begun: time.Now(),
		stores: map[string]*storeHost{}, allocs: map[string]*allocHost{},
	}
	c.net.arrived = c.monitor.arrived
	c.net.setWeather(opt.Weather)
	if opt.Sets > 1 {
		c.custody = newCustody(c)
	}
	r := newSource(opt.Seed, nameHash("machines"), 0)
	clock := func() *skewed {
		return newSkewed(c.begun, r.between(time.Hour, 100*time.Hour), r.within(1-driftMax, 1+driftMax))
	}
	for i := range opt.Sets {
		set := newSet(i, opt)
		c.sets = append(c.sets, set)
		c.storeIDs = append(c.storeIDs, set.stores...)
		for _, id := range set.stores {
			c.stores[id] = &storeHost{id: id, set: set, storage: c.newStorage(set), ended: over(), clock: clock()}
		}
		for _, id := range set.allocs {
			c.allocs[id] = &allocHost{id: id, set: set, ended: over(), clock: clock()}
		}
	}
	return c
}

func rpcAddr(id string) string { return id + ":7100" }

func (c *Cluster) isStore(id string) bool { return slices.Contains(c.storeIDs, id) }

func (c *Cluster) clockOf(id string) *skewed {
	if h := c.stores[id]; h != nil {
		return h.clock
	}
	return c.allocs[id].clock
}

func (c *Cluster) allocIDs() (all []string) {
	for _, set := range c.sets {
		all = append(all, set.allocs...)
	}
	return all
}

func (c *Cluster) allocsThat(running bool) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, id := range c.allocIDs() {
		if c.allocs[id].running == running {
			out = append(out, id)
		}
	}
	return out
}

func (c *Cluster) runningAllocs() []string { return c.allocsThat(true) }

func (c *Cluster) runningOf(set *simSet) []string {
	return slices.DeleteFunc(c.runningAllocs(), func(id string) bool { return c.allocs[id].set != set })
}

func (c *Cluster) stoppedAllocs() []string { return c.allocsThat(false) }

func (c *Cluster) clientHosts() []string {
	var out []string
	for i := range c.opt.Clients {
		out = append(out, fmt.Sprintf("c%d", i+1))
	}
	return out
}

func (c *Cluster) everyone() []string {
	return slices.Concat(c.storeIDs, c.allocIDs(), c.clientHosts())
}

// startStore starts a StoreSvr on its disk, once the last process is gone.
func (c *Cluster) startStore(id string) {
	h := c.stores[id]
	<-h.ended
	var peers []state.StoreNode
	for _, s := range h.set.stores {
		peers = append(peers, state.StoreNode{ID: s, RaftAddr: s + ":7101", RPCAddr: rpcAddr(s), HTTPAddr: s + ":7180"})
	}
	p := c.net.start(id)
	tr := newRaftTransport(c.net, p, id+":7101")
	cfg := storesvr.Config{
		ID: id, Cluster: clusterName, Set: h.set.name, ClusterID: clusterID,
		RPCAddr: rpcAddr(id), RaftAddr: id + ":7101", HTTPAddr: id + ":7180",
		Peers: peers, Bootstrap: true,
		Sections: c.opt.Sections, Spaces: ids.DefaultSpaces(), LeaseTTL: c.opt.TTL,
		// Not below what a follower may be ahead of what its leader knows: one request.
		SnapshotThreshold: 200, TrailingLogs: 150,
		Clock: h.clock, Logger: logger(c.events, id), Bugs: c.opt.Bugs.Store,
	}
	if len(c.sets) > 1 {
		c.amongSets(&cfg, h, p)
	}
	node, err := storesvr.Start(cfg, h.storage, tr)
	if err != nil {
		c.monitor.violation("store %s does not start on its disk: %v", id, err)
		return
	}
	c.mu.Lock()
	h.proc, h.node = p, node
	c.mu.Unlock()
	c.net.listen(p, services{store: node, admin: node, raft: tr, seq: node.Seq(), sets: node, setAdmin: node})
}

// crashStore ends a StoreSvr as kill -9 does; what it had written stays.
func (c *Cluster) crashStore(id string, silent bool) {
	c.endStore(id, func(h *storeHost) {
		c.net.kill(h.proc, silent)
		h.node.Kill()
		h.proc.handlers.Wait()
	})
}

// wipeStore gives a StoreSvr's machine, whose process is gone, an empty disk.
func (c *Cluster) wipeStore(id string) {
	h := c.stores[id]
	<-h.ended
	c.mu.Lock()
	defer c.mu.Unlock()
	h.storage = c.newStorage(h.set)
}

// joined reports that a StoreSvr has caught up with a leader since its disk was empty.
func (c *Cluster) joined(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stores[id].storage.Identity.Identity().Joined
}

// stopStore ends a StoreSvr in an orderly way and waits for it.
func (c *Cluster) stopStore(id string) {
	c.endStore(id, func(h *storeHost) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := h.node.Stop(ctx); err != nil {
			c.events.add("stop %s: %v", id, err)
		}
		c.net.kill(h.proc, false)
		h.proc.handlers.Wait()
	})
	<-c.stores[id].ended
}

func (c *Cluster) endStore(id string, end func(*storeHost)) {
	c.mu.Lock()
	h := c.stores[id]
	c.mu.Unlock()
	if h.node == nil {
		return
	}
	ended := make(chan struct{})
	gone := *h
	c.mu.Lock()
	h.node, h.proc, h.ended = nil, nil, ended
	c.mu.Unlock()
	go func() {
		defer close(ended)
		end(&gone)
	}()
}

// leader is who leads the first Set.
func (c *Cluster) leader() string { return c.leaderOf(c.sets[0]) }

// leaderOf is the Set's StoreSvr that leads in the newest term; empty if none does.
func (c *Cluster) leaderOf(set *simSet) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	best, term := "", uint64(0)
	for _, id := range set.stores {
		if n := c.stores[id].node; n != nil {
			if lead, t := n.Leading(); lead && t >= term {
				best, term = id, t
			}
		}
	}
	return best
}

// startAlloc starts an AllocSvr on what its machine's shared memory holds.
func (c *Cluster) startAlloc(id string) {
	h := c.allocs[id]
	<-h.ended
	if h.region == nil {
		h.region = arena.NewHeap(id, 0)
		h.boot++
	}
	p := c.net.start(id)
	srv, err := allocsvr.Start(allocsvr.Config{
		Node: id, Cluster: clusterName, Addr: rpcAddr(id), Stores: rpcAddrs(h.set.stores),
		Region: h.region, BootID: fmt.Sprintf("%s-boot-%d", id, h.boot),
		Steps: c.opt.steps(), MaxN: uint32(min(c.opt.Step*20, 100_000)), IdleAfter: c.opt.IdleAfter,
		Clock: h.clock, Logger: logger(c.events, id),
		Dial:     func(addr string) (allocsvr.StoreConn, error) { return allocStoreConn{storeConn{c.net, p, addr}}, nil },
		DialPeer: func(addr string) (allocsvr.PeerConn, error) { return peerConn{c.net, p, addr}, nil },
		Bugs:     c.opt.Bugs.Alloc,
	})
	if err != nil {
		c.monitor.violation("alloc %s does not start: %v", id, err)
		return
	}
	c.mu.Lock()
	h.proc, h.server, h.running = p, srv, true
	c.mu.Unlock()
	c.net.listen(p, services{seq: srv, peer: srv})
}

// crashAlloc ends an AllocSvr as kill -9 does. lose: the machine goes too, with its arena.
func (c *Cluster) crashAlloc(id string, lose bool) {
	c.endAlloc(id, func(h *allocHost) {
		c.net.kill(h.proc, lose)
		h.server.Kill()
		h.proc.handlers.Wait()
	})
	if lose {
		c.allocs[id].region = nil
	}
}

// stopAlloc ends an AllocSvr in an orderly way and waits for it.
func (c *Cluster) stopAlloc(id string) {
	c.endAlloc(id, func(h *allocHost) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := h.server.Stop(ctx); err != nil {
			c.events.add("stop %s: %v", id, err)
		}
		c.net.kill(h.proc, false)
		h.proc.handlers.Wait()
	})
	<-c.allocs[id].ended
}

func (c *Cluster) endAlloc(id string, end func(*allocHost)) {
	c.mu.Lock()
	h := c.allocs[id]
	if h.server == nil {
		c.mu.Unlock()
		return
	}
	ended := make(chan struct{})
	gone := *h
	h.server, h.proc, h.running, h.ended = nil, nil, false, ended
	c.mu.Unlock()
	go func() {
		defer close(ended)
		c.evicted.Add(gone.server.Stats().Evicted)
		end(&gone)
	}()
}

// copyArena is what a snapshot of the machine's memory would hold now.
func (c *Cluster) copyArena(id string) *arena.Heap {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.allocs[id].region.Clone()
}

// replaceArena puts other memory into a machine whose process is gone; reboot
// gives it another boot id.
func (c *Cluster) replaceArena(id string, region *arena.Heap, reboot bool) {
	h := c.allocs[id]
	<-h.ended
	c.mu.Lock()
	defer c.mu.Unlock()
	h.region = region
	if reboot {
		h.boot++
	}
}

// flipBit damages one word in use of a machine's memory: the one at the given
// share of them.
func (c *Cluster) flipBit(id string, at float64, bit int) {
	h := c.allocs[id]
	<-h.ended
	var used []*atomic.Uint64
	for off := int64(0); off < h.region.Size(); off += pageBytes {
		words := h.region.Words(off, pageBytes)
		for i := range words {
			if words[i].Load() != 0 {
				used = append(used, &words[i])
			}
		}
	}
	if len(used) > 0 {
		w := used[int(at*float64(len(used)))%len(used)]
		w.Store(w.Load() ^ 1<<bit)
	}
}

// pageBytes divides every part of an arena.
const pageBytes = 4096

type allocStoreConn struct{ storeConn }

func (a allocStoreConn) Session(ctx context.Context) (allocsvr.SessionStream, error) {
	return a.session(ctx)
}
