package storesvr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// realm is several Sets that reach each other; s1 has the directory.
type realm struct {
	t  *testing.T
	mu sync.Mutex
	of map[string]*group
	// down Sets are not reachable by the others.
	down map[string]bool
	// partState, if set, changes what Sets answer each other of themselves.
	partState func(*seqpb.PartStateReply) error
	// atStep of every node.
	atStep func(step string)
	tune   func(*Config)
}

func realmAddr(set, id string) string { return set + "-" + rpcAddr(id) }

func (w *realm) stores(set string) (out []string) {
	for i := range w.of[set].n {
		out = append(out, realmAddr(set, nodeID(i)))
	}
	return out
}

// simulateSets plays with Sets of so many nodes each.
func simulateSets(t *testing.T, nodes map[string]int, tune func(*Config), play func(t *testing.T, w *realm)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &realm{t: t, of: map[string]*group{}, down: map[string]bool{}, tune: tune}
		for set, n := range nodes {
			w.of[set] = emptyGroup(t, n, func(c *Config) { w.configure(set, c) })
		}
		defer time.Sleep(30 * time.Second)
		for _, set := range sortedKeys(w.of) {
			g := w.of[set]
			g.startAll()
			defer g.stop()
			g.leader()
			if set == "s1" {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			rep, err := w.of["s1"].leader().SetCreate(ctx, &seqpb.SetCreateRequest{Name: set, Stores: w.stores(set)})
			cancel()
			if err != nil || rep.Refusal != nil {
				t.Fatalf("create %s: %v %v", set, rep, err)
			}
		}
		play(t, w)
	})
}

func (w *realm) configure(set string, c *Config) {
	c.Set, c.RPCAddr = set, realmAddr(set, c.ID)
	for i := range c.Peers {
		c.Peers[i].RPCAddr = realmAddr(set, c.Peers[i].ID)
	}
	if set != "s1" {
		c.Directory = w.stores("s1")
	}
	c.PartKeys = 16
	c.DialAdmin = func(addr string) (AdminConn, error) {
		n, err := w.node(addr)
		return directAdmin{n}, err
	}
	c.DialSets = func(addr string) (SetsConn, error) { return reach{w, set, addr}, nil }
	c.DialSetAdmin = func(addr string) (SetAdminConn, error) {
		n, err := w.node(addr)
		return ownSet{n}, err
	}
	c.atStep = func(step string) {
		w.mu.Lock()
		f := w.atStep
		w.mu.Unlock()
		if f != nil {
			f(step)
		}
	}
	if w.tune != nil {
		w.tune(c)
	}
}

func (w *realm) node(addr string) (*Node, error) {
	set, rest, _ := strings.Cut(addr, "-")
	w.mu.Lock()
	g, down := w.of[set], w.down[set]
	w.mu.Unlock()
	if g != nil && !down {
		g.mu.Lock()
		defer g.mu.Unlock()
		for id, n := range g.nodes {
			if rpcAddr(id) == rest {
				return n, nil
			}
		}
	}
	return nil, fmt.Errorf("nobody listens at %s", addr)
}

// reach looks at each call who listens at an address.
type reach struct {
	w          *realm
	from, addr string
}

func (r reach) to() (*Node, error) {
	r.w.mu.Lock()
	down := r.w.down[r.from]
	r.w.mu.Unlock()
	if down {
		return nil, errors.New("no way out")
	}
	return r.w.node(r.addr)
}

func (reach) Close() error { return nil }
func (r reach) Directory(ctx context.Context, q *seqpb.DirectoryRequest) (*seqpb.DirectoryReply, error) {
	n, err := r.to()
	if err != nil {
		return nil, err
	}
	return n.Directory(ctx, q)
}
func (r reach) Command(ctx context.Context, q *seqpb.SetCommandRequest) (*seqpb.SetCommandReply, error) {
	n, err := r.to()
	if err != nil {
		return nil, err
	}
	return n.Command(ctx, q)
}
func (r reach) Export(ctx context.Context, q *seqpb.ExportRequest) (*seqpb.ExportReply, error) {
	n, err := r.to()
	if err != nil {
		return nil, err
	}
	return n.Export(ctx, q)
}
func (r reach) PartState(ctx context.Context, q *seqpb.PartStateRequest) (*seqpb.PartStateReply, error) {
	n, err := r.to()
	if err != nil {
		return nil, err
	}
	rep, err := n.PartState(ctx, q)
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if rep != nil && r.w.partState != nil {
		if lost := r.w.partState(rep); lost != nil {
			return nil, lost
		}
	}
	return rep, err
}
func (r reach) Verdict(ctx context.Context, q *seqpb.VerdictRequest) (*seqpb.VerdictReply, error) {
	n, err := r.to()
	if err != nil {
		return nil, err
	}
	return n.Verdict(ctx, q)
}

// owner attaches an AllocSvr to a Set.
func (w *realm) owner(set string) *alloc {
	w.t.Helper()
	a := attach(w.t, w.of[set].leader, hello(set+"-a"))
	eventually(w.t, 10*time.Second, "all sections", func() bool { return a.owned() == 16 })
	return a
}

// back makes sure that the owner has a session with the Set's present leader.
func (a *alloc) back(t *testing.T) {
	t.Helper()
	for range 100 {
		select {
		case <-a.done:
		default:
			return
		}
		h := hello(a.node)
		h.ResumeSession, h.ResumeIncarnation, h.ClusterId = a.welcome.Session, a.welcome.Incarnation, a.welcome.ClusterId
		a.open(h)
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("%s finds no leader", a.node)
}

func (w *realm) move(from, to string, r ...*seqpb.Range) uint64 {
	w.t.Helper()
	rep, err := w.of["s1"].leader().SetMove(w.t.Context(), &seqpb.SetMoveRequest{From: from, To: to, Ranges: r})
	if err != nil || rep.Refusal != nil {
		w.t.Fatalf("move: %v %v", rep, err)
	}
	return rep.Move.Id
}

func (w *realm) status(id uint64) *seqpb.MoveStatus {
	w.t.Helper()
	for range 1000 {
		rep, err := w.of["s1"].leader().SetMoves(w.t.Context(), &seqpb.SetMovesRequest{Id: id})
		if err == nil && rep.Refusal == nil {
			return rep.Moves[0]
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.t.Fatal("nobody knows the move")
	return nil
}

func (w *realm) await(id uint64, within time.Duration, want string) *seqpb.MoveStatus {
	w.t.Helper()
	eventually(w.t, within, fmt.Sprintf("move %d %s: %v", id, want, w.status(id)), func() bool { return w.status(id).State == want })
	return w.status(id)
}

// owning are the Sets that own a key, by their own word.
func (w *realm) owning(k ids.Key) (out []string) {
	for _, set := range sortedKeys(w.of) {
		n := w.of[set].leader()
		_ = n.fsm.read(func(st *state.State) {
			if st.Owns(k) {
				out = append(out, set)
			}
		})
	}
	return out
}

func uids(lo, last uint64) *seqpb.Range { return &seqpb.Range{Space: 1, Lo: lo, Last: last} }

// fill has the owner issue numbers 1 to 57 of keys that lie 10 apart.
func (a *alloc) fill(keys int) {
	for i := range keys {
		k := uid(uint64(i) * 10)
		a.extend(k, 100)
		a.mu.Lock()
		a.holds[k] = 57
		a.mu.Unlock()
	}
}

// goesOn: the owner gets the next number of each key, and no hole.
func (a *alloc) goesOn(keys int, last ids.Seq) {
	a.t.Helper()
	for i := range keys {
		if r := a.extend(uid(uint64(i)*10), 100); r.Refusal != state.OK || r.Floor != last || r.HoleTo != 0 {
			a.t.Fatalf("%s, key %d after %d: %+v", a.node, i*10, last, r)
		}
	}
}

func TestHeldKeysAreCalledInAheadOfTheirPart(t *testing.T) {
	for _, early := range []bool{true, false} {
		simulateSets(t, map[string]int{"s1": 3, "s2": 1}, nil, func(t *testing.T, w *realm) {
			a, b := w.owner("s1"), w.owner("s2")
			defer b.crash()
			a.mu.Lock()
			a.early = early
			a.mu.Unlock()
			const keys = 200
			a.fill(keys)
			w.await(w.move("s1", "s2", uids(0, keys*10)), time.Minute, "done")
			b.goesOn(keys, 57)
			a.crash()
			if a.returned[0]+a.returned[1] != keys {
				t.Errorf("%v keys were handed back, early and frozen, of %d", a.returned, keys)
			}
			// Of the first two parts nothing is known before.
			if ahead := a.returned[0] >= keys-2*16; ahead != early {
				t.Errorf("%v keys were handed back, early and frozen, by an owner that does so early: %v", a.returned, early)
			}
		})
	}
}

func TestARangeMovesThereAndBackAndLosesNothing(t *testing.T) {
	simulateSets(t, map[string]int{"s1": 3, "s2": 3}, nil, func(t *testing.T, w *realm) {
		a, b := w.owner("s1"), w.owner("s2")
		defer a.crash()
		defer b.crash()
		const keys = 100
		a.fill(keys)
		if got := w.owning(uid(0)); len(got) != 1 || got[0] != "s1" {
			t.Fatalf("owned by %v", got)
		}
		m := w.await(w.move("s1", "s2", uids(0, 799)), time.Minute, "done")
		if m.Keys != 80 || m.Parts < 5 || m.Reason != "" || m.KeysTotal != 80 || m.Checksum == "" {
			t.Errorf("%+v", m)
		}
		for i := range uint64(keys) {
			want := "s2"
			if i >= 80 {
				want = "s1"
			}
			if got := w.owning(uid(i * 10)); len(got) != 1 || got[0] != want {
				t.Fatalf("key %d owned by %v", i*10, got)
			}
		}
		b.goesOn(80, 57)
		if r := a.extend(uid(0), 100); r.Refusal != state.RefusedRange {
			t.Errorf("the source still raises: %+v", r)
		}
		for _, set := range []string{"s1", "s2"} {
			rep, err := w.of[set].leader().Read(t.Context(), &seqpb.ReadRequest{ClusterId: a.welcome.ClusterId, Keys: []*seqpb.KeyRef{{Space: 1, Hi: 10}, {Space: 1, Hi: 900}}})
			if err != nil || len(rep.Elsewhere) != 1 || rep.Elsewhere[0] != map[string]uint32{"s1": 0, "s2": 1}[set] {
				t.Errorf("%s reads %v, %v", set, rep, err)
			}
		}
		for k := range b.holds {
			b.holds[k] = 63
		}
		// Everything that s2 has: as an operator empties a Set.
		w.await(w.move("s2", "s1"), time.Minute, "done")
		a.goesOn(80, 63)
		if rep, err := w.of["s1"].leader().SetRetire(t.Context(), &seqpb.SetRetireRequest{Name: "s2"}); err != nil || rep.Refusal != nil {
			t.Errorf("an empty set cannot be retired: %v %v", rep, err)
		}
	})
}
