package state

import (
	"maps"
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// MapKeys is Keys in memory: for simulation, and as the oracle of other kinds.
type MapKeys struct {
	records map[ids.Key]Record
	gaps    map[ids.Key][]Gap
}

var _ Keys = (*MapKeys)(nil)

// NewMapKeys makes an empty one.
func NewMapKeys() *MapKeys {
	return &MapKeys{records: map[ids.Key]Record{}, gaps: map[ids.Key][]Gap{}}
}

func (m *MapKeys) Get(k ids.Key) (Record, bool) { r, ok := m.records[k]; return r, ok }
func (m *MapKeys) Put(k ids.Key, r Record)      { m.records[k] = r }
func (m *MapKeys) Gaps(k ids.Key) []Gap         { return m.gaps[k] }
func (m *MapKeys) PutGaps(k ids.Key, g []Gap)   { m.gaps[k] = g }

// Delete forgets a key.
func (m *MapKeys) Delete(k ids.Key) {
	delete(m.records, k)
	delete(m.gaps, k)
}

// Len is the number of keys.
func (m *MapKeys) Len() int { return len(m.records) }

// Each visits the keys in order until f answers false. It sorts each time.
func (m *MapKeys) Each(f func(ids.Key, Record) bool) {
	for _, k := range slices.SortedFunc(maps.Keys(m.records), ids.Key.Compare) {
		if !f(k, m.records[k]) {
			return
		}
	}
}

// Clone copies it; the ledgers are shared, since they are never changed in place.
func (m *MapKeys) Clone() *MapKeys {
	return &MapKeys{records: maps.Clone(m.records), gaps: maps.Clone(m.gaps)}
}
