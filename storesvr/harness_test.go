package storesvr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/seqsvr/seqsvr/internal/clock"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	testTTL     = 2 * time.Second
	testCluster = "test"
	testSet     = "s1"
)

// group is a Raft group on the in-memory transport, for a synctest bubble.
type group struct {
	t    *testing.T
	n    int
	tune func(*Config)
	// wrap, if set, is put around a transport.
	wrap  func(raft.Transport) raft.Transport
	mu    sync.Mutex
	nodes map[string]*Node
	trs   map[string]*raft.InmemTransport
	disks map[string]Storage
	// cut nodes are unreachable.
	cut map[string]bool
}

func newGroup(t *testing.T, n int, tune func(*Config)) *group {
	g := emptyGroup(t, n, tune)
	g.startAll()
	return g
}

// emptyGroup has disks and no nodes yet.
func emptyGroup(t *testing.T, n int, tune func(*Config)) *group {
	g := &group{t: t, n: n, tune: tune, nodes: map[string]*Node{}, trs: map[string]*raft.InmemTransport{}, disks: map[string]Storage{}, cut: map[string]bool{}}
	for i := range n {
		g.disks[nodeID(i)] = MemoryStorage()
	}
	return g
}

func (g *group) startAll() {
	for i := range g.n {
		g.start(nodeID(i))
	}
}

func nodeID(i int) string       { return fmt.Sprintf("n%d", i+1) }
func raftAddr(id string) string { return id + ":7101" }
func rpcAddr(id string) string  { return id + ":7100" }

func testPeers(n int) []state.StoreNode {
	var peers []state.StoreNode
	for i := range n {
		id := nodeID(i)
		peers = append(peers, state.StoreNode{ID: id, RaftAddr: raftAddr(id), RPCAddr: rpcAddr(id)})
	}
	return peers
}

func testConfig(id string, n int) Config {
	return Config{
		ID: id, Cluster: testCluster, Set: testSet, RPCAddr: rpcAddr(id), RaftAddr: raftAddr(id),
		Peers: testPeers(n), Bootstrap: true, Sections: 16, LeaseTTL: testTTL, Clock: clock.Go(),
	}
}

func testLogger(t testing.TB) *zap.Logger {
	if testing.Verbose() {
		return zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel))
	}
	return zap.NewNop()
}

func (g *group) start(id string) *Node {
	g.t.Helper()
	cfg := testConfig(id, g.n)
	cfg.Logger = testLogger(g.t)
	cfg.DialAdmin = func(addr string) (AdminConn, error) { return g.admin(addr) }
	if g.tune != nil {
		g.tune(&cfg)
	}
	_, tr := raft.NewInmemTransport(raft.ServerAddress(raftAddr(id)))
	g.mu.Lock()
	g.trs[id] = tr
	g.mu.Unlock()
	g.connect()
	var wrapped raft.Transport = tr
	if g.wrap != nil {
		wrapped = g.wrap(tr)
	}
	n, err := Start(cfg, g.disks[id], wrapped)
	if err != nil {
		g.t.Fatalf("start %s: %v", id, err)
	}
	g.mu.Lock()
	g.nodes[id] = n
	g.mu.Unlock()
	return n
}

// connect joins all that are not cut.
func (g *group) connect() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for a, ta := range g.trs {
		for b, tb := range g.trs {
			if a == b {
				continue
			}
			if g.cut[a] || g.cut[b] {
				ta.Disconnect(raft.ServerAddress(raftAddr(b)))
			} else {
				ta.Connect(raft.ServerAddress(raftAddr(b)), tb)
			}
		}
	}
}

func (g *group) setCut(id string, cut bool) {
	g.mu.Lock()
	g.cut[id] = cut
	g.mu.Unlock()
	g.connect()
}

func (g *group) kill(id string) {
	g.setCut(id, true)
	g.mu.Lock()
	n := g.nodes[id]
	delete(g.nodes, id)
	delete(g.trs, id)
	g.mu.Unlock()
	n.Kill()
	g.setCut(id, false)
}

// stop ends all nodes in order, one by one.
func (g *group) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range g.n {
		if n := g.nodes[nodeID(i)]; n != nil {
			if err := n.Stop(ctx); err != nil {
				g.t.Errorf("stop %s: %v", nodeID(i), err)
			}
		}
	}
}

// leader waits for one that is ready.
func (g *group) leader() *Node {
	g.t.Helper()
	for range 2000 {
		g.mu.Lock()
		for id, n := range g.nodes {
			if ok, _ := n.Leading(); ok && !g.cut[id] {
				g.mu.Unlock()
				return n
			}
		}
		g.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
	g.t.Fatal("no leader")
	return nil
}

func (g *group) follower() *Node {
	l := g.leader()
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.n {
		if n := g.nodes[nodeID(i)]; n != nil && n != l {
			return n
		}
	}
	g.t.Fatal("no follower")
	return nil
}

// admin is an AdminConn that calls the node directly.
func (g *group) admin(addr string) (AdminConn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, n := range g.nodes {
		if rpcAddr(id) == addr {
			return directAdmin{n}, nil
		}
	}
	return nil, errors.New("nobody listens at " + addr)
}

type directAdmin struct{ *Node }

func (directAdmin) Close() error { return nil }
func (d directAdmin) Drain(ctx context.Context, q *seqpb.DrainRequest) (DrainStream, error) {
	s := newDrainPipe(ctx)
	go func() {
		defer close(s.done)
		s.err = d.ServeDrain(q, s)
	}()
	return s, nil
}

type drainPipe struct {
	ctx  context.Context
	c    chan *seqpb.DrainProgress
	done chan struct{} // closed once err is there
	err  error
}

func newDrainPipe(ctx context.Context) *drainPipe {
	return &drainPipe{ctx: ctx, c: make(chan *seqpb.DrainProgress, 1000), done: make(chan struct{})}
}
func (s *drainPipe) Context() context.Context          { return s.ctx }
func (s *drainPipe) Send(p *seqpb.DrainProgress) error { s.c <- p; return nil }
func (s *drainPipe) Recv() (*seqpb.DrainProgress, error) {
	select {
	case p := <-s.c:
		return p, nil
	case <-s.done:
		select {
		case p := <-s.c:
			return p, nil
		default:
		}
		if s.err == nil {
			return nil, io.EOF
		}
		return nil, s.err
	}
}

// pipe is a session stream in memory: the store's end is a SessionStream.
type pipe struct {
	ctx    context.Context
	cancel context.CancelFunc
	up     chan *seqpb.SessionUp
	down   chan *seqpb.SessionDown
	err    chan error
}

func dialSession(n *Node) *pipe {
	p := &pipe{up: make(chan *seqpb.SessionUp, 16), down: make(chan *seqpb.SessionDown, 16), err: make(chan error, 1)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	go func() {
		err := n.ServeSession(p)
		p.err <- err
		close(p.down)
		p.cancel()
	}()
	return p
}

func (p *pipe) Context() context.Context { return p.ctx }
func (p *pipe) Recv() (*seqpb.SessionUp, error) {
	select {
	case m := <-p.up:
		return m, nil
	case <-p.ctx.Done():
		return nil, io.EOF
	}
}
func (p *pipe) Send(m *seqpb.SessionDown) error {
	select {
	case p.down <- m:
		return nil
	case <-p.ctx.Done():
		return io.EOF
	}
}

// alloc is an AllocSvr's session as the store sees it: it heartbeats, hands back
// what it is told to at once, and remembers what it was told.
type alloc struct {
	t    *testing.T
	node string
	pipe *pipe
	seq  ids.BatchSeq
	lead func() *Node

	mu        sync.Mutex
	welcome   *seqpb.Welcome
	directive *seqpb.Directive
	routes    *seqpb.RouteTable
	refusal   *seqpb.Refusal
	goodbye   bool
	acked     uint64
	sent      uint64
	// holds are keys with the number last issued; handed back at a release.
	holds map[ids.Key]ids.Seq
	quiet bool // no heartbeats
	keep  bool // hands nothing back
	// early: it also hands back what it holds of ranges that leave soon. returned is how
	// many keys it has, early and frozen.
	early    bool
	returned [2]int
	// vacated are the parts of moves that it has vacated.
	vacated map[[2]uint64]bool
	done    chan struct{}
}

func hello(node string) *seqpb.Hello {
	return &seqpb.Hello{Protocol: 1, Cluster: testCluster, Node: node, Addr: node + ":7000", Version: "test"}
}

// attach opens a session and runs it. It answers when welcomed or refused.
func attach(t *testing.T, lead func() *Node, h *seqpb.Hello) *alloc {
	t.Helper()
	a := &alloc{t: t, node: h.Node, lead: lead, holds: map[ids.Key]ids.Seq{}, done: make(chan struct{})}
	a.open(h)
	return a
}

func (a *alloc) open(h *seqpb.Hello) {
	a.pipe = dialSession(a.lead())
	a.pipe.up <- &seqpb.SessionUp{Hello: h}
	a.done = make(chan struct{})
	first := <-a.pipe.down
	if first != nil {
		a.take(first)
	}
	go a.run(a.pipe, a.done)
}

func (a *alloc) take(m *seqpb.SessionDown) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m.Welcome != nil {
		a.welcome, a.seq = m.Welcome, ids.BatchSeq(m.Welcome.BatchSeq)
	}
	if m.Directive != nil {
		a.directive = m.Directive
	}
	if m.Routes != nil {
		a.routes = m.Routes
	}
	if m.Refusal != nil {
		a.refusal = m.Refusal
	}
	if m.Ack != nil {
		a.acked = m.Ack.Number
	}
	a.goodbye = a.goodbye || m.Goodbye != nil
}

func (a *alloc) run(p *pipe, done chan struct{}) {
	defer close(done)
	every := testTTL / 5
	tick := time.NewTicker(every)
	defer tick.Stop()
	a.beat(p)
	for {
		select {
		case m, ok := <-p.down:
			if !ok {
				return
			}
			a.take(m)
			a.handBack()
		case <-tick.C:
			a.beat(p)
		}
	}
}

func (a *alloc) beat(p *pipe) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.quiet || a.welcome == nil {
		return
	}
	a.sent++
	select {
	case p.up <- &seqpb.SessionUp{Heartbeat: &seqpb.Heartbeat{Number: a.sent}}:
	default:
	}
}

// execute sends ops as one batch.
func (a *alloc) execute(ops ...state.Op) (state.Reply, error) {
	a.mu.Lock()
	a.seq++
	b := state.Batch{Session: ids.SessionID(a.welcome.Session), Incarnation: ids.Incarnation(a.welcome.Incarnation), Seq: a.seq, Ops: ops}
	cluster := a.welcome.ClusterId
	a.mu.Unlock()
	return executeBatch(a.lead(), cluster, b)
}

func executeBatch(n *Node, cluster string, b state.Batch) (state.Reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	rep, err := n.Execute(ctx, &seqpb.ExecuteRequest{ClusterId: cluster, Batch: state.EncodeCommand(nil, b)})
	if err != nil {
		return state.Reply{}, err
	}
	if rep.Refusal != nil {
		return state.Reply{}, errors.New(rep.Refusal.Code.String() + ": " + rep.Refusal.Message)
	}
	return state.DecodeReply(rep.Outcome)
}

// extend acquires or raises a key of the default uid space.
func (a *alloc) extend(k ids.Key, step ids.Seq) state.OpResult {
	a.t.Helper()
	rep, err := a.execute(state.Op{Kind: state.OpExtend, Key: k, Epoch: a.epoch(k.Section(16)), Cur: a.held(k), Step: step})
	if err != nil || rep.Refusal != state.OK {
		a.t.Fatalf("%s extends %v: %v %v", a.node, k, rep.Refusal, err)
	}
	r := rep.Results[0]
	if r.Refusal == state.OK {
		a.mu.Lock()
		a.holds[k] = max(a.holds[k], r.Floor)
		a.mu.Unlock()
	}
	return r
}

func (a *alloc) held(k ids.Key) ids.Seq {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.holds[k]
}

// holding is a copy of what it holds.
func (a *alloc) holding() map[ids.Key]ids.Seq {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.holds)
}

func (a *alloc) drop(k ids.Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.holds, k)
}

func (a *alloc) epoch(sec ids.Section) ids.Epoch {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, s := range a.directive.GetSection() {
		if ids.Section(s) == sec {
			return ids.Epoch(a.directive.Epoch[i])
		}
	}
	return 0
}

// anyKey is a key of a section that it owns.
func (a *alloc) anyKey() ids.Key {
	for i := range uint64(16) {
		if a.epoch(uid(i*256).Section(16)) != 0 {
			return uid(i * 256)
		}
	}
	a.t.Fatal("owns nothing")
	return ids.Key{}
}

func (a *alloc) owned() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.directive.GetSection())
}

func (a *alloc) handBack() {
	a.mu.Lock()
	d, keep, early := a.directive, a.keep, a.early
	a.mu.Unlock()
	if d == nil || keep {
		return
	}
	for _, r := range d.Revoke {
		sec := ids.Section(r)
		var ops []state.Op
		for k, cur := range a.holding() {
			if k.Section(16) == sec {
				ops = append(ops, state.Op{Kind: state.OpReturn, Key: k, Epoch: a.epoch(sec), Cur: cur})
				a.drop(k)
			}
		}
		ops = append(ops, state.Op{Kind: state.OpRelease, Section: sec, Epoch: a.epoch(sec)})
		if _, err := a.execute(ops...); err != nil {
			a.t.Logf("%s hands back section %d: %v", a.node, sec, err)
		}
	}
	if early {
		a.comeIn(d)
	}
	a.vacate(d)
}

// comeIn hands back what it holds of ranges that are to be frozen soon.
func (a *alloc) comeIn(d *seqpb.Directive) {
	for _, pb := range d.Leaving {
		if ops := a.returnsOf(pb); len(ops) > 0 && len(d.Frozen) == 0 {
			if rep, err := a.execute(ops...); err != nil || rep.Refusal != state.OK {
				a.t.Logf("%s hands back early: %v %v", a.node, rep.Refusal, err)
				continue
			}
			for _, op := range ops {
				a.drop(op.Key)
			}
			a.returned[0] += len(ops)
		}
	}
}

func (a *alloc) returnsOf(pb *seqpb.Range) (ops []state.Op) {
	r := sets.Range{Space: ids.SpaceID(pb.Space), Lo: ids.Position(pb.Lo), Last: ids.Position(pb.Last)}
	for k, cur := range a.holding() {
		if r.Contains(k.Space, k.Position()) {
			ops = append(ops, state.Op{Kind: state.OpReturn, Key: k, Epoch: a.epoch(k.Section(16)), Cur: cur})
		}
	}
	return ops
}

// vacate hands back what it holds of frozen ranges.
func (a *alloc) vacate(d *seqpb.Directive) {
	for _, f := range d.Frozen {
		id := [2]uint64{f.Move, uint64(f.Part)}
		if a.vacated[id] {
			continue
		}
		ops := append(a.returnsOf(f.Range), state.Op{Kind: state.OpVacate, Move: sets.MoveID(f.Move), Part: sets.Part(f.Part)})
		rep, err := a.execute(ops...)
		if err != nil || rep.Refusal != state.OK {
			a.t.Logf("%s vacates part %d: %v %v", a.node, f.Part, rep.Refusal, err)
			continue
		}
		for _, op := range ops {
			a.drop(op.Key)
		}
		a.returned[1] += len(ops) - 1
		if a.vacated == nil {
			a.vacated = map[[2]uint64]bool{}
		}
		a.vacated[id] = true
	}
}

// crash ends the stream without a word.
func (a *alloc) crash() {
	a.pipe.cancel()
	<-a.done
}

func eventually(t *testing.T, within time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for time.Since(start) < within {
		if ok() {
			return time.Since(start)
		}
		time.Sleep(time.Millisecond)
	}
	if !ok() {
		t.Fatalf("not within %v: %s", within, what)
	}
	return within
}

func uid(n uint64) ids.Key { return ids.Key{Space: 1, Hi: n} }

func metaOf(t *testing.T, n *Node) state.Meta {
	t.Helper()
	m, _, err := n.fsm.meta()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func idsSection[T ~uint32 | ~int](v T) ids.Section { return ids.Section(v) }
func idsBatch(v uint64) ids.BatchSeq               { return ids.BatchSeq(v) }
func idsSeq(v uint64) ids.Seq                      { return ids.Seq(v) }
