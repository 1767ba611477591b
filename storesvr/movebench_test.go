package storesvr

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// BenchmarkMove moves idle keys between two Sets of three nodes each with real
// files, all in this process; the calls between the Sets do not go over a network.
func BenchmarkMove(b *testing.B) {
	const keys = 200_000
	t := &testing.T{}
	of := map[string]*realGroup{}
	find := func(addr string) *Node {
		set, rest, _ := strings.Cut(addr, "-")
		for id, n := range of[set].nodes {
			if rpcAddr(id) == rest {
				return n
			}
		}
		return nil
	}
	addrs := func(set string) (out []string) {
		for i := range 3 {
			out = append(out, realmAddr(set, nodeID(i)))
		}
		return out
	}
	for _, set := range []string{"s1", "s2"} {
		g := &realGroup{t: t, dirs: map[string]string{}, nodes: map[string]*Node{}, tune: func(c *Config) {
			c.RaftTimeout, c.Set, c.RPCAddr = time.Second, set, realmAddr(set, c.ID)
			if set != "s1" {
				c.Directory = addrs("s1")
			}
			c.DialSets = func(addr string) (SetsConn, error) {
				if n := find(addr); n != nil {
					return ownSet{n}, nil
				}
				return nil, errors.New("nobody listens")
			}
			c.DialAdmin = func(addr string) (AdminConn, error) { return directAdmin{find(addr)}, nil }
		}}
		of[set] = g
		for i := range 3 {
			g.peers = append(g.peers, state.StoreNode{ID: nodeID(i), RaftAddr: listenFree(b), RPCAddr: realmAddr(set, nodeID(i))})
			g.dirs[nodeID(i)] = b.TempDir()
		}
		for _, p := range g.peers {
			n, err := g.start(p.ID)
			if err != nil {
				b.Fatal(err)
			}
			g.nodes[p.ID] = n
			defer n.Kill()
		}
		g.leader()
	}
	n := of["s1"].leader()
	if rep, err := n.SetCreate(b.Context(), &seqpb.SetCreateRequest{Name: "s2", Stores: addrs("s2")}); err != nil || rep.Refusal != nil {
		b.Fatal(rep, err)
	}
	w := &writer{t: t, n: n}
	w.session = w.propose(state.Register{Node: "w", Addr: "w:1"}).Session
	var as []state.Assignment
	for i := range 16 {
		as = append(as, state.Assignment{Section: idsSection(i), To: w.session.ID})
	}
	w.propose(state.Assign{Assignments: as})
	for at := uint64(0); at < keys; at += 2000 {
		w.seq++
		batch := state.Batch{Session: w.session.ID, Incarnation: 1, Seq: idsBatch(w.seq)}
		for k := at; k < at+2000; k++ {
			key := ids.Key{Space: 1, Hi: k}
			batch.Ops = append(batch.Ops,
				state.Op{Kind: state.OpExtend, Key: key, Epoch: 1, Step: 10000},
				state.Op{Kind: state.OpReturn, Key: key, Epoch: 1, Cur: ids.Seq(k%1000 + 1)})
		}
		if _, err := n.propose(context.Background(), batch); err != nil {
			b.Fatal(err)
		}
	}
	w.propose(state.Expire{Session: w.session.ID, Incarnation: 1})
	time.Sleep(3 * time.Second) // settling, flushing
	from, to := "s1", "s2"
	var last *seqpb.MoveStatus
	b.ResetTimer()
	for range b.N {
		rep, err := n.SetMove(b.Context(), &seqpb.SetMoveRequest{From: from, To: to, Ranges: []*seqpb.Range{uids(0, keys-1)}})
		if err != nil || rep.Refusal != nil {
			b.Fatal(rep, err)
		}
		for {
			changed := n.changed.wait()
			moves, err := n.moveStatuses(0)
			if err != nil {
				b.Fatal(err)
			}
			if last = moves[len(moves)-1]; last.State == "done" {
				break
			}
			<-changed
		}
		if last.Keys != keys {
			b.Fatal(last)
		}
		from, to = to, from
	}
	b.ReportMetric(float64(b.N)*keys/b.Elapsed().Seconds(), "keys/s")
	b.ReportMetric(last.FrozenP99Ms, "frozen-p99-ms")
	b.ReportMetric(last.FrozenMaxMs, "frozen-max-ms")
}
