package storesvr

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// counts are what a node has done since its start.
type counts struct {
	batches, ops               atomic.Uint64
	snapshots, restored        atomic.Uint64
	exported, imported         atomic.Uint64
	parts, partsAborted        atomic.Uint64
	frozen                     durations
	requests, batchesNo, opsNo refusals
}

// refusalKindsMax is above every refusal's number; what is beyond is counted as the last.
const refusalKindsMax = 32

// refusals are counted by their number.
type refusals [refusalKindsMax]atomic.Uint64

func (r *refusals) add(kind uint32) { r[min(kind, refusalKindsMax-1)].Add(1) }

func (c *counts) refused(r *seqpb.Refusal) {
	if r.GetCode() != seqpb.RefusalCode_REFUSAL_NONE {
		c.requests.add(uint32(r.Code))
	}
}

// executed counts a batch and what became of its ops.
func (c *counts) executed(rep *state.Reply) {
	if rep.Refusal != state.OK {
		c.batchesNo.add(uint32(rep.Refusal))
		return
	}
	c.batches.Add(1)
	c.ops.Add(uint64(len(rep.Results)))
	for i := range rep.Results {
		if r := rep.Results[i].Refusal; r != state.OK {
			c.opsNo.add(uint32(r))
		}
	}
}

// flusher is a Backend that writes behind.
type flusher interface {
	Dirty() int
	// Flushes answers how many flushes there were and how long all took together.
	Flushes() (n uint64, took time.Duration)
}

func storeDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("seqsvr_store_"+name, help, labels, nil)
}

var (
	descLeader    = storeDesc("leader", "1 while this node leads and acts as the leader.")
	descTerm      = storeDesc("raft_term", "Raft term.")
	descApplied   = storeDesc("applied_index", "Index of the last entry applied.")
	descContact   = storeDesc("raft_last_contact_seconds", "Since a follower last heard from the leader; 0 on the leader.")
	descSessions  = storeDesc("sessions", "Sessions of AllocSvrs that are alive, as applied here.")
	descSections  = storeDesc("sections", "Sections of the Set.")
	descUnowned   = storeDesc("sections_unowned", "Sections that nobody owns.")
	descMoving    = storeDesc("sections_moving", "Sections being moved; only the leader knows, others say 0.")
	descUnclean   = storeDesc("unclean_epochs", "Epochs that ended without a hand-back and are not settled yet.")
	descDirty     = storeDesc("overlay_dirty_keys", "Changed keys that are not in the state file yet.")
	descFlush     = storeDesc("flush_seconds", "Flushes of changed keys to the state file.")
	descBatches   = storeDesc("batches_total", "Batches of AllocSvrs that this node has committed as the leader.")
	descOps       = storeDesc("operations_total", "Operations in those batches.")
	descRefused   = storeDesc("refusals_total", "Refusals, by what was refused (request, batch, operation) and why.", "what", "kind")
	descSnapshots = storeDesc("snapshots_total", "Snapshots taken.")
	descRestored  = storeDesc("snapshots_restored_total", "Snapshots restored that a leader sent.")
	descExported  = storeDesc("keys_exported_total", "Records that this node gave to another Set, repetitions included.")
	descImported  = storeDesc("keys_imported_total", "Records that this node has committed as the leader of the Set they were moved to, repetitions included.")
	descParts     = storeDesc("move_parts_total", "Parts of moves that this node has driven to their end, by outcome (moved, aborted).", "outcome")
	descFrozen    = storeDesc("move_frozen_seconds", "How long the parts of moves that this node has driven were frozen.")
	descMapOf     = storeDesc("set_map_version", "Version of the Set map, as applied here.")
)

var storeDescs = []*prometheus.Desc{
	descLeader, descTerm, descApplied, descContact, descSessions, descSections, descUnowned, descMoving, descUnclean,
	descDirty, descFlush, descBatches, descOps, descRefused, descSnapshots, descRestored,
	descExported, descImported, descParts, descFrozen, descMapOf,
}

type collector struct{ n *Node }

// Collector presents the node to a Prometheus registry of the caller's.
func (n *Node) Collector() prometheus.Collector { return collector{n} }

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range storeDescs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	n := c.n
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	counter := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	l, moving := n.leads(), 0
	if l != nil {
		l.mu.Lock()
		moving = len(l.moves)
		l.mu.Unlock()
	}
	gauge(descLeader, oneIf(l != nil))
	gauge(descMoving, float64(moving))
	gauge(descTerm, float64(n.raft.CurrentTerm()))
	if n.raft.State() == raft.Leader {
		gauge(descContact, 0)
	} else if at := n.raft.LastContact(); !at.IsZero() { // else there was none yet
		gauge(descContact, time.Since(at).Seconds())
	}
	n.collectState(gauge)
	if f, ok := n.st.Keys.(flusher); ok {
		gauge(descDirty, float64(f.Dirty()))
		count, took := f.Flushes()
		ch <- prometheus.MustNewConstSummary(descFlush, count, took.Seconds(), nil)
	}
	counter(descBatches, n.counts.batches.Load())
	counter(descOps, n.counts.ops.Load())
	counter(descSnapshots, n.counts.snapshots.Load())
	counter(descRestored, n.counts.restored.Load())
	counter(descExported, n.counts.exported.Load())
	counter(descImported, n.counts.imported.Load())
	part := func(outcome string, v uint64) {
		ch <- prometheus.MustNewConstMetric(descParts, prometheus.CounterValue, float64(v), outcome)
	}
	part("moved", n.counts.parts.Load())
	part("aborted", n.counts.partsAborted.Load())
	frozenN, frozenSum, frozenOf := n.counts.frozen.buckets()
	ch <- prometheus.MustNewConstHistogram(descFrozen, frozenN, frozenSum, frozenOf)
	refused := func(what string, r *refusals, kind func(int) string) {
		for i := range r {
			if v := r[i].Load(); v > 0 {
				ch <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(v), what, kind(i))
			}
		}
	}
	fenced := func(i int) string { return state.Refusal(i).String() }
	refused("request", &n.counts.requests, requestKind)
	refused("batch", &n.counts.batchesNo, fenced)
	refused("operation", &n.counts.opsNo, fenced)
}

func (n *Node) collectState(gauge func(*prometheus.Desc, float64)) {
	var applied, mapVersion uint64
	var sessions, sections, unowned, unclean int
	// A failed state machine has no state to tell of.
	if n.fsm.read(func(st *state.State) {
		mapVersion = st.Meta.Published.Map.Version
		applied, sessions, sections = n.fsm.applied, len(st.Meta.Sessions), len(st.Meta.Sections)
		for i := range st.Meta.Sections {
			unclean += len(st.Meta.Sections[i].Unclean)
			if st.Meta.Sections[i].Owner == 0 {
				unowned++
			}
		}
	}) != nil {
		return
	}
	gauge(descApplied, float64(applied))
	gauge(descMapOf, float64(mapVersion))
	gauge(descSessions, float64(sessions))
	gauge(descSections, float64(sections))
	gauge(descUnowned, float64(unowned))
	gauge(descUnclean, float64(unclean))
}

// requestKind is REFUSAL_NOT_LEADER as "not leader".
func requestKind(i int) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(seqpb.RefusalCode(i).String(), "REFUSAL_"), "_", " "))
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
