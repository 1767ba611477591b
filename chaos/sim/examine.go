package sim

import (
	"reflect"
	"strings"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// replica is what one StoreSvr holds at the end.
type replica struct {
	applied uint64
	meta    state.Meta
	records map[ids.Key]state.Record
	gaps    map[ids.Key][]state.Gap
}

// restTime is how long the durable tier gets to come to rest, and its replicas
// to hold the same entries.
const restTime = 15 * time.Second

// examine looks at the durable tier once all owners have handed back: every
// replica must keep the invariants, all must be equal, and no bound may be below
// a number that was issued.
func (c *Cluster) examine() {
	var replicas map[string]*replica
	for end := time.Now().Add(restTime); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		replicas = map[string]*replica{}
		for _, id := range c.storeIDs {
			if node := c.stores[id].node; node != nil {
				if replicas[id] = c.replicaOf(id, node); replicas[id] == nil {
					return
				}
			}
		}
		if atRest(replicas) {
			break
		}
	}
	var first *replica
	for _, id := range c.storeIDs {
		r := replicas[id]
		switch {
		case r == nil:
		case first == nil:
			first = r
			c.compareIssued(r)
		case r.applied != first.applied:
			c.monitor.violation("store %s has applied %d entries, another %d, long after the last", id, r.applied, first.applied)
		case !reflect.DeepEqual(r, first):
			c.monitor.violation("store %s differs from another at entry %d", id, r.applied)
		}
	}
}

func atRest(rs map[string]*replica) bool {
	applied := map[uint64]bool{}
	for _, r := range rs {
		applied[r.applied] = true
	}
	return len(applied) == 1
}

// replicaOf copies what a store holds; nil if it cannot tell.
func (c *Cluster) replicaOf(id string, node *storesvr.Node) *replica {
	r := &replica{records: map[ids.Key]state.Record{}, gaps: map[ids.Key][]state.Gap{}}
	err := node.Inspect(func(applied uint64, st *state.State) {
		if err := state.Check(st); err != nil {
			c.monitor.violation("store %s: %v", id, err)
		}
		r.applied, r.meta = applied, st.Meta.Clone()
		each, ok := st.Keys.(interface {
			Each(func(ids.Key, state.Record) bool)
		})
		if !ok {
			c.monitor.violation("store %s: its keys cannot be listed", id)
			return
		}
		each.Each(func(k ids.Key, rec state.Record) bool {
			r.records[k] = rec
			if g := st.Keys.Gaps(k); len(g) > 0 {
				r.gaps[k] = g
			}
			return true
		})
	})
	if err != nil {
		c.monitor.violation("store %s: %v", id, err)
		return nil
	}
	return r
}

// compareIssued holds the records against what left the AllocSvrs.
func (c *Cluster) compareIssued(r *replica) {
	c.monitor.mu.Lock()
	defer c.monitor.mu.Unlock()
	for key, spans := range c.monitor.issued {
		last := ids.Seq(spans[len(spans)-1].last)
		k, err := parseKey(key)
		if err != nil {
			c.monitor.violationLocked("%v", err)
			continue
		}
		if rec := r.records[k]; rec.Bound < last {
			c.monitor.violationLocked("key %s: %d was issued, the durable bound is %d", key, last, rec.Bound)
		}
	}
}

func parseKey(text string) (ids.Key, error) {
	name, rest, _ := strings.Cut(text, "/")
	for _, s := range ids.DefaultSpaces() {
		if s.Name == name {
			return s.Parse(rest)
		}
	}
	return ids.Key{}, ids.ErrBadKey
}
