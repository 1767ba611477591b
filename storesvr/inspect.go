package storesvr

import (
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// Inspect runs f on the state as far as this node has applied it, while nothing
// is applied. f must neither change nor keep what it sees. It is how tests
// compare replicas; the answer of one node is not linearizable.
func (n *Node) Inspect(f func(applied uint64, st *state.State)) error {
	return n.fsm.read(func(st *state.State) { f(n.fsm.applied, st) })
}

// Each visits the keys in order, for state.Check.
func (m *memoryKeys) Each(f func(ids.Key, state.Record) bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.keys.Each(f)
}
