package allocsvr

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/clock"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// rig is a store and its AllocSvrs in a bubble. Nodes that a test does not stop are killed at its end.
type rig struct {
	t     *testing.T
	store *storetest.Store
	peers *storetest.Peers
	nodes map[string]*node
}

// node is a machine with at most one AllocSvr process.
type node struct {
	*Server
	name   string
	net    *storetest.Net
	memory *arena.Heap
	cfg    Config
	// closing ends its subscriptions.
	closing []context.CancelFunc
}

func inRig(t *testing.T, cfg storetest.Config, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, store: storetest.New(cfg), peers: &storetest.Peers{}, nodes: map[string]*node{}}
		defer r.store.Close()
		defer func() {
			for _, n := range r.nodes {
				n.Kill()
				for _, end := range n.closing {
					end()
				}
			}
			if err := r.store.Check(); err != nil {
				t.Errorf("state after the test: %v", err)
			}
		}()
		f(r)
	})
}

// boot starts a node's process. A node that ran before keeps its memory.
func (r *rig) boot(name string, change ...func(*Config)) *node {
	r.t.Helper()
	n := r.nodes[name]
	if n == nil {
		n = &node{name: name, net: &storetest.Net{}, memory: arena.NewHeap(name, 0)}
		n.net.SetDelay(time.Millisecond)
		r.nodes[name] = n
	}
	n.cfg = Config{
		Node: name, Cluster: "test", Addr: name + ":1", Stores: []string{"store-1", "store-2"}, Dial: r.store.Dial(n.net),
		DialPeer: r.peers.Dial, Region: n.memory, BootID: "boot", Steps: raise.Fixed(100), Clock: clock.Go(),
		Jitter: func(d time.Duration) time.Duration { return d },
	}
	for _, c := range change {
		c(&n.cfg)
	}
	s, err := Start(n.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	n.Server = s
	r.peers.Listen(n.cfg.Addr, s)
	time.Sleep(20 * time.Millisecond)
	return n
}

// settle lets what is under way finish.
func settle() { time.Sleep(50 * time.Millisecond) }

func uid(u uint64) ids.Key { return ids.Key{Space: 1, Hi: u} }

func (n *node) take(t *testing.T, k ids.Key, count uint32) Result {
	t.Helper()
	r, err := n.AllocOne(context.Background(), k, count, nil)
	if err != nil {
		t.Fatalf("%s: %d of %v: %v", n.name, count, k, err)
	}
	return r
}

func (n *node) wantNext(t *testing.T, k ids.Key, want ids.Seq) {
	t.Helper()
	if r := n.take(t, k, 1); r.First != want || r.HoleTo != 0 {
		t.Fatalf("%s: key %v: got %+v, want first %d and no hole", n.name, k, r, want)
	}
}

func (n *node) wantFailure(t *testing.T, k ids.Key, code seqpb.Code) *Failure {
	t.Helper()
	r, err := n.AllocOne(context.Background(), k, 1, nil)
	f := failureOf(err)
	if f.Code != code {
		t.Fatalf("%s: key %v: got %+v, %v; want %v", n.name, k, r, err, code)
	}
	return f
}

// failureOf is the Failure in err; without one, an empty one.
func failureOf(err error) *Failure {
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	return &Failure{}
}

func (n *node) wantCurrent(t *testing.T, k ids.Key, want ids.Seq) {
	t.Helper()
	if got, err := n.CurrentOne(context.Background(), k); err != nil || got != want {
		t.Fatalf("%s: current of %v is %d, %v; want %d", n.name, k, got, err, want)
	}
}
