package state

import (
	"fmt"
	"maps"
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// world is a small cluster in one thread: AllocSvrs that follow the protocol, a
// network that delays, loses, copies and reorders batches, a leader that
// assigns and expires, crashes of processes and machines. Everything random
// comes from intn. It knows every number issued, so it can tell what is wrong.
type world struct {
	s     *State
	index uint64
	intn  func(n int) int
	nodes []*node
	// flight has the batches and resumptions under way; delivering one may leave a copy.
	flight []Command
	// patience of processes: the less, the more batches of one are under way.
	patience int
	seen     map[ids.Key]*history
	keys     []ids.Key
	// wrong is the first violation of a guarantee; alarm the first refusal that
	// says that an owner's memory and the record disagree.
	wrong, alarm error
}

// history is what callers have seen of one key.
type history struct {
	issued map[ids.Seq]bool
	last   ids.Seq
	// excusable numbers may be missing before the next one issued.
	excusable ids.Seq
}

// node is a machine with an arena, and a process if alive.
type node struct {
	name  string
	alive bool
	// leased: it may serve. The leader expires only those that are not.
	leased bool
	seq    ids.BatchSeq
	// awaits is the batch sent and not answered; 0 for none.
	awaits ids.BatchSeq
	arena  arena
}

// arena is what survives the process.
type arena struct {
	session     ids.SessionID
	incarnation ids.Incarnation
	sections    map[ids.Section]*holding
	cells       map[ids.Key]*cell
}

type holding struct {
	epoch  ids.Epoch
	closed bool
}

type cell struct {
	cur, max ids.Seq
	// closed cells are being handed back; wanted ones wait for an extend.
	closed, wanted   bool
	holeFrom, holeTo ids.Seq
}

const (
	worldSections = 2
	worldStepMax  = 10
)

func newWorld(bugs Bugs, intn func(int) int) *world {
	w := &world{s: New(NewMapKeys()), intn: intn, seen: map[ids.Key]*history{}}
	w.apply(Genesis{Cluster: "c", ClusterID: "id", Set: "s", Sections: worldSections, Spaces: ids.DefaultSpaces()}.OwningAll())
	w.s.Bugs = bugs
	w.patience = 2 + 6*intn(2)
	for i := range uint64(4) {
		k := uid(i << (ids.BlockShift - 1)) // two keys a section
		w.keys = append(w.keys, k)
		w.seen[k] = &history{issued: map[ids.Seq]bool{}}
	}
	for i := range 3 {
		w.nodes = append(w.nodes, &node{name: fmt.Sprint("n", i)})
	}
	return w
}

func (w *world) apply(c Command) Reply {
	w.index++
	return w.s.Apply(w.index, c)
}

func (w *world) violated(format string, args ...any) {
	if w.wrong == nil {
		w.wrong = fmt.Errorf(format, args...)
	}
}

// run takes steps until something is wrong.
func (w *world) run(steps int) {
	for range steps {
		w.step()
		if w.wrong != nil {
			return
		}
	}
}

func (w *world) step() {
	n := w.nodes[w.intn(len(w.nodes))]
	switch dice := w.intn(100); {
	case dice < 33:
		w.issue(w.keys[w.intn(len(w.keys))])
	case dice < 50:
		w.send(n)
	case dice < 75:
		if w.intn(w.patience) == 0 {
			n.awaits = 0 // gives up waiting
		} else {
			w.deliver()
		}
	case dice < 83:
		w.evict(n)
	case dice < 85:
		w.revoke(n)
	case dice < 88:
		w.assign()
	case dice < 89:
		w.expire()
	case dice < 90:
		w.settle(ids.Section(w.intn(worldSections)))
	case dice < 95:
		n.alive, n.leased = false, false // the process dies
		if w.intn(4) > 0 {
			w.start(n)
		}
	case dice < 97:
		w.start(n)
	case dice < 99:
		w.heartbeat(n)
	default:
		w.rare(n)
	}
}

func (w *world) rare(n *node) {
	switch w.intn(4) {
	case 0:
		n.alive, n.leased, n.arena = false, false, arena{} // the machine dies
	case 1:
		n.leased = false // a pause beyond its deadline
	default:
		w.operator()
	}
}

// issue is a call of a client, which finds the node that serves the key, if any.
func (w *world) issue(k ids.Key) {
	for _, n := range w.nodes {
		if h := n.arena.sections[k.Section(worldSections)]; n.alive && n.leased && h != nil && !h.closed {
			w.serve(n, k)
		}
	}
}

func (w *world) serve(n *node, k ids.Key) {
	c := n.arena.cells[k]
	if c == nil {
		n.arena.cells[k] = &cell{closed: true, wanted: true}
		return
	}
	if c.closed || c.cur == c.max {
		c.wanted = true
		return
	}
	c.wanted = c.wanted || c.max-c.cur < 3
	c.cur++
	w.issued(k, c.cur, c.holeFrom, c.holeTo)
	c.holeFrom, c.holeTo = 0, 0
}

// issued checks a number against everything that callers have seen.
func (w *world) issued(k ids.Key, n, holeFrom, holeTo ids.Seq) {
	h := w.seen[k]
	switch {
	case h.issued[n]:
		w.violated("key %v: %d issued twice", k, n)
	case n < h.last:
		w.violated("key %v: %d issued after %d", k, n, h.last)
	case holeTo != 0 && holeTo != n-1:
		w.violated("key %v: %d comes with hole %d..%d, which does not end before it", k, n, holeFrom, holeTo)
	case n != h.last+1 && (holeTo == 0 || holeFrom > h.last+1):
		w.violated("key %v: %d after %d, and hole %d..%d does not declare it", k, n, h.last, holeFrom, holeTo)
	case n-h.last-1 > h.excusable:
		w.violated("key %v: %d after %d loses more than the %d that faults excuse", k, n, h.last, h.excusable)
	}
	h.issued[n] = true
	h.last, h.excusable = max(h.last, n), 0
}

// send puts one batch of everything that is to be said on its way.
func (w *world) send(n *node) {
	if !n.alive || n.awaits != 0 {
		return
	}
	var ops []Op
	for _, k := range slices.SortedFunc(maps.Keys(n.arena.cells), ids.Key.Compare) {
		c, h := n.arena.cells[k], n.arena.sections[k.Section(worldSections)]
		switch {
		case h == nil:
		case h.closed || c.closed && !c.wanted:
			if c.max == 0 {
				continue // never acquired, as far as it knows
			}
			ops = append(ops, Op{Kind: OpReturn, Epoch: h.epoch, Key: k, Cur: c.cur})
		case c.wanted:
			step := ids.Seq(1 + w.intn(worldStepMax))
			ops = append(ops, Op{Kind: OpExtend, Epoch: h.epoch, Key: k, Cur: c.cur, Step: step})
		}
	}
	for _, sec := range slices.Sorted(maps.Keys(n.arena.sections)) {
		if h := n.arena.sections[sec]; h.closed {
			next := w.nodes[w.intn(len(w.nodes))].arena.session
			ops = append(ops, Op{Kind: OpRelease, Epoch: h.epoch, Section: sec, Next: next})
		}
	}
	if len(ops) == 0 {
		return
	}
	n.seq++
	n.awaits = n.seq
	w.flight = append(w.flight, Batch{Session: n.arena.session, Incarnation: n.arena.incarnation, Seq: n.seq, Ops: ops})
}

// deliver takes any batch under way; it may leave a copy, get lost, or lose its reply.
func (w *world) deliver() {
	if len(w.flight) == 0 {
		return
	}
	i := w.intn(len(w.flight))
	c := w.flight[i]
	if w.intn(4) > 0 || len(w.flight) > 8 {
		w.flight = slices.Delete(w.flight, i, i+1)
	}
	if w.intn(8) == 0 {
		return
	}
	reply := w.apply(c)
	b, isBatch := c.(Batch)
	if !isBatch {
		return // a late resumption: whoever sent it has long given up
	}
	lost := w.intn(5) == 0
	for _, n := range w.nodes {
		a := &n.arena
		if n.alive && a.session == b.Session && a.incarnation == b.Incarnation && n.awaits == b.Seq && !lost {
			n.awaits = 0
			w.answered(n, b, reply)
		}
	}
}

func (w *world) answered(n *node, b Batch, reply Reply) {
	switch reply.Refusal {
	case OK:
	case RefusedSession: // expired: it starts over
		n.arena, n.leased = arena{}, false
		w.start(n)
		return
	case RefusedIncarnation: // a late resumption outgrew it: it resumes again, alive
		w.resume(n)
		return
	default:
		return
	}
	for i, op := range b.Ops {
		res := reply.Results[i]
		if res.Refusal == RefusedCur { // its memory cannot be trusted: it stops for good
			w.alarm = fmt.Errorf("%+v refused: %+v", op, res)
			n.alive, n.leased, n.arena = false, false, arena{}
			return
		}
		c := n.arena.cells[op.Key]
		h := n.arena.sections[op.Key.Section(worldSections)]
		switch {
		case op.Kind == OpRelease:
			if res.Refusal == OK || res.Refusal == RefusedNotOwner || res.Refusal == RefusedEpoch {
				n.forget(op.Section)
			}
		case res.Refusal != OK || c == nil || h == nil || h.epoch != op.Epoch:
		case op.Kind == OpReturn:
			if !h.closed && !c.wanted {
				delete(n.arena.cells, op.Key)
			}
		case op.Kind == OpExtend && !h.closed:
			if c.closed {
				c.max = 0 // what it might issue before a hand-back counts no more
			}
			c.cur, c.max = max(c.cur, res.Floor), max(c.max, res.Bound)
			c.closed, c.wanted = false, false
			if res.HoleTo == c.cur {
				c.holeFrom, c.holeTo = res.HoleFrom, res.HoleTo
			}
		}
	}
}

func (n *node) forget(sec ids.Section) {
	delete(n.arena.sections, sec)
	maps.DeleteFunc(n.arena.cells, func(k ids.Key, _ *cell) bool { return k.Section(worldSections) == sec })
}

// evict closes a key and hands it back.
func (w *world) evict(n *node) {
	k := w.keys[w.intn(len(w.keys))]
	if c := n.arena.cells[k]; n.alive && c != nil && !c.closed {
		c.closed, c.wanted = true, false
	}
}

// revoke makes a node hand a section back; closing is one-way.
func (w *world) revoke(n *node) {
	if h := n.arena.sections[ids.Section(w.intn(worldSections))]; n.alive && h != nil {
		h.closed = true
	}
}

// heartbeat renews a lease and tells what is owned.
func (w *world) heartbeat(n *node) {
	if !n.alive {
		return
	}
	if w.s.Meta.Sessions[n.arena.session] == nil {
		n.arena, n.leased = arena{}, false
		w.start(n)
		return
	}
	n.leased = true
	for sec, h := range n.arena.sections {
		if st := w.s.Meta.Sections[sec]; st.Owner != n.arena.session || st.Epoch != h.epoch {
			n.forget(sec)
		}
	}
	for _, o := range w.s.Owned(n.arena.session) {
		if n.arena.sections[o.Section] == nil {
			n.arena.sections[o.Section] = &holding{epoch: o.Epoch}
		}
	}
}

// start is a process that comes up: it resumes what the arena has, or registers.
func (w *world) start(n *node) {
	if n.alive && n.arena.session != 0 {
		return
	}
	n.alive = true
	if n.arena.session != 0 && w.resume(n) {
		return
	}
	r := w.apply(Register{Node: n.name, Addr: "x"})
	n.awaits, n.seq = 0, 0
	n.arena = arena{
		session: r.Session.ID, incarnation: 1,
		sections: map[ids.Section]*holding{}, cells: map[ids.Key]*cell{},
	}
	w.heartbeat(n)
}

// resume answers false when the session is over. Its command may arrive once
// more later, and the process may die before it hears the reply.
func (w *world) resume(n *node) bool {
	c := Resume{Session: n.arena.session, From: n.arena.incarnation, Addr: "x"}
	if w.intn(8) == 0 {
		w.flight = append(w.flight, c)
	}
	r := w.apply(c)
	switch r.Refusal {
	case OK:
	case RefusedSession:
		return false
	default:
		w.alarm = fmt.Errorf("%+v refused with the session at %+v", c, r.Session)
		return false
	}
	if w.intn(6) == 0 {
		n.alive, n.leased = false, false
		return true
	}
	n.awaits = 0
	n.arena.incarnation, n.seq = r.Session.Incarnation, r.Session.LastBatch
	w.heartbeat(n)
	return true
}

// assign gives what nobody owns to random sessions.
func (w *world) assign() {
	var as []Assignment
	for sec := range ids.Section(worldSections) {
		as = append(as, Assignment{Section: sec, To: w.nodes[w.intn(len(w.nodes))].arena.session})
	}
	w.apply(Assign{Assignments: as})
	for _, n := range w.nodes {
		if n.leased {
			w.heartbeat(n)
		}
	}
}

// expire ends sessions that do not serve.
func (w *world) expire() {
	serving := map[ids.SessionID]bool{}
	for _, n := range w.nodes {
		serving[n.arena.session] = n.leased
	}
	for _, id := range slices.Sorted(maps.Keys(w.s.Meta.Sessions)) {
		if serving[id] || w.intn(2) == 0 {
			continue
		}
		for _, o := range w.s.Owned(id) {
			for _, k := range w.keys {
				if k.Section(worldSections) == o.Section {
					w.seen[k].excusable += worldStepMax
				}
			}
		}
		w.apply(Expire{Session: id, Incarnation: w.s.Meta.Sessions[id].Incarnation})
	}
}

func (w *world) settle(sec ids.Section) {
	unclean := w.s.Meta.Sections[sec].Unclean
	if len(unclean) == 0 {
		return
	}
	cmd := Settle{Section: sec, Epoch: unclean[w.intn(len(unclean))]}
	for _, k := range w.keys {
		if k.Section(worldSections) == sec && w.intn(4) > 0 {
			cmd.Keys = append(cmd.Keys, k)
		}
	}
	w.apply(cmd)
	if w.intn(2) == 0 {
		cmd.Keys, cmd.Done = w.keys, true
		w.apply(cmd)
	}
}

func (w *world) operator() {
	k := w.keys[w.intn(len(w.keys))]
	switch w.intn(4) {
	case 0:
		before := w.s.Value(k)
		to := before + ids.Seq(w.intn(4))
		if r := w.apply(Advance{Key: k, To: to}); r.Refusal == OK {
			w.seen[k].excusable += to - before
		}
	case 1:
		w.apply(SetDraining{Node: w.nodes[w.intn(len(w.nodes))].name, Draining: w.intn(4) == 0})
	case 2, 3:
		// A cold read, by the one owner that could hold the key and does not.
		n := w.nodes[w.intn(len(w.nodes))]
		h := n.arena.sections[k.Section(worldSections)]
		if !n.alive || !n.leased || h == nil || h.closed || n.arena.cells[k] != nil {
			return
		}
		if v := w.s.Value(k); v < w.seen[k].last {
			w.violated("key %v reads as %d, but %d was issued", k, v, w.seen[k].last)
		}
	}
}
