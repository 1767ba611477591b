package storesvr

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// BenchmarkExtend raises random keys out of ten million on three nodes with real
// files over loopback: callers batches at a time, each of 1000 keys.
func BenchmarkExtend(b *testing.B) {
	for _, callers := range []int{1, 8} {
		b.Run(map[int]string{1: "one-caller", 8: "eight-callers"}[callers], func(b *testing.B) {
			t := &testing.T{}
			g := &realGroup{t: t, tune: func(c *Config) { c.RaftTimeout = time.Second }, dirs: map[string]string{}, nodes: map[string]*Node{}}
			for i := range 3 {
				l := listenFree(b)
				g.peers = append(g.peers, state.StoreNode{ID: nodeID(i), RaftAddr: l, RPCAddr: rpcAddr(nodeID(i))})
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
			n := g.leader()
			var sessions []*writer
			for range callers {
				w := &writer{t: t, n: n}
				w.session = w.propose(state.Register{Node: "w", Addr: "w:1"}).Session
				sessions = append(sessions, w)
			}
			var as []state.Assignment
			for i := range 16 {
				as = append(as, state.Assignment{Section: idsSection(i), To: sessions[i%callers].session.ID})
			}
			sessions[0].propose(state.Assign{Assignments: as})
			const keys = 1000
			b.ResetTimer()
			var wg sync.WaitGroup
			for c, w := range sessions {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(c), 1))
					for range (b.N + callers - 1) / callers {
						w.seq++
						batch := state.Batch{Session: w.session.ID, Incarnation: 1, Seq: idsBatch(w.seq)}
						for range keys {
							block := r.Uint64N(10_000_000/256/16)*16 + uint64(c)
							batch.Ops = append(batch.Ops, state.Op{Kind: state.OpExtend, Key: ids.Key{Space: 1, Hi: block<<8 | r.Uint64N(256)}, Epoch: 1, Step: 10000})
						}
						if _, err := n.propose(context.Background(), batch); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)*keys/b.Elapsed().Seconds(), "keys/s")
		})
	}
}
