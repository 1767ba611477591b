package allocsvr

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudwego/kitex/pkg/streaming"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
)

func TestAWrongRequestIsRefusedWholeAndIssuesNothing(t *testing.T) {
	id := rid(1)[:]
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1", func(c *Config) { c.MaxBatchKeys = 3; c.MaxN = 50 })
		for name, req := range map[string]*seqpb.AllocRequest{
			"no keys":                {Space: "uid"},
			"unknown space":          {Space: "nope", Uids: []uint64{1}},
			"names among uids":       {Space: "uid", Names: []string{"x"}},
			"uids among names":       {Space: "conv", Uids: []uint64{1}},
			"both":                   {Space: "uid", Uids: []uint64{1}, Names: []string{"x"}},
			"uid out of range":       {Space: "uid", Uids: []uint64{1, 1 << 32}},
			"empty name":             {Space: "conv", Names: []string{"x", ""}},
			"over-long name":         {Space: "conv", Names: []string{strings.Repeat("x", 129)}},
			"name that is not UTF-8": {Space: "conv", Names: []string{"\xff"}},
			"too many keys":          {Space: "uid", Uids: []uint64{1, 2, 3, 4}},
			"count 0":                {Space: "uid", Uids: []uint64{1, 2}, Counts: []uint32{1, 0}},
			"count over the limit":   {Space: "uid", Uids: []uint64{1}, Counts: []uint32{51}},
			"too few counts":         {Space: "uid", Uids: []uint64{1, 2}, Counts: []uint32{1}},
			"too few request ids":    {Space: "uid", Uids: []uint64{1, 2}, RequestIds: [][]byte{id}},
			"short request id":       {Space: "uid", Uids: []uint64{1}, RequestIds: [][]byte{id[:15]}},
			"zero request id":        {Space: "uid", Uids: []uint64{1, 2}, RequestIds: [][]byte{id, make([]byte, 16)}},
		} {
			rep, err := a.Alloc(context.Background(), req)
			if rep != nil || wire.CodeOf(err) != seqpb.Code_CODE_INVALID_ARGUMENT {
				t.Errorf("%s: %+v, %v", name, rep, err)
			}
		}
		a.wantCurrent(t, uid(1), 0)
		a.wantNext(t, uid(1<<32-1), 1)
	})
}

func TestOneKeyThatFailsLeavesTheOthersAlone(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		r.store.Move("b1", 1)
		settle()
		rep, err := a.Alloc(context.Background(), &seqpb.AllocRequest{Space: "uid", Uids: []uint64{1, 257, 2}})
		if err != nil || rep.First[0] != 1 || rep.First[1] != 0 || rep.First[2] != 1 || len(rep.Failures) != 1 {
			t.Fatalf("%+v, %v", rep, err)
		}
		if f := rep.Failures[0]; f.Index != 1 || f.Code != seqpb.Code_CODE_NOT_OWNER || f.OwnerAddr != "b1:1" || f.Epoch != 2 {
			t.Errorf("failure %+v", f)
		}
		cur, err := a.Current(context.Background(), &seqpb.CurrentRequest{Space: "uid", Uids: []uint64{1, 257, 3}})
		if err != nil || cur.Current[0] != 1 || cur.Current[2] != 0 || len(cur.Failures) != 1 || cur.Failures[0].OwnerAddr != "b1:1" {
			t.Errorf("%+v, %v", cur, err)
		}
	})
}

func TestACallerThatIsBehindGetsTheRoutesItLacks(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b := two(r)
		pb, err := a.GetRoutes(context.Background(), &seqpb.RoutesRequest{Cluster: "test"})
		if err != nil {
			t.Fatal(err)
		}
		d, err := wire.ParseRoutes(pb)
		if err != nil {
			t.Fatal(err)
		}
		table, err := router.FromDelta(d)
		if err != nil {
			t.Fatal(err)
		}
		ask := &seqpb.AllocRequest{Space: "uid", Uids: []uint64{1}, MapVersion: pb.MapVersion, SetVersion: pb.Sets[0].Version}
		rep, err := a.Alloc(context.Background(), ask)
		if err != nil || rep.Routes != nil {
			t.Fatalf("up to date, and got %+v, %v", rep, err)
		}
		r.store.Move("b1", 1)
		settle()
		if rep, err = a.Alloc(context.Background(), ask); err != nil || rep.Routes == nil || rep.SetVersion <= ask.SetVersion {
			t.Fatalf("behind, and got %+v, %v", rep, err)
		}
		if d, err = wire.ParseRoutes(rep.Routes); err != nil {
			t.Fatal(err)
		}
		if table, err = table.Merge(d); err != nil {
			t.Fatal(err)
		}
		route, err := table.Lookup(uid(257))
		if err != nil || route.Owner.ID != "b1" {
			t.Errorf("after the delta: %+v, %v", route, err)
		}
		if rep, _ = b.Alloc(context.Background(), &seqpb.AllocRequest{Space: "uid", Uids: []uint64{257}}); rep.Routes != nil {
			t.Error("a caller that keeps no routes was sent some")
		}
		if _, err := a.GetRoutes(context.Background(), &seqpb.RoutesRequest{Cluster: "other"}); wire.CodeOf(err) != seqpb.Code_CODE_INVALID_ARGUMENT {
			t.Errorf("routes of another cluster: %v", err)
		}
	})
}

// Two Sets must never serve one key, whatever sections they own.
func TestAKeyOfAnotherSetIsNotServedThoughItsSectionIsOurs(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1")
		a.wantNext(t, uid(5000), 1)
		pb, err := a.GetRoutes(context.Background(), &seqpb.RoutesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		pb.MapVersion++
		pb.Sets[0].Ranges = []*seqpb.Range{{Space: 1, Last: 999}, {Space: 2, Last: 1<<64 - 1}}
		pb.Sets = append(pb.Sets, &seqpb.SetRoutes{
			Name: "s2", Version: 1, Sections: 1, Ranges: []*seqpb.Range{{Space: 1, Lo: 1000, Last: 1<<32 - 1}},
			Owner: []uint64{9}, Epoch: []uint64{4}, Nodes: []*seqpb.AllocNode{{Session: 9, Id: "z1", Addr: "z1:1"}},
		})
		if err := (handler{a.Server}).Routed(pb); err != nil {
			t.Fatal(err)
		}
		a.wantNext(t, uid(999), 1)
		if f := a.wantFailure(t, uid(5000), seqpb.Code_CODE_NOT_OWNER); f.Owner != "z1:1" || f.Epoch != 4 {
			t.Errorf("hint %+v", f)
		}
		if _, err := a.CurrentOne(context.Background(), uid(5000)); wire.CodeOf(err) != seqpb.Code_CODE_NOT_OWNER {
			t.Errorf("read: %v", err)
		}
	})
}

// watcher is a WatchRoutes stream whose consumer takes when it is told to.
type watcher struct {
	streaming.Stream
	ctx  context.Context
	sent chan *seqpb.RouteTable
}

func (w *watcher) Context() context.Context { return w.ctx }
func (w *watcher) Send(t *seqpb.RouteTable) error {
	select {
	case w.sent <- t:
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

func TestASlowWatcherGetsTheNewestAndHoldsNobodyUp(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		ctx, cancel := context.WithCancel(context.Background())
		w := &watcher{ctx: ctx, sent: make(chan *seqpb.RouteTable)}
		done := make(chan error)
		go func() { done <- a.WatchRoutes(&seqpb.RoutesRequest{}, w) }()
		d, err := wire.ParseRoutes(<-w.sent)
		if err != nil {
			t.Fatal(err)
		}
		table, err := router.FromDelta(d)
		if err != nil {
			t.Fatal(err)
		}
		for _, sec := range allSections {
			r.store.Move("b1", sec)
			settle()
		}
		for n := 0; table.Sets[0].Version < a.Routes().Load().Sets[0].Version; n++ {
			if n == 2 {
				t.Fatal("more than one delta was kept for a slow watcher")
			}
			if d, err = wire.ParseRoutes(<-w.sent); err != nil {
				t.Fatal(err)
			}
			if table, err = table.Merge(d); err != nil {
				t.Fatal(err)
			}
		}
		if route, _ := table.Lookup(uid(0)); route.Owner.ID != "b1" {
			t.Errorf("route %+v", route)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestRoutesAreKnownBeforeAnyStoreAnswers(t *testing.T) {
	dir := t.TempDir()
	in := func(c *Config) { c.DataDir = dir }
	inRig(t, storetest.Config{}, func(r *rig) {
		a := r.boot("a1", in)
		r.store.Assign("a1")
		settle()
		version := a.Routes().Load().Sets[0].Version
		a.Kill()
		a.net.Cut(true)
		a = r.boot("a1", in)
		pb, err := a.GetRoutes(context.Background(), &seqpb.RoutesRequest{})
		if err != nil || pb.Sets[0].Version != version {
			t.Errorf("%+v, %v; want version %d", pb, err, version)
		}
		a.Kill()
		// A broken file costs a fetch, not the start.
		if err := os.WriteFile(filepath.Join(dir, routesFile), []byte("garbage"), 0o644); err != nil {
			t.Fatal(err)
		}
		a.net.Cut(false)
		a = r.boot("a1", in)
		settle()
		if !a.Routes().Load().Known() {
			t.Error("no routes after a broken cache")
		}
		if _, err := Start(Config{
			Node: "x", Cluster: "other", Addr: "x:1", Stores: []string{"s"}, Dial: a.cfg.Dial,
			DataDir: dir, BootID: "boot", Region: arena.NewHeap("x", 0),
		}); err == nil || !strings.Contains(err.Error(), "directory of its own") {
			t.Errorf("a directory of another cluster was taken: %v", err)
		}
	})
}

func TestGapsAreAnsweredByAnyNode(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b := two(r)
		a.take(t, uid(1), 1)
		r.store.Expire("a1")
		r.store.Assign("b1")
		settle()
		b.take(t, uid(1), 1)
		for _, n := range []*node{a, b} {
			rep, err := n.Gaps(context.Background(), &seqpb.GapsRequest{Space: "uid", Uid: 1})
			if err != nil || len(rep.Gaps) != 1 || rep.Gaps[0].To != 100 {
				t.Errorf("%s: %+v, %v", n.name, rep, err)
			}
		}
		if _, err := a.Gaps(context.Background(), &seqpb.GapsRequest{Space: "uid", Name: "x"}); wire.CodeOf(err) != seqpb.Code_CODE_INVALID_ARGUMENT {
			t.Errorf("a name in a space of uids: %v", err)
		}
	})
}

func TestAFullArenaIsATypedErrorAndAcquiresNothing(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1", func(c *Config) { c.ArenaMaxBytes, c.ArenaHighWater = 3<<20, -1 })
		req := &seqpb.AllocRequest{Space: "uid"}
		for i := range uint64(2000) {
			req.Uids = append(req.Uids, i<<8)
		}
		rep, err := a.Alloc(context.Background(), req)
		if err != nil || len(rep.Failures) == 0 || len(rep.Failures) == len(req.Uids) {
			t.Fatalf("%d failures, %v", len(rep.Failures), err)
		}
		for _, f := range rep.Failures {
			if f.Code != seqpb.Code_CODE_BUSY || !strings.Contains(f.Message, "full") {
				t.Fatalf("failure %+v", f)
			}
			if rec := r.store.Record(uid(req.Uids[f.Index])); rec.Bound != 0 {
				t.Fatalf("a key without room was acquired: %+v", rec)
			}
		}
	})
}

func TestAStoppedNodeSaysSo(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1")
		a.Kill()
		a.Kill()
		if _, err := a.AllocOne(context.Background(), uid(1), 1, nil); wire.CodeOf(err) != seqpb.Code_CODE_UNAVAILABLE {
			t.Errorf("got %v", err)
		}
		if a.Ready() == nil {
			t.Error("ready")
		}
	})
}

func TestKillLetsWaitingCallersGo(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1")
		a.net.Cut(true)
		done := make(chan error)
		go func() { _, err := a.AllocOne(context.Background(), uid(1), 1, nil); done <- err }()
		go func() { _, err := a.CurrentOne(context.Background(), uid(2)); done <- err }()
		synctest.Wait()
		start := time.Now()
		a.Kill()
		for range 2 {
			if err := <-done; wire.CodeOf(err) != seqpb.Code_CODE_UNAVAILABLE {
				t.Errorf("got %v", err)
			}
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("took %v", took)
		}
	})
}

func TestMetricsShowWhatHappened(t *testing.T) {
	inRig(t, auto, func(r *rig) {
		a := r.boot("a1")
		a.take(t, uid(1), 70)
		settle()
		reg := prometheus.NewPedanticRegistry()
		if err := reg.Register(a.Collector()); err != nil {
			t.Fatal(err)
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			m := f.Metric[0]
			got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		for name, want := range map[string]float64{
			"numbers_total": 70, "raises_total": 1, "prefetches_total": 1, "cold_waits_total": 1, "keys": 1, "sections_serving": 8,
		} {
			if got["seqsvr_alloc_"+name] != want {
				t.Errorf("%s is %v, want %v", name, got["seqsvr_alloc_"+name], want)
			}
		}
		time.Sleep(5 * time.Second)
		if rate := a.Stats().Rate; rate <= 0 {
			t.Errorf("rate %v", rate)
		}
	})
}

func TestACountThatNoRecordCanHoldIsNotConfigured(t *testing.T) {
	_, err := Start(Config{Node: "a1", Cluster: "test", Addr: "a1:1", Stores: []string{"s"}, Dial: func(string) (StoreConn, error) { return nil, nil }, MaxN: 1 << 31})
	if err == nil || !strings.Contains(err.Error(), "MaxN") {
		t.Error(err)
	}
}
