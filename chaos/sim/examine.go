package sim

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
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
// replica must keep the invariants, all of a Set must be equal, every key must be
// one Set's, and no bound there may be below a number that was issued.
func (c *Cluster) examine() {
	var found []*replica
	for _, set := range c.sets {
		r := c.examineSet(set)
		if r == nil {
			return
		}
		found = append(found, r)
	}
	for i, r := range found {
		d := found[0].meta.Directory
		if want := d.Map.Owned(c.sets[i].name); !slices.Equal(sets.Normal(r.meta.Ranges), sets.Normal(want)) {
			c.monitor.violation("set %s owns %v, and by the directory %v", c.sets[i].name, r.meta.Ranges, want)
		}
	}
	c.compareIssued(found)
}

// examineSet gives what all replicas of a Set hold; nil if it cannot tell.
func (c *Cluster) examineSet(set *simSet) *replica {
	var replicas map[string]*replica
	for end := time.Now().Add(restTime); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		replicas = map[string]*replica{}
		for _, id := range set.stores {
			if node := c.stores[id].node; node != nil {
				if replicas[id] = c.replicaOf(id, node); replicas[id] == nil {
					return nil
				}
			}
		}
		if atRest(replicas) {
			break
		}
	}
	var first *replica
	for _, id := range set.stores {
		r := replicas[id]
		switch {
		case r == nil:
		case first == nil:
			first = r
		case r.applied != first.applied:
			c.monitor.violation("store %s has applied %d entries, another %d, long after the last", id, r.applied, first.applied)
		case !reflect.DeepEqual(r, first):
			c.monitor.violation("store %s differs from another at entry %d", id, r.applied)
		}
	}
	return first
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

// compareIssued holds the records of each key's Set against what left the AllocSvrs.
func (c *Cluster) compareIssued(found []*replica) {
	c.monitor.mu.Lock()
	defer c.monitor.mu.Unlock()
	for key, spans := range c.monitor.issued {
		last := ids.Seq(spans[len(spans)-1].last)
		k, err := parseKey(key)
		if err != nil {
			c.monitor.violationLocked("%v", err)
			continue
		}
		i := slices.IndexFunc(found, func(r *replica) bool { return sets.Has(r.meta.Ranges, k.Space, k.Position()) })
		if i < 0 {
			c.monitor.violationLocked("key %s belongs to no set", key)
			continue
		}
		if rec := found[i].records[k]; rec.Bound < last {
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
