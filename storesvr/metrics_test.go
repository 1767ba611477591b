package storesvr

import (
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqsvr/seqsvr/storesvr/state"
)

// gather is the node's metrics by name and labels; of a summary, its count.
func gather(t *testing.T, n *Node) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(n.Collector()); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			switch {
			case m.Gauge != nil:
				out[name] = m.Gauge.GetValue()
			case m.Counter != nil:
				out[name] = m.Counter.GetValue()
			case m.Summary != nil:
				out[name] = float64(m.Summary.GetSampleCount())
			}
		}
	}
	return out
}

func TestMetricsTellWhatANodeIsAndDoes(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		a := attach(t, g.leader, hello("a1"))
		defer a.crash()
		eventually(t, time.Second, "all sections", func() bool { return a.owned() == 16 })
		time.Sleep(time.Second)
		lead, follower := g.leader(), g.follower()
		before := gather(t, lead)
		a.extend(a.anyKey(), 10)
		if rep, err := a.execute(state.Op{Kind: state.OpExtend, Key: a.anyKey(), Epoch: 99, Step: 10}); err != nil || rep.Results[0].Refusal != state.RefusedEpoch {
			t.Fatalf("%+v %v", rep, err)
		}
		if _, err := executeBatch(follower, metaOf(t, lead).Genesis.ClusterID, state.Batch{Session: 1, Incarnation: 1, Seq: 99}); err == nil {
			t.Fatal("a follower executed a batch")
		}
		const p = "seqsvr_store_"
		got := gather(t, lead)
		for name, want := range map[string]float64{
			p + "leader": 1, p + "sessions": 1, p + "sections": 16, p + "sections_unowned": 0, p + "sections_moving": 0,
			p + "unclean_epochs": 0, p + "raft_last_contact_seconds": 0,
			p + "batches_total":    before[p+"batches_total"] + 2,
			p + "operations_total": before[p+"operations_total"] + 2,
			p + "refusals_total not the section's present epoch operation": 1,
		} {
			if v, ok := got[name]; !ok || v != want {
				t.Errorf("leader: %s is %v (there: %v), want %v", name, v, ok, want)
			}
		}
		if got[p+"applied_index"] <= before[p+"applied_index"] || got[p+"raft_term"] < 2 {
			t.Errorf("%v", got)
		}
		got = gather(t, follower)
		c, ok := got[p+"raft_last_contact_seconds"]
		if got[p+"leader"] != 0 || got[p+"refusals_total not leader request"] != 1 || !ok || c > 1 {
			t.Errorf("follower: %v", got)
		}
	})
}

func TestMetricsOfTheDisk(t *testing.T) {
	g := newRealGroup(t, 1, nil)
	n := g.leader()
	w := newWriter(t, n)
	w.extend(0, 10, 100)
	got := gather(t, n)
	if got["seqsvr_store_overlay_dirty_keys"] < 10 || got["seqsvr_store_flush_seconds"] != 0 {
		t.Fatalf("before a flush: %v", got)
	}
	if err := n.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	got = gather(t, n)
	if got["seqsvr_store_overlay_dirty_keys"] != 0 || got["seqsvr_store_flush_seconds"] != 1 || got["seqsvr_store_snapshots_total"] != 1 {
		t.Fatalf("after a snapshot: %v", got)
	}
}

func TestARefusalOfANewerProtocolIsCounted(t *testing.T) {
	var r refusals
	r.add(3)
	r.add(1 << 20)
	got := map[int]uint64{}
	for i := range r {
		if v := r[i].Load(); v > 0 {
			got[i] = v
		}
	}
	if want := map[int]uint64{3: 1, refusalKindsMax - 1: 1}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if requestKind(1) != "not leader" || state.Refusal(refusalKindsMax-1).String() != "refusal(31)" {
		t.Error(requestKind(1), state.Refusal(31))
	}
}
