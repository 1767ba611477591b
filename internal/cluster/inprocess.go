package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/lease"
	"github.com/seqsvr/seqsvr/internal/node"
	"github.com/seqsvr/seqsvr/storesvr"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// Options of a cluster in this process. The zero value of a field is its default.
type Options struct {
	// Name of the cluster. Default "dev".
	Name string
	// Dir has the state; it is created, and must not be in use by another cluster.
	Dir string
	// ArenaPath says where an AllocSvr keeps its counters in memory. Default: in Dir.
	ArenaPath func(node string) string
	// Sets is how many there are, and Stores and Allocs how many each has. Default
	// 1, 3 and 2. The numbers of Sets and stores are fixed by the first start on a
	// directory. The first Set has the Sets' directory and owns everything at first.
	Sets, Stores, Allocs int
	// Listen, Redis and HTTP are the addresses of the first AllocSvr, those of the
	// others are on free ports of the same hosts. Default 127.0.0.1:0, and "" for
	// Redis and HTTP, which then are not served.
	Listen, Redis, HTTP string

	LeaseTTL, RaftTimeout time.Duration
	Sections              uint32
	Spaces                []ids.Space
	// Steps is how many numbers raises ask for.
	Steps raise.Steps
	// StopLinger of the AllocSvrs.
	StopLinger time.Duration
	// Store and Alloc may change a node's configuration before it starts.
	Store  func(*node.StoreConfig)
	Alloc  func(*node.AllocConfig)
	Logger *zap.Logger
}

// Cluster is running in this process. Its methods are for one goroutine at a time.
type Cluster struct {
	opts   Options
	info   *info
	book   *raftBook
	stores []*member[*node.Store]
	allocs []*member[*node.Alloc]
	// neighbours are the AllocSvrs.
	neighbours *node.Neighbours
}

// member is a node that can be stopped and started again on the same address.
type member[N interface {
	Stop(context.Context) error
	Kill()
}] struct {
	id, set string
	rpcAddr string
	// redisAddr and httpAddr of an AllocSvr; "" for none.
	redisAddr, httpAddr string
	node                N
	running             bool
}

// raftBook has where the stores listen for Raft now. In the Raft configuration
// they go by their names, since ports change from one start to the next.
type raftBook struct {
	mu    sync.Mutex
	addrs map[string]string
}

func (b *raftBook) set(id, addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addrs[id] = addr
}

func (b *raftBook) resolve(id string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.addrs[id]
}

func (o *Options) defaults() {
	set(&o.Name, "dev")
	set(&o.Sets, 1)
	set(&o.Stores, 3)
	set(&o.Allocs, 2)
	set(&o.Listen, "127.0.0.1:0")
	set(&o.Sections, storesvr.DefaultSections)
	set(&o.LeaseTTL, storesvr.DefaultLeaseTTL)
	set(&o.RaftTimeout, min(storesvr.DefaultRaftTimeout, lease.RaftTimeoutMax(o.LeaseTTL)))
	if o.Spaces == nil {
		o.Spaces = ids.DefaultSpaces()
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.ArenaPath == nil {
		o.ArenaPath = func(id string) string { return filepath.Join(o.Dir, id, "arena") }
	}
}

func set[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Start starts all nodes and returns; see WaitReady.
func Start(o Options) (_ *Cluster, err error) {
	o.defaults()
	if o.Sets < 1 || o.Stores < 1 || o.Allocs < 1 {
		return nil, fmt.Errorf("a cluster needs at least one set, store and allocsvr, not %d, %d and %d", o.Sets, o.Stores, o.Allocs)
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	i, err := lockDir(o.Dir, o.Stores, o.Sets)
	if err != nil {
		return nil, err
	}
	c := &Cluster{opts: o, info: i, book: &raftBook{addrs: map[string]string{}}, neighbours: &node.Neighbours{}}
	defer func() {
		if err != nil {
			c.Kill()
		}
	}()
	for n := range o.Sets {
		if err := c.startSet(setName(n)); err != nil {
			return nil, err
		}
	}
	return c, i.save()
}

func setName(n int) string { return fmt.Sprintf("s%d", n+1) }

// storeName: the stores of a single Set go by plain names.
func (o *Options) storeName(set string, n int) string {
	if o.Sets == 1 {
		return fmt.Sprintf("s%d", n+1)
	}
	return fmt.Sprintf("%s-%d", set, n+1)
}

func (c *Cluster) startSet(set string) error {
	o := &c.opts
	var lns []net.Listener
	var peers []state.StoreNode
	var stores []*member[*node.Store]
	directory := c.storeAddrs(setName(0))
	for n := range o.Stores {
		id := o.storeName(set, n)
		ln, err := c.info.listen(id + "/rpc")
		if err != nil {
			closeListeners(lns)
			return err
		}
		lns = append(lns, ln)
		addr := ln.Addr().String()
		peers = append(peers, state.StoreNode{ID: id, RaftAddr: id, RPCAddr: addr})
		stores = append(stores, &member[*node.Store]{id: id, set: set, rpcAddr: addr})
	}
	c.stores = append(c.stores, stores...)
	for n, m := range stores {
		if err := c.startStore(m, lns[n], peers, directory); err != nil {
			closeListeners(lns[n+1:])
			return err
		}
	}
	for range o.Allocs {
		if _, err := c.addAlloc(fmt.Sprintf("a%d", len(c.allocs)+1), set); err != nil {
			return err
		}
	}
	return nil
}

func closeListeners(lns []net.Listener) {
	for _, ln := range lns {
		ln.Close()
	}
}

func (c *Cluster) startStore(m *member[*node.Store], ln net.Listener, peers []state.StoreNode, directory []string) error {
	o := &c.opts
	cfg := node.StoreConfig{
		Config: storesvr.Config{
			ID: m.id, Cluster: o.Name, Set: m.set, Directory: directory, RPCAddr: m.rpcAddr, RaftAddr: m.id, Resolve: c.book.resolve,
			Peers: peers, Bootstrap: true, Sections: o.Sections, Spaces: o.Spaces,
			LeaseTTL: o.LeaseTTL, RaftTimeout: o.RaftTimeout, Logger: o.Logger,
		},
		Dir: filepath.Join(o.Dir, m.id), RPC: ln, RaftListen: c.info.addr(m.id + "/raft"),
		OnRaft: func(a net.Addr) {
			c.book.set(m.id, a.String())
			c.info.put(m.id+"/raft", a.String())
		},
	}
	if o.Store != nil {
		o.Store(&cfg)
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		ln.Close()
		return err
	}
	n, err := node.StartStore(cfg)
	if err != nil {
		return fmt.Errorf("store %s: %w", m.id, err)
	}
	m.node, m.running = n, true
	return nil
}

// AddAlloc starts another AllocSvr of the first Set; it gets its share of the
// sections by itself.
func (c *Cluster) AddAlloc(id string) (*node.Alloc, error) { return c.addAlloc(id, setName(0)) }

func (c *Cluster) addAlloc(id, set string) (*node.Alloc, error) {
	o := &c.opts
	first := len(c.allocs) == 0
	listen, redis, http := o.Listen, o.Redis, o.HTTP
	if !first {
		listen, redis, http = anyPort(listen), anyPort(redis), anyPort(http)
	}
	m := &member[*node.Alloc]{id: id, set: set, rpcAddr: listen}
	if err := c.startAlloc(m, redis, http); err != nil {
		return nil, err
	}
	c.allocs = append(c.allocs, m)
	return m.node, nil
}

func anyPort(addr string) string {
	if addr == "" {
		return ""
	}
	host, _, _ := net.SplitHostPort(addr)
	return net.JoinHostPort(host, "0")
}

func (c *Cluster) startAlloc(m *member[*node.Alloc], redis, http string) (err error) {
	o := &c.opts
	var lns [3]net.Listener
	for i, addr := range []string{m.rpcAddr, redis, http} {
		if addr == "" {
			continue
		}
		if lns[i], err = net.Listen("tcp", addr); err != nil {
			closeListeners(lns[:i])
			return fmt.Errorf("allocsvr %s: %w: choose another address, or port 0 for a free one", m.id, err)
		}
	}
	cfg := node.AllocConfig{
		Config: allocsvr.Config{
			Node: m.id, Cluster: o.Name, Addr: reachable(lns[0]), RedisAddr: reachable(lns[1]), HTTPAddr: reachable(lns[2]),
			Stores: c.storeAddrs(m.set), ArenaPath: o.ArenaPath(m.id), DataDir: filepath.Join(o.Dir, m.id),
			Steps: o.Steps, StopLinger: o.StopLinger, Logger: o.Logger,
		},
		RPC: lns[0], Redis: lns[1], HTTP: lns[2], Neighbours: c.neighbours,
	}
	if o.Alloc != nil {
		o.Alloc(&cfg)
	}
	if err := os.MkdirAll(cfg.DataDir, 0o755); err != nil {
		closeListeners(lns[:])
		return err
	}
	n, err := node.StartAlloc(cfg)
	if err != nil {
		return err
	}
	m.node, m.running = n, true
	m.rpcAddr, m.redisAddr, m.httpAddr = cfg.Addr, cfg.RedisAddr, cfg.HTTPAddr
	return nil
}

// Endpoints are where a node is reached; "" for what it does not serve.
type Endpoints struct{ RPC, Redis, HTTP string }

// Endpoints of the first AllocSvr, the one that Options speak of.
func (c *Cluster) Endpoints() Endpoints {
	m := c.allocs[0]
	return Endpoints{RPC: m.rpcAddr, Redis: m.redisAddr, HTTP: m.httpAddr}
}

// reachable is how others in this machine reach a listener; "" for none.
func reachable(ln net.Listener) string {
	if ln == nil {
		return ""
	}
	host, port, _ := net.SplitHostPort(ln.Addr().String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// WaitReady waits until every section is served and every node is ready.
func (c *Cluster) WaitReady(ctx context.Context) error {
	for _, m := range c.stores {
		if m.running {
			if err := m.node.WaitReady(ctx); err != nil {
				return fmt.Errorf("store %s: %w", m.id, err)
			}
		}
	}
	if err := createSets(ctx, c.opts.Sets, c.storeAddrs); err != nil {
		return err
	}
	for {
		err := c.allReady()
		if err == nil {
			return nil
		}
		t := time.NewTimer(readyPoll)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return errors.Join(err, ctx.Err())
		}
	}
}

// readyPoll is how often readiness, which nobody announces, is looked at.
const readyPoll = 5 * time.Millisecond

func (c *Cluster) allReady() error {
	for _, m := range c.allocs {
		if !m.running {
			continue
		}
		if err := m.node.Ready(); err != nil {
			return fmt.Errorf("allocsvr %s: %w", m.id, err)
		}
		t := m.node.Routes().Load()
		if t == nil {
			return fmt.Errorf("allocsvr %s has no routes yet", m.id)
		}
		for _, s := range t.Sets {
			for _, section := range s.Sections {
				if section.Owner == 0 {
					return fmt.Errorf("allocsvr %s sees sections that nobody owns", m.id)
				}
			}
		}
	}
	return nil
}

// Addrs are the client addresses of the AllocSvrs.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, m := range c.allocs {
		addrs = append(addrs, m.rpcAddr)
	}
	return addrs
}

// StoreAddrs are the RPC addresses of the first Set's stores.
func (c *Cluster) StoreAddrs() []string { return c.storeAddrs(setName(0)) }

func (c *Cluster) storeAddrs(set string) []string {
	var addrs []string
	for _, m := range c.stores {
		if m.set == set {
			addrs = append(addrs, m.rpcAddr)
		}
	}
	return addrs
}

// Store is the n-th store, from 0; Alloc the n-th AllocSvr.
func (c *Cluster) Store(n int) *node.Store { return c.stores[n].node }
func (c *Cluster) Alloc(n int) *node.Alloc { return c.allocs[n].node }

// Failed tells which store could not go on, and why.
func (c *Cluster) Failed(ctx context.Context) <-chan error {
	out := make(chan error, len(c.stores))
	for _, m := range c.stores {
		go func() {
			select {
			case err := <-m.node.Failed():
				out <- fmt.Errorf("store %s: %w", m.id, err)
			case <-ctx.Done():
			}
		}()
	}
	return out
}

// Stop ends everything in order: the AllocSvrs hand all numbers back, then the
// stores write what they have. It is over when all is closed.
func (c *Cluster) Stop(ctx context.Context) error {
	err := stopAll(ctx, "allocsvr", c.allocs)
	return errors.Join(err, stopAll(ctx, "store", c.stores), c.info.unlock())
}

func stopAll[N interface {
	Stop(context.Context) error
	Kill()
}](ctx context.Context, what string, members []*member[N]) error {
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		if !m.running {
			continue
		}
		m.running = false
		wg.Go(func() {
			if err := m.node.Stop(ctx); err != nil {
				errs[i] = fmt.Errorf("%s %s: %w", what, m.id, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Kill ends everything as a crash would.
func (c *Cluster) Kill() {
	for _, m := range c.allocs {
		if m.running {
			m.running = false
			m.node.Kill()
		}
	}
	for _, m := range c.stores {
		if m.running {
			m.running = false
			m.node.Kill()
		}
	}
	_ = c.info.unlock()
}
