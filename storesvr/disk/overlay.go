package disk

import (
	"slices"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// generation is a set of changes that goes to the file in one transaction.
// While it is the active one only the apply goroutine changes it, under
// Store.mu; frozen, it never changes.
type generation struct {
	records map[ids.Key]state.Record
	gaps    map[ids.Key][]state.Gap
	// deleted keys: what older generations and the file have of them is gone;
	// records and gaps may have something newer.
	deleted map[ids.Key]struct{}
	// head is encodeHead at the freeze; records and gaps are all changes up to its index.
	head []byte
	// view, if set, is given a read transaction of the file as this generation left
	// it, or an error. Store.mu is held.
	view chan<- viewResult
	// awaited: somebody waits for it to be in the file.
	awaited bool

	ordering sync.Once
	order    []change
}

type viewResult struct {
	tx  *bbolt.Tx
	err error
}

func newGeneration() *generation {
	return &generation{records: map[ids.Key]state.Record{}, gaps: map[ids.Key][]state.Gap{}, deleted: map[ids.Key]struct{}{}}
}

// inOrder are the changed records by key. It is for a frozen generation: the
// flush and whoever reads meanwhile share the work.
func (g *generation) inOrder() []change {
	g.ordering.Do(func() {
		g.order = make([]change, 0, len(g.records)+len(g.deleted))
		for k, r := range g.records {
			g.order = append(g.order, change{key: k, record: r})
		}
		for k := range g.deleted {
			if _, again := g.records[k]; !again {
				g.order = append(g.order, change{key: k, deleted: true})
			}
		}
		slices.SortFunc(g.order, compareChanges)
	})
	return g.order
}

// answer gives the view, once. Store.mu is held.
func (g *generation) answer(r viewResult) {
	if g.view != nil {
		g.view <- r
		g.view = nil
	}
}

func (g *generation) dirty() int { return len(g.records) + len(g.gaps) + len(g.deleted) }
