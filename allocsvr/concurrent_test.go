package allocsvr

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// real starts servers in real time, in real memory.
func real(t testing.TB, cfg storetest.Config, names ...string) (*storetest.Store, []*node) {
	t.Helper()
	store := storetest.New(cfg)
	t.Cleanup(store.Close)
	var nodes []*node
	for _, name := range names {
		n := &node{name: name, net: &storetest.Net{}, memory: arena.NewHeap(name, 0)}
		s, err := Start(Config{
			Node: name, Cluster: "test", Addr: name + ":1", Stores: []string{"store-1"}, Dial: store.Dial(n.net),
			Region: n.memory, BootID: "boot", Steps: raise.Fixed(1000), ArenaMaxBytes: 1 << 30,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Kill)
		n.Server = s
		nodes = append(nodes, n)
		for s.Ready() != nil {
			time.Sleep(time.Millisecond)
		}
	}
	return store, nodes
}

func TestEachKeyIsContiguousUnderConcurrentCallersAndMoves(t *testing.T) {
	store, nodes := real(t, storetest.Config{}, "a1", "b1")
	store.Assign("a1")
	time.Sleep(10 * time.Millisecond)
	const callers, keys, rounds = 8, 50, 300
	type run struct{ first, n ids.Seq }
	got := make([][keys][]run, callers)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			at := 0
			for i := range rounds {
				req := &seqpb.AllocRequest{Space: "uid"}
				for k := range uint64(keys) {
					req.Uids = append(req.Uids, k*100)
					req.Counts = append(req.Counts, uint32(1+(i+int(k))%7))
				}
				for len(req.Uids) > 0 {
					rep, err := nodes[at].Alloc(context.Background(), req)
					if err != nil {
						t.Errorf("%v", err)
						return
					}
					if len(rep.Discontinuities) > 0 {
						t.Errorf("holes in planned moves: %v", rep.Discontinuities[0])
					}
					again := &seqpb.AllocRequest{Space: "uid"}
					for j, first := range rep.First {
						if first == 0 {
							again.Uids = append(again.Uids, req.Uids[j])
							again.Counts = append(again.Counts, req.Counts[j])
							continue
						}
						k := req.Uids[j] / 100
						got[c][k] = append(got[c][k], run{ids.Seq(first), ids.Seq(req.Counts[j])})
					}
					for _, f := range rep.Failures {
						if f.Code != seqpb.Code_CODE_NOT_OWNER {
							t.Errorf("%+v", f)
						}
					}
					req, at = again, 1-at
				}
			}
		})
	}
	stop := make(chan struct{})
	var mover sync.WaitGroup
	mover.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				sec := ids.Section(i % 8)
				if owner, _ := store.Owner(sec); owner == "a1" {
					store.Move("b1", sec)
				} else if owner == "b1" {
					store.Move("a1", sec)
				}
			}
		}
	})
	wg.Wait()
	close(stop)
	mover.Wait()
	for k := range keys {
		var all []run
		for c := range callers {
			for i, r := range got[c][k] {
				if i > 0 && r.first <= got[c][k][i-1].first {
					t.Fatalf("key %d: a caller got %d after %d", k, r.first, got[c][k][i-1].first)
				}
			}
			all = append(all, got[c][k]...)
		}
		slices.SortFunc(all, func(a, b run) int { return int(a.first) - int(b.first) })
		next := ids.Seq(1)
		for _, r := range all {
			if r.first != next {
				t.Fatalf("key %d: %d follows %d", k, r.first, next-1)
			}
			next += r.n
		}
	}
	if err := store.Check(); err != nil {
		t.Error(err)
	}
}

// fill touches keys keys of each of the sections.
func fill(t testing.TB, n *node, sections, keys int) {
	t.Helper()
	var uids []uint64
	flush := func() {
		rep, err := n.Alloc(context.Background(), &seqpb.AllocRequest{Space: "uid", Uids: uids})
		if err != nil || len(rep.Failures) > 0 {
			t.Fatal(err, rep)
		}
		uids = uids[:0]
	}
	for s := range uint64(sections) {
		for k := range uint64(keys) {
			// A section has every sections-th block of 256.
			uids = append(uids, (k/256*uint64(sections)+s)<<8+k%256)
			if len(uids) == DefaultMaxBatchKeys {
				flush()
			}
		}
	}
	if len(uids) > 0 {
		flush()
	}
}

// SEQSVR_MOVE_SECTIONS and SEQSVR_MOVE_KEYS (per section) make it larger.
func TestMovingManySectionsIsBulkWorkAndEachIsFrozenShortly(t *testing.T) {
	size := func(name string, d int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return d
	}
	sections, keys := size("SEQSVR_MOVE_SECTIONS", 100), size("SEQSVR_MOVE_KEYS", 100)
	store, nodes := real(t, storetest.Config{Sections: uint32(sections)}, "a1", "b1")
	a, b := nodes[0], nodes[1]
	store.Assign("a1")
	time.Sleep(20 * time.Millisecond)
	fill(t, a, sections, keys)
	before := len(store.Executed())
	var all []ids.Section
	for i := range sections {
		all = append(all, ids.Section(i))
	}
	start := time.Now()
	// One caller goes round and sees how long each section has no owner who serves.
	frozen := make(chan time.Duration, 1)
	stop := make(chan struct{})
	go func() {
		var worst time.Duration
		for i := 0; ; i++ {
			select {
			case <-stop:
				frozen <- worst
				return
			default:
			}
			key, began := uid(uint64(i%sections)<<8), time.Now()
			for n := 0; ; n++ {
				if _, err := nodes[n%2].AllocOne(context.Background(), key, 1, nil); err == nil {
					break
				}
				time.Sleep(100 * time.Microsecond)
			}
			worst = max(worst, time.Since(began))
		}
	}()
	store.Move("b1", all...)
	for a.Stats().Keys > 0 || a.Stats().Closing > 0 || b.Stats().Serving < sections {
		time.Sleep(time.Millisecond)
		if time.Since(start) > time.Minute {
			t.Fatalf("not done: %+v", a.Stats())
		}
	}
	took := time.Since(start)
	close(stop)
	t.Logf("%d sections × %d keys: %v, worst wait %v, %d batches", sections, keys, took, <-frozen, len(store.Executed())-before)
	if n := len(store.Executed()) - before; n > sections*keys/1000+3*sections {
		t.Errorf("%d batches", n)
	}
}

func BenchmarkAllocOneWarm(b *testing.B) {
	_, nodes := real(b, storetest.Config{Auto: true}, "a1")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		k, i := ids.Key{Space: 1}, uint64(0)
		for pb.Next() {
			i++
			k.Hi = i % 1000
			if _, err := nodes[0].AllocOne(context.Background(), k, 1, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAllocBatch1000Warm(b *testing.B) {
	_, nodes := real(b, storetest.Config{Auto: true}, "a1")
	req := &seqpb.AllocRequest{Space: "uid"}
	for i := range uint64(1000) {
		req.Uids = append(req.Uids, i*7)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if rep, err := nodes[0].Alloc(context.Background(), req); err != nil || len(rep.Failures) > 0 {
				b.Fatal(err)
			}
		}
	})
}
