package disk

import (
	"slices"

	"go.etcd.io/bbolt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// Cut is a page of records, in key order after a key, as all of them were at the
// moment it was made. It is read or counted once, later, while changes go on. Until it is read
// or closed a restore waits for it.
type Cut struct {
	store  *Store
	filter Filter
	after  ids.Key
	limit  int
	// tx is the file at that moment.
	tx *bbolt.Tx
	// changes are what memory had that is newer, ascending.
	changes []change
	// cutOff: changes after last are not among them, so the page ends there.
	cutOff bool
	last   ids.Key
	// gaps and deleted are of the active generation, if ledgers are wanted; frozen, oldest
	// first, had the other changes.
	gaps    map[ids.Key][]state.Gap
	deleted map[ids.Key]struct{}
	frozen  []*generation
}

// change is what happened to a record since the file was written.
type change struct {
	key     ids.Key
	record  state.Record
	deleted bool
}

// Cut takes a page of at most limit records after a key (the zero Key for the
// beginning). Between two applied entries it is the state after the first of them.
func (s *Store) Cut(f Filter, after ids.Key, limit int) *Cut {
	c := &Cut{store: s, filter: f, after: after, limit: limit}
	s.dbMu.RLock()
	s.mu.RLock()
	active := c.ofActive(s.active)
	c.frozen = slices.Clone(s.frozen)
	// A generation leaves memory only with mu held, after it is in the file: whatever is
	// not in c is in tx, and tx has nothing newer.
	tx, err := s.db.Begin(false)
	s.mu.RUnlock()
	if err != nil {
		s.dbMu.RUnlock()
		s.must(boltError(s.path, "read", err))
	}
	c.tx = tx
	c.changes = c.sort(active)
	for _, g := range slices.Backward(c.frozen) {
		c.changes = overlay(c.changes, c.ofFrozen(g))
	}
	if c.cutOff {
		c.changes = c.changes[:len(c.changes)-countAfter(c.changes, c.last)]
	}
	return c
}

// Read answers the records and where to go on; done says that there are no more.
// A page may have few records, or none, before the end. Read ends the Cut.
func (c *Cut) Read() (out []KeyRecord, next ids.Key, done bool) {
	sc := c.scan(false)
	return sc.out, sc.next, sc.done
}

// Count is Read that answers only how many records there are.
func (c *Cut) Count() (n int, next ids.Key, done bool) {
	sc := c.scan(true)
	return sc.n, sc.next, sc.done
}

func (c *Cut) scan(counting bool) scanner {
	defer c.Close()
	sc := scanner{cut: c, counting: counting, ledgers: walk{path: c.store.path}, next: c.after, done: true}
	path := c.store.path
	c.store.must(boltError(path, "read", Guard(path, "read", func() error { return sc.run(c.tx) })))
	return sc
}

// Close ends a Cut, read or not; later calls do nothing.
func (c *Cut) Close() {
	if c.tx == nil {
		return
	}
	// A read transaction: its rollback cannot fail.
	_ = c.tx.Rollback()
	c.tx = nil
	c.store.dbMu.RUnlock()
}

// beyond: changes of this key may be missing.
func (c *Cut) beyond(k ids.Key) bool { return c.cutOff && k.Compare(c.last) > 0 }

func (c *Cut) wants(k ids.Key) bool {
	return c.filter.covers(k) && (c.after == (ids.Key{}) || k.Compare(c.after) > 0) && !c.beyond(k)
}

// ofActive collects changes, those of uids in order if a range is wanted, so that little
// is left to be sorted while applying waits. Those that the filter's Match does not
// want count too: they hide what the file has.
func (c *Cut) ofActive(g *generation) (all []change) {
	most := 2 * (c.limit + 1)
	add := func(x change) {
		if !c.wants(x.key) {
			return
		}
		if all = append(all, x); len(all) == most {
			all = c.sort(all)
		}
	}
	addRecord := func(k ids.Key, r state.Record) { add(change{key: k, record: r}) }
	if within := c.filter.Within; within != nil {
		g.within(within, c.filter.first(c.after), addRecord)
	} else {
		g.each(false, addRecord)
	}
	for k := range g.deleted {
		if _, p := g.record(k); p != present {
			add(change{key: k, deleted: true})
		}
	}
	if !c.filter.Ledgers {
		return all
	}
	c.gaps, c.deleted = map[ids.Key][]state.Gap{}, map[ids.Key]struct{}{}
	for k, gaps := range g.gaps {
		if c.wants(k) {
			c.gaps[k] = gaps
		}
	}
	for k := range g.deleted {
		if c.wants(k) {
			c.deleted[k] = struct{}{}
		}
	}
	return all
}

// ofFrozen collects changes in order.
func (c *Cut) ofFrozen(g *generation) (all []change) {
	order := g.inOrder()
	at, _ := slices.BinarySearchFunc(order, c.filter.first(c.after), func(x change, k ids.Key) int { return x.key.Compare(k) })
	for _, x := range order[at:] {
		if c.filter.beyond(x.key) || c.beyond(x.key) {
			break
		}
		if !c.wants(x.key) {
			continue
		}
		if all = append(all, x); len(all) > c.limit {
			c.cut(x.key)
			break
		}
	}
	return all
}

// sort puts changes in order, and leaves out those that no page of the limit needs.
func (c *Cut) sort(all []change) []change {
	slices.SortFunc(all, compareChanges)
	if len(all) > c.limit+1 {
		all = all[:c.limit+1]
		c.cut(all[c.limit].key)
	}
	return all
}

func (c *Cut) cut(last ids.Key) { c.cutOff, c.last = true, last }

// ledger is what memory had of a key's holes.
func (c *Cut) ledger(k ids.Key) (gaps []state.Gap, known bool) {
	if gaps, known = c.gaps[k]; known {
		return gaps, true
	}
	if _, gone := c.deleted[k]; gone {
		return nil, true
	}
	for _, g := range slices.Backward(c.frozen) {
		if gaps, p := g.ledger(k); p != unknown {
			return gaps, true
		}
	}
	return nil, false
}

// overlay merges two ordered lists; of a key that is in both, the newer one's change counts.
func overlay(newer, older []change) []change {
	if len(newer) == 0 {
		return older
	}
	if len(older) == 0 {
		return newer
	}
	out := make([]change, 0, len(newer)+len(older))
	for len(newer) > 0 && len(older) > 0 {
		switch d := newer[0].key.Compare(older[0].key); {
		case d > 0:
			out, older = append(out, older[0]), older[1:]
		default:
			if out, newer = append(out, newer[0]), newer[1:]; d == 0 {
				older = older[1:]
			}
		}
	}
	return append(append(out, newer...), older...)
}

func countAfter(changes []change, last ids.Key) int {
	at, found := slices.BinarySearchFunc(changes, last, func(x change, k ids.Key) int { return x.key.Compare(k) })
	if found {
		at++
	}
	return len(changes) - at
}

func compareChanges(a, b change) int { return a.key.Compare(b.key) }
