package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
	"github.com/seqsvr/seqsvr/sets"
)

const fakeSections = 16

// fakeCluster is one Set of AllocSvrs that share their counters, so that only
// routing and transport can go wrong. It is the client's Transport too.
type fakeCluster struct {
	mu       sync.Mutex
	id       string
	version  uint64
	sections [fakeSections]router.Section
	nodes    map[string]*fakeNode // by address
	sessions ids.SessionID
	counters map[string]uint64
	replays  map[string]uint64
	holes    map[string]*seqpb.Discontinuity
	gaps     map[string][]*seqpb.Gap
	// piggyback: replies carry routes to those who are behind.
	piggyback bool
	// waits: its connections start no call that nobody waits for.
	waits bool
	// windows: each node remembers request ids for itself alone.
	windows bool
	hub     *router.Hub
	// set is its name, and others what it knows of other Sets; see split.
	set    string
	world  sets.Map
	others []*router.SetRoutes
}

// fakeNode is one AllocSvr. Its fields are changed under the cluster's lock.
type fakeNode struct {
	c       *fakeCluster
	addr    string
	session ids.SessionID
	// What is wrong with it:
	down    bool          // refuses connections
	stuck   chan struct{} // not nil: calls hang until it is closed or their context ends
	mute    bool          // executes, and loses the reply
	held    chan struct{} // not nil: executes, and holds the reply back until it is closed
	silent  bool          // its subscriptions tell nothing more, and do not end
	latency time.Duration
	// fail, if it returns a code, fails a key.
	fail func(key string) seqpb.Code
	// cold keys wait for the durable tier, until the request's time is over, and
	// all that rides with them waits too.
	cold func(key string) bool
	// refuse, if it returns an error, refuses a whole request.
	refuse func(keys []string) error
	// deny has it say "not owner" to everything.
	deny bool
	// noGaps: it has no ledgers.
	noGaps bool
	// hint overrides the hint of "not owner".
	hint *string

	arrivals   int   // Allocs that were sent, executed or not
	batches    []int // keys of each Alloc or Current
	timeouts   []uint32
	fetches    []time.Time
	watches    int
	gapsAsked  int
	keyWatches int
	keysOpen   int
	open       int // connections
	dialled    int
}

// newFake has the given nodes, which share the sections.
func newFake(addrs ...string) *fakeCluster {
	c := &fakeCluster{
		id: "id-1", nodes: make(map[string]*fakeNode),
		counters: make(map[string]uint64), replays: make(map[string]uint64),
		holes: make(map[string]*seqpb.Discontinuity), gaps: make(map[string][]*seqpb.Gap),
		piggyback: true, hub: router.NewHub(nil),
		set: "s1", world: sets.Single("s1", ids.DefaultSpaces()),
	}
	for _, a := range addrs {
		c.add(a)
	}
	for i := range c.sections {
		c.assign(ids.Section(i), addrs[i%len(addrs)])
	}
	c.push()
	return c
}

func (c *fakeCluster) add(addr string) *fakeNode {
	c.sessions++
	n := &fakeNode{c: c, addr: addr, session: c.sessions}
	c.nodes[addr] = n
	return n
}

// change runs f under the lock, for the test to break things.
func (c *fakeCluster) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// assign gives a section to a node, "" for nobody. Watchers hear of it with push.
func (c *fakeCluster) assign(s ids.Section, addr string) {
	c.version++
	var owner ids.SessionID
	epoch := c.sections[s].Epoch
	if addr != "" {
		owner = c.nodes[addr].session
		epoch++
	}
	c.sections[s] = router.Section{Owner: owner, Epoch: epoch, Changed: c.version}
}

// moveAll gives every section to a node.
func (c *fakeCluster) moveAll(addr string) {
	for i := range c.sections {
		c.assign(ids.Section(i), addr)
	}
}

// remove takes a node out of the table; it may still answer.
func (c *fakeCluster) remove(addr string) {
	c.version++
	c.nodes[addr].session = 0
}

func (c *fakeCluster) table() *router.Table {
	r := &router.SetRoutes{Name: c.set, Version: c.version, Sections: slices.Clone(c.sections[:])}
	for _, n := range c.nodes {
		if n.session != 0 {
			r.Nodes = append(r.Nodes, router.Node{Session: n.session, ID: "node-" + n.addr, Addr: n.addr})
		}
	}
	router.SortNodes(r.Nodes)
	t, err := router.New("demo", c.id, ids.DefaultSpaces(), c.world, append([]*router.SetRoutes{r}, c.others...)...)
	if err != nil {
		panic(err)
	}
	return t
}

// push tells the watchers of the present table.
func (c *fakeCluster) push() { c.hub.Replace(c.table()) }

// inSection is a uid that lies in a section.
func inSection(s ids.Section) uint64 { return uint64(s) * ids.BlockSize }

func (c *fakeCluster) owner(space ids.Space, text string) (router.Section, error) {
	k, err := space.Parse(text)
	if err != nil {
		return router.Section{}, err
	}
	return c.sections[k.Section(fakeSections)], nil
}

// Dial makes the cluster a client.Transport.
func (c *fakeCluster) Dial(addr string) (client.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[addr]
	if n == nil {
		return nil, fmt.Errorf("no such host %q", addr)
	}
	n.open++
	n.dialled++
	conn := &fakeConn{n: n}
	if c.waits {
		return conn, nil
	}
	return startingConn{conn}, nil
}

// startingConn makes the calls that nobody waits for.
type startingConn struct{ *fakeConn }

func (c startingConn) StartAlloc(deadline time.Time, req *seqpb.AllocRequest, told func(*seqpb.AllocReply, error)) client.Started {
	return startCall(c.fakeConn, deadline, req, c.Alloc, told)
}

func (c startingConn) StartCurrent(deadline time.Time, req *seqpb.CurrentRequest, told func(*seqpb.CurrentReply, error)) client.Started {
	return startCall(c.fakeConn, deadline, req, c.Current, told)
}

// startCall makes a call unless the node is down, or else only the call that waits says so.
func startCall[Q, R any](f *fakeConn, deadline time.Time, req Q, call func(context.Context, Q) (R, error), told func(R, error)) client.Started {
	down := false
	f.n.c.change(func() { down = f.n.down })
	if down {
		return nil
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	s := &startedCall{cancel: cancel}
	go func() {
		defer cancel()
		rep, err := call(ctx, req)
		if s.over.CompareAndSwap(false, true) {
			told(rep, err)
		}
	}()
	return s
}

type startedCall struct {
	cancel context.CancelFunc
	over   atomic.Bool
}

func (s *startedCall) Abandon() bool {
	s.cancel()
	return s.over.CompareAndSwap(false, true)
}

type fakeConn struct {
	n      *fakeNode
	closed bool
}

func (f *fakeConn) Close() error {
	f.n.c.mu.Lock()
	defer f.n.c.mu.Unlock()
	if !f.closed {
		f.closed = true
		f.n.open--
	}
	return nil
}

// arrive is what every call goes through before it is executed.
func (f *fakeConn) arrive(ctx context.Context) error {
	c := f.n.c
	c.mu.Lock()
	down, stuck, latency, closed := f.n.down, f.n.stuck, f.n.latency, f.closed
	c.mu.Unlock()
	if closed {
		return &client.NotSent{Err: errors.New("connection is closed")}
	}
	if down {
		return &client.NotSent{Err: errors.New("connection refused")}
	}
	if stuck != nil {
		select {
		case <-stuck:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if latency > 0 {
		t := time.NewTimer(latency)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

const stillCold = "there is no leader"

func texts(uids []uint64, names []string) []string {
	keys := slices.Clone(names)
	for _, u := range uids {
		keys = append(keys, fmt.Sprint(u))
	}
	return keys
}

// serve runs one for each key that the node owns, and returns the failures of the others.
func (f *fakeConn) serve(space string, keys []string, one func(i int, key string)) ([]*seqpb.Failure, error) {
	n, c := f.n, f.n.c
	n.batches = append(n.batches, len(keys))
	if n.refuse != nil {
		if err := n.refuse(keys); err != nil {
			return nil, err
		}
	}
	t := c.table()
	sp, ok := t.Space(space)
	if !ok {
		return nil, wire.Refusef(seqpb.Code_CODE_INVALID_ARGUMENT, "no space %q", space)
	}
	var failed []*seqpb.Failure
	for i, key := range keys {
		s, err := c.owner(sp, key)
		if err != nil {
			return nil, wire.Refusef(seqpb.Code_CODE_INVALID_ARGUMENT, "%v", err)
		}
		if n.fail != nil {
			if code := n.fail(key); code != seqpb.Code_CODE_OK {
				failed = append(failed, &seqpb.Failure{Index: uint32(i), Code: code, Message: "as the test wants"})
				continue
			}
		}
		if n.cold != nil && n.cold(key) {
			failed = append(failed, &seqpb.Failure{Index: uint32(i), Code: seqpb.Code_CODE_NOT_READY, Message: stillCold})
			continue
		}
		if s.Owner == 0 || s.Owner != n.session || n.deny {
			fail := &seqpb.Failure{Index: uint32(i), Code: seqpb.Code_CODE_NOT_OWNER, Message: "moved", Epoch: uint64(s.Epoch)}
			for _, o := range c.nodes {
				if o.session == s.Owner && s.Owner != 0 {
					fail.OwnerAddr = o.addr
				}
			}
			if n.hint != nil {
				fail.OwnerAddr = *n.hint
			}
			failed = append(failed, fail)
			continue
		}
		one(i, space+"/"+key)
	}
	return failed, nil
}

func (f *fakeConn) Alloc(ctx context.Context, req *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
	f.n.c.change(func() { f.n.arrivals++ })
	if err := f.arrive(ctx); err != nil {
		return nil, err
	}
	c := f.n.c
	c.mu.Lock()
	held := f.n.held
	c.mu.Unlock()
	rep, err := f.alloc(req)
	if err == nil && slices.ContainsFunc(rep.Failures, func(x *seqpb.Failure) bool { return x.Message == stillCold }) {
		t := time.NewTimer(time.Duration(req.TimeoutMs) * time.Millisecond)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return rep, err
}

func (f *fakeConn) alloc(req *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
	c := f.n.c
	c.mu.Lock()
	defer c.mu.Unlock()
	f.n.timeouts = append(f.n.timeouts, req.TimeoutMs)
	keys := texts(req.Uids, req.Names)
	rep := &seqpb.AllocReply{First: make([]uint64, len(keys)), MapVersion: c.world.Version, SetVersion: c.version}
	var err error
	rep.Failures, err = f.serve(req.Space, keys, func(i int, key string) {
		count := uint64(1)
		if len(req.Counts) > 0 {
			count = uint64(req.Counts[i])
		}
		id := ""
		if len(req.RequestIds) > 0 && len(req.RequestIds[i]) > 0 {
			id = key + string(req.RequestIds[i])
			if c.windows {
				id += f.n.addr
			}
			rep.WindowSinceMs = 1_000
		}
		if first, ok := c.replays[id]; ok && id != "" {
			rep.First[i] = first
			rep.Replayed = append(rep.Replayed, uint32(i))
			return
		}
		if h := c.holes[key]; h != nil {
			c.counters[key] = h.To
			rep.Discontinuities = append(rep.Discontinuities, &seqpb.Discontinuity{Index: uint32(i), From: h.From, To: h.To})
			delete(c.holes, key)
		}
		rep.First[i] = c.counters[key] + 1
		c.counters[key] += count
		if id != "" {
			c.replays[id] = rep.First[i]
		}
	})
	if err != nil {
		return nil, err
	}
	if f.n.mute {
		return nil, errors.New("connection reset by peer")
	}
	if c.piggyback {
		rep.Routes = wire.Behind(c.table(), c.set, req.MapVersion, req.SetVersion)
	}
	return rep, nil
}

func (f *fakeConn) Current(ctx context.Context, req *seqpb.CurrentRequest) (*seqpb.CurrentReply, error) {
	if err := f.arrive(ctx); err != nil {
		return nil, err
	}
	c := f.n.c
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := texts(req.Uids, req.Names)
	rep := &seqpb.CurrentReply{Current: make([]uint64, len(keys)), MapVersion: c.world.Version, SetVersion: c.version}
	var err error
	rep.Failures, err = f.serve(req.Space, keys, func(i int, key string) { rep.Current[i] = c.counters[key] })
	if err != nil {
		return nil, err
	}
	if f.n.mute {
		return nil, errors.New("connection reset by peer")
	}
	if c.piggyback {
		rep.Routes = wire.Behind(c.table(), c.set, req.MapVersion, req.SetVersion)
	}
	return rep, nil
}

func (f *fakeConn) Gaps(ctx context.Context, req *seqpb.GapsRequest) (*seqpb.GapsReply, error) {
	if err := f.arrive(ctx); err != nil {
		return nil, err
	}
	f.n.c.mu.Lock()
	defer f.n.c.mu.Unlock()
	f.n.gapsAsked++
	if f.n.noGaps {
		return nil, wire.Refusef(seqpb.Code_CODE_NOT_OWNER, "not of this set")
	}
	key := req.Space + "/" + req.Name
	if req.Name == "" {
		key = req.Space + "/" + fmt.Sprint(req.Uid)
	}
	return &seqpb.GapsReply{Gaps: f.n.c.gaps[key]}, nil
}

func (f *fakeConn) GetRoutes(ctx context.Context, req *seqpb.RoutesRequest) (*seqpb.RouteTable, error) {
	if err := f.arrive(ctx); err != nil {
		return nil, err
	}
	f.n.c.mu.Lock()
	defer f.n.c.mu.Unlock()
	f.n.fetches = append(f.n.fetches, time.Now())
	return wire.Routes(f.n.c.table().Whole()), nil
}

func (f *fakeConn) WatchRoutes(ctx context.Context, req *seqpb.RoutesRequest) (client.RouteStream, error) {
	if err := f.arrive(ctx); err != nil {
		return nil, err
	}
	f.n.c.mu.Lock()
	defer f.n.c.mu.Unlock()
	f.n.watches++
	return &fakeStream{f: f, ctx: ctx}, nil
}

type fakeStream struct {
	f    *fakeConn
	ctx  context.Context
	last *router.Table
}

func (s *fakeStream) Close() error { return nil }

func (s *fakeStream) Recv() (*seqpb.RouteTable, error) {
	if s.last == nil {
		s.last = s.f.n.c.hub.Load()
		return wire.Routes(s.last.Whole()), nil
	}
	for {
		t, err := s.f.n.c.hub.Wait(s.ctx, s.last)
		if err != nil {
			return nil, err
		}
		s.f.n.c.mu.Lock()
		down, silent := s.f.n.down, s.f.n.silent
		s.f.n.c.mu.Unlock()
		if silent {
			<-s.ctx.Done()
			return nil, s.ctx.Err()
		}
		if down || t.ClusterID != s.last.ClusterID { // the nodes of a restored cluster were started anew
			return nil, io.ErrUnexpectedEOF
		}
		d, news := t.Since(s.last.Versions())
		s.last = t
		if news {
			return wire.Routes(d), nil
		}
	}
}

// dial makes a client of the cluster that is closed with the test; closing it
// proves that nothing is left open.
func dial(t *testing.T, c *fakeCluster, opts ...client.Option) *client.Client {
	t.Helper()
	servers := slices.Sorted(maps.Keys(c.nodes))
	cl, err := client.Dial(t.Context(), servers, append([]client.Option{client.WithTransport(c), client.WithSeed(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, n := range c.nodes {
			if n.open != 0 {
				t.Errorf("%d connections to %s are left open", n.open, n.addr)
			}
		}
	})
	return cl
}

func (n *fakeNode) rpcs() int {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	return len(n.batches)
}

// liar answers every Alloc with the same reply.
type liar struct {
	*fakeCluster
	rep *seqpb.AllocReply
}

type liarConn struct {
	client.Conn
	rep *seqpb.AllocReply
}

func (l liar) Dial(addr string) (client.Conn, error) {
	c, err := l.fakeCluster.Dial(addr)
	return liarConn{c, l.rep}, err
}

func (l liarConn) Alloc(context.Context, *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
	return l.rep, nil
}

var errDeadline = context.DeadlineExceeded

// dial2 is dial with one bootstrap server, so that routes are asked of and
// watched at the others only once they are known.
func dial2(t *testing.T, c *fakeCluster, server string, opts ...client.Option) *client.Client {
	t.Helper()
	cl, err := client.Dial(t.Context(), []string{server}, append([]client.Option{client.WithTransport(c), client.WithSeed(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}
