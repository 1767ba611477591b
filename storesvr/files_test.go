package storesvr

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/storesvr/disk"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// realGroup runs nodes on real directories and loopback TCP.
type realGroup struct {
	t     *testing.T
	peers []state.StoreNode
	dirs  map[string]string
	nodes map[string]*Node
	tune  func(*Config)
	logs  func(id string, on raft.LogStore) raft.LogStore // what a node starts with; nil: its disk's
}

func newRealGroup(t *testing.T, n int, tune func(*Config)) *realGroup {
	return newRealGroupOn(t, n, tune, nil)
}

func newRealGroupOn(t *testing.T, n int, tune func(*Config), logs func(string, raft.LogStore) raft.LogStore) *realGroup {
	g := &realGroup{t: t, dirs: map[string]string{}, nodes: map[string]*Node{}, tune: tune, logs: logs}
	for i := range n {
		id := nodeID(i)
		g.peers = append(g.peers, state.StoreNode{ID: id, RaftAddr: listenFree(t), RPCAddr: rpcAddr(id)})
		g.dirs[id] = t.TempDir()
	}
	for _, p := range g.peers {
		g.mustStart(p.ID)
	}
	t.Cleanup(func() {
		for _, n := range g.nodes {
			n.Kill()
		}
	})
	return g
}

func (g *realGroup) config(id string) Config {
	cfg := Config{
		ID: id, Cluster: testCluster, Set: testSet, Peers: g.peers, Bootstrap: true, Sections: 16,
		// Long enough that a busy machine deposes no leader: these tests write through one.
		RaftTimeout: time.Second, Logger: testLogger(g.t),
		LeaseTTL: time.Hour, // the writer sends no heartbeats
	}
	for _, p := range g.peers {
		if p.ID == id {
			cfg.RaftAddr, cfg.RPCAddr = p.RaftAddr, p.RPCAddr
		}
	}
	if g.tune != nil {
		g.tune(&cfg)
	}
	return cfg
}

func (g *realGroup) start(id string) (*Node, error) {
	cfg := g.config(id)
	st, err := OpenDisk(g.dirs[id], cfg)
	if err != nil {
		return nil, err
	}
	if g.logs != nil {
		st.Log = g.logs(id, st.Log)
	}
	tr, err := NewTransport(cfg, cfg.RaftAddr)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return Start(cfg, st, tr)
}

func (g *realGroup) mustStart(id string) *Node {
	g.t.Helper()
	n, err := g.start(id)
	if err != nil {
		g.t.Fatal(err)
	}
	g.nodes[id] = n
	return n
}

func (g *realGroup) stop(id string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := g.nodes[id].Stop(ctx); err != nil {
		g.t.Fatalf("stop %s: %v", id, err)
	}
	delete(g.nodes, id)
}

func (g *realGroup) kill(id string) {
	g.nodes[id].Kill()
	delete(g.nodes, id)
}

func (g *realGroup) leader() *Node {
	g.t.Helper()
	var found *Node
	eventually(g.t, 20*time.Second, "a leader", func() bool {
		for _, n := range g.nodes {
			if ok, _ := n.Leading(); ok {
				found = n
				return true
			}
		}
		return false
	})
	return found
}

func (g *realGroup) follower() *Node {
	l := g.leader()
	for _, n := range g.nodes {
		if n != l {
			return n
		}
	}
	g.t.Fatal("no follower")
	return nil
}

// writer proposes as the leader does, without an AllocSvr.
type writer struct {
	t       *testing.T
	n       *Node
	session state.SessionState
	seq     uint64
}

func newWriter(t *testing.T, n *Node) *writer {
	t.Helper()
	w := &writer{t: t, n: n}
	rep := w.propose(state.Register{Node: "w", Addr: "w:1"})
	w.session = rep.Session
	var as []state.Assignment
	for i := range n.cfg.Sections {
		as = append(as, state.Assignment{Section: idsSection(i), To: w.session.ID})
	}
	w.propose(state.Assign{Assignments: as})
	return w
}

func (w *writer) propose(c state.Command) state.Reply {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	rep, err := w.n.propose(ctx, c)
	if err != nil {
		w.t.Fatal(err)
	}
	return rep
}

// extend gives each key of [from, to) a bound.
func (w *writer) extend(from, to uint64, step uint64) {
	w.t.Helper()
	w.seq++
	b := state.Batch{Session: w.session.ID, Incarnation: 1, Seq: idsBatch(w.seq)}
	for k := from; k < to; k++ {
		b.Ops = append(b.Ops, state.Op{Kind: state.OpExtend, Key: uid(k), Epoch: 1, Cur: 0, Step: idsSeq(step)})
	}
	rep := w.propose(b)
	for i, r := range rep.Results {
		if r.Refusal != state.OK {
			w.t.Fatalf("op %d: %v", i, r)
		}
	}
}

// sameState waits until the node has applied all that the leader had, and compares everything.
func sameState(t *testing.T, lead, n *Node, keys uint64) {
	t.Helper()
	want, applied, err := lead.fsm.meta()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the node catches up", func() bool { return n.fsm.appliedIndex() >= applied })
	got, _, err := n.fsm.meta()
	if err != nil {
		t.Fatal(err)
	}
	if string(state.EncodeMeta(nil, &got)) != string(state.EncodeMeta(nil, &want)) {
		t.Fatalf("meta state differs:\n%+v\n%+v", got, want)
	}
	for k := range keys {
		var a, b state.Record
		_ = lead.fsm.read(func(st *state.State) { a, _ = st.Keys.Get(uid(k)) })
		_ = n.fsm.read(func(st *state.State) { b, _ = st.Keys.Get(uid(k)) })
		if a != b {
			t.Fatalf("key %d: %+v here, %+v on the leader", k, b, a)
		}
	}
}

func TestARestartContinuesAtExactlyTheSameState(t *testing.T) {
	for name, orderly := range map[string]bool{"stopped in order": true, "crashed without a flush": false} {
		t.Run(name, func(t *testing.T) {
			g := newRealGroup(t, 1, nil)
			n := g.leader()
			w := newWriter(t, n)
			for i := range uint64(20) {
				w.extend(i*10, i*10+20, 100)
			}
			before, applied, err := n.fsm.meta()
			if err != nil {
				t.Fatal(err)
			}
			records := map[uint64]state.Record{}
			for k := range uint64(220) {
				_ = n.fsm.read(func(st *state.State) { records[k], _ = st.Keys.Get(uid(k)) })
			}
			if orderly {
				g.stop("n1")
				if rep, err := Verify(g.dirs["n1"]); err != nil || rep.Applied != applied || rep.Keys != 210 {
					t.Fatalf("%+v %v", rep, err)
				}
			} else {
				g.kill("n1")
			}
			n = g.mustStart("n1")
			if orderly && n.fsm.appliedIndex() != applied {
				t.Fatalf("the file is at %d, %d was applied", n.fsm.appliedIndex(), applied)
			}
			g.leader()
			after, _, err := n.fsm.meta()
			if err != nil {
				t.Fatal(err)
			}
			if string(state.EncodeMeta(nil, &before)) != string(state.EncodeMeta(nil, &after)) {
				t.Fatalf("meta state:\n%+v\n%+v", before, after)
			}
			for k, want := range records {
				var got state.Record
				_ = n.fsm.read(func(st *state.State) { got, _ = st.Keys.Get(uid(k)) })
				if got != want {
					t.Fatalf("key %d: %+v, was %+v", k, got, want)
				}
			}
			// A copy of an old batch is still known as such.
			w.n, w.seq = n, 3
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			rep, err := n.propose(ctx, state.Batch{Session: w.session.ID, Incarnation: 1, Seq: 3})
			if err != nil || rep.Refusal != state.RefusedOldBatch {
				t.Fatalf("%+v %v", rep, err)
			}
		})
	}
}

func TestAWipedFollowerRejoinsFromASnapshot(t *testing.T) {
	g := newRealGroup(t, 3, func(c *Config) {
		c.SnapshotThreshold, c.TrailingLogs, c.SnapshotInterval = 20, 5, 50*time.Millisecond
	})
	lead := g.leader()
	w := newWriter(t, lead)
	victim := g.follower().cfg.ID
	sameState(t, lead, g.nodes[victim], 0)
	g.kill(victim)
	for i := range uint64(60) {
		w.extend(i*10, i*10+20, 100)
	}
	eventually(t, 20*time.Second, "a snapshot that replaces the log", func() bool {
		first, err := lead.st.Log.FirstIndex()
		return err == nil && first > 30
	})
	if err := os.RemoveAll(g.dirs[victim]); err != nil {
		t.Fatal(err)
	}
	n := g.mustStart(victim)
	if n.st.Identity.Identity().Joined {
		t.Fatal("an empty directory is taken for one that has caught up")
	}
	sameState(t, lead, n, 620)
	list, err := n.st.Snapshots.List()
	if err != nil || len(list) == 0 {
		t.Fatalf("it did not come from a snapshot: %v %v", list, err)
	}
	eventually(t, 20*time.Second, "it takes part again", func() bool { return n.st.Identity.Identity().Joined })
	// It counts again: with one of the others gone, the group goes on.
	for id := range g.nodes {
		if id != victim && id != lead.cfg.ID {
			g.kill(id)
			break
		}
	}
	w.extend(5000, 5010, 100)
	sameState(t, lead, n, 10)
	g.stop(victim)
	if rep, err := Verify(g.dirs[victim]); err != nil || rep.Keys != 620 {
		t.Fatalf("%+v %v", rep, err)
	}
	n = g.mustStart(victim)
	sameState(t, g.leader(), n, 620)
}

func TestStoppingTheLeaderHandsLeadershipOn(t *testing.T) {
	g := newRealGroup(t, 3, nil)
	lead := g.leader()
	w := newWriter(t, lead)
	w.extend(0, 10, 100)
	start := time.Now()
	g.stop(lead.cfg.ID)
	next := g.leader()
	t.Logf("another store led %v after the stop began", time.Since(start))
	if _, term := next.Leading(); term == 0 {
		t.Fatal("no term")
	}
	g.mustStart(lead.cfg.ID)
	sameState(t, next, g.nodes[lead.cfg.ID], 10)
}

func TestOpenDiskRefusesWhatItMust(t *testing.T) {
	g := newRealGroup(t, 1, nil)
	g.leader()
	if _, err := g.start("n1"); !errors.As(err, new(*disk.InUseError)) {
		t.Fatalf("a second process: %v", err)
	}
	g.stop("n1")
	for name, c := range map[string]func(*Config){
		"cluster": func(c *Config) { c.Cluster = "other" },
		"set":     func(c *Config) { c.Set = "s9" },
		"id":      func(c *Config) { c.ID = "n9" },
		"cluster id": func(c *Config) {
			c.ClusterID = "other"
		},
	} {
		cfg := g.config("n1")
		c(&cfg)
		_, err := OpenDisk(g.dirs["n1"], cfg)
		if !errors.As(err, new(*disk.RefusedError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Snapshots are a part like the others.
	n := g.mustStart("n1")
	g.leader()
	newWriter(t, n).extend(0, 10, 10)
	g.tune = func(c *Config) { c.SnapshotThreshold, c.TrailingLogs, c.SnapshotInterval = 1, 1, 20*time.Millisecond }
	g.stop("n1")
	n = g.mustStart("n1")
	g.leader()
	eventually(t, 20*time.Second, "the log is shortened", func() bool { f, err := n.st.Log.FirstIndex(); return err == nil && f > 1 })
	g.stop("n1")
	if err := os.RemoveAll(filepath.Join(g.dirs["n1"], "snapshots")); err != nil {
		t.Fatal(err)
	}
	if _, err := g.start("n1"); !errors.As(err, new(*disk.MissingError)) {
		t.Fatalf("without snapshots: %v", err)
	}
}

func TestACrashBetweenReceivingAndRestoringASnapshotIsMended(t *testing.T) {
	g := newRealGroup(t, 1, nil)
	n := g.leader()
	w := newWriter(t, n)
	w.extend(0, 50, 100)
	if err := n.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	g.stop("n1")
	// An older state file beside a newer snapshot: as if the restore never happened.
	dir := g.dirs["n1"]
	if err := os.Remove(filepath.Join(dir, disk.StateFile)); err != nil {
		t.Fatal(err)
	}
	if err := disk.Create(dir); err != nil {
		t.Fatal(err)
	}
	n = g.mustStart("n1")
	g.leader()
	for k := range uint64(50) {
		var r state.Record
		_ = n.fsm.read(func(st *state.State) { r, _ = st.Keys.Get(uid(k)) })
		if r.Bound != 100 {
			t.Fatalf("key %d: %+v", k, r)
		}
	}
}

// failingStore is a log store that fails while err holds one. A node starts with
// it: nothing may put one under a running node, whose Raft can read its log at any time.
type failingStore struct {
	raft.LogStore
	err *atomic.Pointer[error]
}

func (f failingStore) StoreLogs(l []*raft.Log) error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return f.LogStore.StoreLogs(l)
}

func TestALeaderWhoseDiskFailsStepsDownAndSaysSo(t *testing.T) {
	disks := map[string]*atomic.Pointer[error]{}
	for i := range 3 {
		disks[nodeID(i)] = &atomic.Pointer[error]{}
	}
	g := newRealGroupOn(t, 3, nil, func(id string, on raft.LogStore) raft.LogStore { return failingStore{on, disks[id]} })
	lead := g.leader()
	newWriter(t, lead).extend(0, 10, 10)
	broken := errors.New("input/output error")
	disks[lead.cfg.ID].Store(&broken)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := lead.propose(ctx, state.SetDraining{Node: "x"})
	if err == nil {
		t.Fatal("acknowledged without a disk")
	}
	select {
	case err := <-lead.Failed():
		if !errors.Is(err, broken) {
			t.Fatalf("failed with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it does not say that it failed")
	}
	if err := lead.Ready(); err == nil {
		t.Fatal("it is still ready")
	}
	failed := lead.cfg.ID
	lead.Kill()
	delete(g.nodes, failed)
	next := g.leader()
	disks[failed].Store(nil)
	g.mustStart(failed)
	sameState(t, next, g.nodes[failed], 10)
}

func TestAnEntryThatCannotBeDecodedFailsTheNode(t *testing.T) {
	g := newRealGroup(t, 1, nil)
	n := g.leader()
	if err := n.raft.Apply([]byte("not a command"), time.Second).Error(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-n.Failed():
		if !strings.Contains(err.Error(), "log entry") {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the entry was skipped")
	}
	if _, err := n.Status(t.Context(), nil); err == nil {
		t.Fatal("a failed node answers")
	}
	g.kill("n1")
	// It fails again rather than skip the entry.
	n = g.mustStart("n1")
	select {
	case <-n.Failed():
	case <-time.After(10 * time.Second):
		t.Fatal("the entry was skipped after the restart")
	}
}

func TestADamagedLogEntryIsNoticedAtTheStart(t *testing.T) {
	g := newRealGroup(t, 1, nil)
	n := g.leader()
	w := newWriter(t, n)
	w.propose(state.SetDraining{Node: "marker-marker-marker", Draining: true})
	g.kill("n1")
	path := filepath.Join(g.dirs["n1"], disk.RaftFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(b), "marker-marker-marker")
	if at < 0 {
		t.Fatal("not found")
	}
	b[at] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := g.start("n1"); !errors.As(err, new(*disk.CorruptError)) {
		t.Fatalf("started: %v", err)
	}
}

func listenFree(b testing.TB) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
