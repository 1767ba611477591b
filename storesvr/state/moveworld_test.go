package state

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// moveWorld is a directory, two more Sets, their owners and the driver of moves
// in one thread. Every command of a move may be lost, late, twice or out of
// order, the driver may die at any step (it keeps nothing but what the directory
// has), and owners die with their memory. It knows every number issued.
type moveWorld struct {
	intn  func(int) int
	index uint64
	dir   *State
	sets  map[string]*State
	names []string
	// owners, by Set.
	owners map[string]*mover
	// flight are commands on their way to a Set: copies, and late originals.
	flight []posted
	keys   []ids.Key
	seen   map[ids.Key]*history
	// early and lax are what a wrong driver does: activate before the commit, and
	// compare nothing but floors.
	early, lax bool
	// differs counts how often the two sides of a part did not compare equal.
	differs map[posting]int
	moved   int
	// givenUp are parts that ended without the word of their target.
	givenUp int
	// forgotten are those that heard that they are over.
	forgotten int
	wrong     error
}

type posting struct {
	move sets.MoveID
	part sets.Part
}

type posted struct {
	set string
	c   Command
}

// mover is the one AllocSvr of a Set.
type mover struct {
	session ids.SessionID
	epoch   map[ids.Section]ids.Epoch
	seq     ids.BatchSeq
	cells   map[ids.Key]*cell
}

const moveSections = 2

func newMoveWorld(bugs Bugs, intn func(int) int) *moveWorld {
	w := &moveWorld{
		intn: intn, sets: map[string]*State{}, owners: map[string]*mover{}, seen: map[ids.Key]*history{},
		names: []string{"a", "b"}, early: bugs.ActivateBeforeCommit, lax: bugs.KeepLeftovers, differs: map[posting]int{},
	}
	spaces := []ids.Space{{ID: 1, Name: "uid", Kind: ids.KindUID, MaxUID: 4*ids.BlockSize - 1}}
	for _, name := range w.names {
		s := New(NewMapKeys())
		g := Genesis{Cluster: "c", ClusterID: "id", Set: name, Sections: moveSections, Spaces: spaces}
		if name == "a" {
			g = g.OwningAll()
			w.dir = s
		}
		w.sets[name] = s
		w.apply(name, g)
		s.Bugs = bugs
		w.register(name)
	}
	w.apply("a", CreateSet{Name: "b", Stores: []string{"b:1"}})
	for i := range uint64(4) {
		k := uid(i * ids.BlockSize)
		w.keys = append(w.keys, k)
		w.seen[k] = &history{issued: map[ids.Seq]bool{}}
	}
	return w
}

func (w *moveWorld) violated(format string, args ...any) {
	if w.wrong == nil {
		w.wrong = fmt.Errorf(format, args...)
	}
}

func (w *moveWorld) apply(set string, c Command) Reply {
	w.index++
	c, err := DecodeCommand(EncodeCommand(nil, c))
	if err != nil {
		panic(err)
	}
	return w.sets[set].Apply(w.index, c)
}

// register is a new AllocSvr with all sections.
func (w *moveWorld) register(set string) {
	r := w.apply(set, Register{Node: set, Addr: "x"})
	m := &mover{session: r.Session.ID, epoch: map[ids.Section]ids.Epoch{}, cells: map[ids.Key]*cell{}}
	var as []Assignment
	for sec := range ids.Section(moveSections) {
		as = append(as, Assignment{Section: sec, To: m.session})
	}
	w.apply(set, Assign{Assignments: as})
	for _, o := range w.sets[set].Owned(m.session) {
		m.epoch[o.Section] = o.Epoch
	}
	w.owners[set] = m
}

func (w *moveWorld) run(steps int) {
	for range steps {
		w.step()
		for _, name := range w.names {
			if err := Check(w.sets[name]); err != nil {
				w.violated("set %s: %v", name, err)
			}
		}
		w.oneOwner()
		if w.wrong != nil {
			return
		}
	}
}

// oneOwner: at no step may two Sets acquire a key.
func (w *moveWorld) oneOwner() {
	for _, k := range w.keys {
		if w.sets["a"].admitKey(k) == OK && w.sets["b"].admitKey(k) == OK {
			w.violated("both sets serve %v", k)
		}
	}
}

func (w *moveWorld) step() {
	set := w.names[w.intn(2)]
	switch dice := w.intn(100); {
	case dice < 30:
		w.serve(set, w.keys[w.intn(len(w.keys))])
	case dice < 35:
		w.evict(set)
	case dice < 42:
		w.vacate(set)
	case dice < 44:
		w.die(set)
	case dice < 46:
		w.settleAll(set)
	case dice < 47:
		w.advance(set)
	case dice < 49:
		w.sweep(set)
	case dice < 51:
		w.thaw(set)
	case dice < 53:
		w.startMove()
	case dice < 54:
		w.resolve(set)
	case dice < 60:
		w.deliver()
	default:
		w.drive()
	}
}

// batch sends ops of a Set's owner; the reply may get lost.
func (w *moveWorld) batch(set string, ops ...Op) ([]OpResult, bool) {
	m := w.owners[set]
	m.seq++
	r := w.apply(set, Batch{Session: m.session, Incarnation: 1, Seq: m.seq, Ops: ops})
	if r.Refusal != OK {
		w.violated("set %s: batch refused: %v", set, r.Refusal)
	}
	for i := range r.Results {
		if r.Results[i].Refusal == RefusedCur {
			w.violated("set %s: false alarm at %+v: %+v", set, ops[i], r.Results[i])
		}
	}
	return r.Results, r.Refusal == OK && w.intn(6) > 0
}

func (w *moveWorld) serve(set string, k ids.Key) {
	m := w.owners[set]
	c := m.cells[k]
	if c != nil && !c.closed && c.cur < c.max {
		c.cur++
		w.issued(set, k, c)
		return
	}
	cur := ids.Seq(0)
	if c != nil {
		cur = c.cur
	}
	sec := k.Section(moveSections)
	res, heard := w.batch(set, Op{Kind: OpExtend, Epoch: m.epoch[sec], Key: k, Cur: cur, Step: ids.Seq(1 + w.intn(5))})
	if !heard || res[0].Refusal != OK {
		return
	}
	// As it is here: an extend that is accepted is one that the range allows.
	if c == nil || c.closed {
		c = &cell{cur: cur}
		m.cells[k] = c
	}
	c.cur, c.max = max(c.cur, res[0].Floor), res[0].Bound
	if res[0].HoleTo != 0 && res[0].HoleTo == c.cur {
		c.holeFrom, c.holeTo = res[0].HoleFrom, res[0].HoleTo
	}
}

// touch acquires keys that the owner does not know; the reply gets lost.
func (w *moveWorld) touch(set string, r sets.Range) {
	m := w.owners[set]
	for _, k := range w.keys {
		if m.cells[k] == nil && r.Contains(k.Space, k.Position()) {
			w.batch(set, Op{Kind: OpExtend, Epoch: m.epoch[k.Section(moveSections)], Key: k, Step: 5})
		}
	}
}

func (w *moveWorld) issued(set string, k ids.Key, c *cell) {
	h := w.seen[k]
	n := c.cur
	switch {
	case h.issued[n] || n <= h.last:
		w.violated("key %v: set %s issues %d after %d", k, set, n, h.last)
	case n != h.last+1 && (c.holeTo != n-1 || c.holeFrom > h.last+1):
		w.violated("key %v: %d after %d, and hole %d..%d does not declare it", k, n, h.last, c.holeFrom, c.holeTo)
	case n-h.last-1 > h.excusable:
		w.violated("key %v: set %s issues %d after %d, which loses more than the %d that faults excuse", k, set, n, h.last, h.excusable)
	}
	h.issued[n], h.last, h.excusable = true, n, 0
	c.holeFrom, c.holeTo = 0, 0
}

// evict closes a key and hands it back.
func (w *moveWorld) evict(set string) {
	m := w.owners[set]
	keys := slices.SortedFunc(maps.Keys(m.cells), ids.Key.Compare)
	if len(keys) == 0 {
		return
	}
	k := keys[w.intn(len(keys))]
	c := m.cells[k]
	c.closed = true
	res, heard := w.batch(set, Op{Kind: OpReturn, Epoch: m.epoch[k.Section(moveSections)], Key: k, Cur: c.cur})
	if heard && (res[0].Refusal == OK || res[0].Refusal == RefusedRange) {
		delete(m.cells, k)
	}
}

// vacate answers every freeze that the owner waits for, as often as it likes.
func (w *moveWorld) vacate(set string) {
	s, m := w.sets[set], w.owners[set]
	for _, id := range sortedMoves(s.Meta.Out) {
		o := s.Meta.Out[id]
		if o.Phase != OutFrozen || !slices.Contains(o.Waiting, m.session) && w.intn(3) > 0 {
			continue
		}
		var ops []Op
		var back []ids.Key
		for _, k := range slices.SortedFunc(maps.Keys(m.cells), ids.Key.Compare) {
			if o.Range.Contains(k.Space, k.Position()) {
				m.cells[k].closed = true
				back = append(back, k)
				ops = append(ops, Op{Kind: OpReturn, Epoch: m.epoch[k.Section(moveSections)], Key: k, Cur: m.cells[k].cur})
			}
		}
		ops = append(ops, Op{Kind: OpVacate, Move: o.Move, Part: o.Part})
		if _, heard := w.batch(set, ops...); heard {
			for _, k := range back {
				delete(m.cells, k)
			}
		}
		if w.intn(8) == 0 {
			w.die(set)
			return
		}
	}
}

// die loses the machine of a Set's owner; another one takes over.
func (w *moveWorld) die(set string) {
	m := w.owners[set]
	for k := range w.seen {
		if w.sets[set].Owns(k) {
			w.seen[k].excusable += 6
		}
	}
	w.apply(set, Expire{Session: m.session, Incarnation: 1})
	w.register(set)
}

func (w *moveWorld) settleAll(set string) {
	for sec := range ids.Section(moveSections) {
		for _, e := range w.sets[set].Meta.Sections[sec].Unclean {
			w.apply(set, Settle{Section: sec, Epoch: e, Keys: w.keys, Done: w.intn(2) == 0})
		}
	}
}

func (w *moveWorld) advance(set string) {
	k := w.keys[w.intn(len(w.keys))]
	if before := w.sets[set].Value(k); w.apply(set, Advance{Key: k, To: before + 2}).Refusal == OK {
		w.seen[k].excusable += 2
	}
}

func (w *moveWorld) sweep(set string) { w.apply(set, Sweep{Keys: w.keys[w.intn(len(w.keys)):][:1]}) }

// thaw is the source's own decision.
func (w *moveWorld) thaw(set string) {
	for _, id := range sortedMoves(w.sets[set].Meta.Out) {
		o := w.sets[set].Meta.Out[id]
		w.post(set, Thaw{Move: id, Part: o.Part})
	}
}

func (w *moveWorld) startMove() {
	from, to := "a", "b"
	if w.intn(2) == 0 {
		from, to = to, from
	}
	lo := ids.Position(w.intn(4)) * ids.BlockSize
	w.apply("a", StartMove{From: from, To: to, Ranges: []sets.Range{{Space: 1, Lo: lo, Last: lo + ids.BlockSize*ids.Position(1+w.intn(2)) - 1}}})
	for range 1 + w.intn(2) {
		if w.intn(40) == 0 {
			w.apply("a", AbortMove{Move: w.dir.Meta.Directory.LastMove, Reason: "r"})
		}
	}
}

// resolve asks for the verdict of what comes in, as a Set does that has waited for long.
func (w *moveWorld) resolve(set string) {
	s, d := w.sets[set], w.dir.Meta.Directory
	for _, id := range sortedMoves(s.Meta.In) {
		in := s.Meta.In[id]
		if in.Phase != InImporting {
			continue
		}
		switch d.Verdict(id, in.Part) {
		case sets.VerdictCommitted:
			w.apply(set, Activate{Move: id, Part: in.Part, Published: d.Published})
		case sets.VerdictOver:
			w.forgotten++
			if s != w.dir {
				w.apply(set, PutMap{Published: d.Published})
			}
			fallthrough
		case sets.VerdictAborted:
			if r := w.apply(set, Discard{Move: id, Part: in.Part}); r.Refusal != OK {
				w.violated("set %s does not discard %+v: %v", set, *in, r.Refusal)
			}
		}
	}
}

// giveUp ends a move without the word of its target, and at times has so many others
// come and go that the directory forgets it.
func (w *moveWorld) giveUp(m sets.Move) {
	w.post(m.From, Thaw{Move: m.ID, Part: m.Part, Forced: true})
	if out := w.sets[m.From].Meta.Out[m.ID]; out == nil || out.Part != m.Part || out.Phase != OutThawed {
		return
	}
	if w.apply("a", EndPart{Move: m.ID, Part: m.Part}).Refusal == OK {
		w.givenUp++
	}
	for range w.intn(2) * 4 * sets.EndedMax {
		if _, listed := w.dir.Meta.Directory.Move(m.ID); !listed {
			break
		}
		w.startMove()
		w.apply("a", AbortMove{Move: w.dir.Meta.Directory.LastMove, Reason: "r"})
	}
}

// post sends a command once: it arrives now, later, twice or never.
func (w *moveWorld) post(set string, c Command) Reply {
	if w.intn(4) == 0 && len(w.flight) < 24 {
		w.flight = append(w.flight, posted{set, c})
	}
	if w.intn(8) == 0 {
		return Reply{Refusal: RefusedInvalid} // lost
	}
	r := w.apply(set, c)
	if w.intn(8) == 0 {
		return Reply{Refusal: RefusedInvalid} // its reply is
	}
	return r
}

func (w *moveWorld) deliver() {
	if len(w.flight) == 0 {
		return
	}
	i := w.intn(len(w.flight))
	p := w.flight[i]
	if w.intn(3) > 0 {
		w.flight = slices.Delete(w.flight, i, i+1)
	}
	w.apply(p.set, p.c)
}

// export is what a Set answers of a range.
func (w *moveWorld) export(set string, r sets.Range) (out []KeyedRecord) {
	s := w.sets[set]
	s.Keys.(*MapKeys).Each(func(k ids.Key, rec Record) bool {
		if r.Contains(k.Space, k.Position()) {
			out = append(out, Effective(s, k, rec, s.Keys.Gaps(k)))
		}
		return true
	})
	return out
}

func (w *moveWorld) digest(records []KeyedRecord) uint64 {
	if w.lax {
		for i := range records {
			records[i] = KeyedRecord{Key: records[i].Key, Floor: records[i].Floor, Bound: records[i].Floor}
		}
	}
	return Digest(records)
}

// drive takes the next step of some move, from nothing but the states of the three.
func (w *moveWorld) drive() {
	d := w.dir.Meta.Directory
	var running []sets.Move
	for _, m := range d.Moves {
		if !m.Over() {
			running = append(running, m)
		}
	}
	if len(running) == 0 || w.intn(10) == 0 {
		for _, name := range w.names {
			w.post(name, EndMove{Move: d.EndedThrough()})
			if name != "a" {
				w.post(name, PutMap{Published: d.Published})
			}
		}
	}
	if len(running) == 0 {
		return
	}
	m := running[w.intn(len(running))]
	switch m.PartState {
	case sets.PartNone:
		next := m.Left()[0]
		next.Last = min(next.Last, next.Lo+ids.BlockSize-1)
		w.apply("a", OpenPart{Move: m.ID, Part: m.Part + 1, Range: next})
		w.preload(m)
	case sets.PartOpen:
		w.driveOpen(m)
	case sets.PartCommitted:
		w.post(m.To, Activate{Move: m.ID, Part: m.Part, Published: d.Published})
		w.post(m.From, Drop{Move: m.ID, Part: m.Part, Published: d.Published})
		in, out := w.sets[m.To].Meta.In[m.ID], w.sets[m.From].Meta.Out[m.ID]
		if in.Phase == InActive && out.Phase == OutGone {
			end := EndPart{Move: m.ID, Part: m.Part}
			if rest := after(m); len(rest) > 0 && w.intn(2) == 0 {
				end.Next = rest[0]
				end.Next.Last = min(end.Next.Last, end.Next.Lo+ids.BlockSize-1)
			}
			w.apply("a", end)
			w.moved++
		}
	case sets.PartAborted:
		if m.State == sets.MoveAborting && w.intn(2) == 0 {
			w.giveUp(m)
			return
		}
		w.post(m.To, Discard{Move: m.ID, Part: m.Part})
		w.post(m.From, Thaw{Move: m.ID, Part: m.Part, Forced: true})
		in, out := w.sets[m.To].Meta.In[m.ID], w.sets[m.From].Meta.Out[m.ID]
		if in != nil && in.Part == m.Part && in.Phase == InDiscarded && out != nil && out.Part == m.Part && out.Phase == OutThawed {
			w.apply("a", EndPart{Move: m.ID, Part: m.Part})
		}
	}
}

func (w *moveWorld) driveOpen(m sets.Move) {
	from, to := w.sets[m.From], w.sets[m.To]
	o, in := from.Meta.Out[m.ID], to.Meta.In[m.ID]
	id, p, r := m.ID, m.Part, m.PartRange
	atHand := o != nil && o.Part == p
	w.preload(m)
	switch {
	case in == nil || in.Part != p || !atHand && w.intn(2) == 0:
		w.post(m.To, Import{Move: id, Part: p, Range: r, From: m.From, Records: w.export(m.From, r)})
	case w.early && w.intn(4) == 0:
		w.post(m.To, Activate{Move: id, Part: p})
	case !atHand:
		if w.intn(3) == 0 {
			w.touch(m.From, r)
		}
		w.post(m.From, Freeze{Move: id, Part: p, Range: r, To: m.To})
	case o.Phase == OutThawed || w.intn(80) == 0:
		w.apply("a", AbortPart{Move: id, Part: p, Reason: "r"})
	case len(o.Waiting) > 0 && !from.Bugs.SealWhileWaiting:
	case o.Phase != OutSealed && w.intn(3) == 0:
		// It is sealed and compared at once; the commit comes after both.
		w.post(m.From, Seal{Move: id, Part: p})
	default:
		src := w.export(m.From, r)
		if w.digest(src) != w.digest(w.export(m.To, r)) {
			w.post(m.To, Import{Move: id, Part: p, Range: r, From: m.From, Records: src})
			// An import that arrives makes them agree, and nothing changes afterwards.
			if w.differs[posting{id, p}]++; w.differs[posting{id, p}] > 20 {
				w.violated("part %d of move %d: the sets never agree: %+v and %+v", p, id, src, w.export(m.To, r))
			}
			return
		}
		// The driver may be slow, or die, between its comparison and the seal.
		w.post(m.From, Seal{Move: id, Part: p})
		if w.intn(8) == 0 {
			w.die(m.From)
			w.settleAll(m.From)
		}
		if w.intn(2) == 0 {
			if o := from.Meta.Out[id]; o.Phase == OutSealed {
				w.apply("a", CommitPart{Move: id, Part: p})
			}
		}
	}
}

// after is what is left of a move when the part at hand has moved.
func after(m sets.Move) []sets.Range {
	left := m.Left()
	if left[0].Last == m.PartRange.Last {
		return left[1:]
	}
	left[0].Lo = m.PartRange.Last + 1
	return left
}

// preload sends records ahead of their part at times, and at times those of any
// range that the move has.
func (w *moveWorld) preload(m sets.Move) {
	if w.intn(3) > 0 {
		return
	}
	rest := after(m)
	if w.intn(3) == 0 {
		rest = m.Left()
	}
	if len(rest) == 0 {
		return
	}
	w.post(m.To, Preload{Move: m.ID, Range: rest[0], From: m.From, Records: w.export(m.From, rest[0])})
}

func movesOf(seed uint64, bugs Bugs) *moveWorld {
	return newMoveWorld(bugs, rand.New(rand.NewPCG(seed, 4)).IntN)
}

// standing are moves that are over, of which a Set waits for a verdict for ever.
func (w *moveWorld) standing() (out []string) {
	for _, name := range w.names {
		w.resolve(name)
		for id, in := range w.sets[name].Meta.In {
			if m, listed := w.dir.Meta.Directory.Move(id); in.Phase == InImporting && (!listed || m.Over()) {
				out = append(out, fmt.Sprintf("set %s: %+v", name, *in))
			}
		}
	}
	return out
}

func TestMovesThereAndBackKeepTheGuarantees(t *testing.T) {
	issued, moved, givenUp, forgotten := 0, 0, 0, 0
	for seed := range uint64(150) {
		w := movesOf(seed, Bugs{})
		w.run(1500)
		if w.wrong != nil {
			t.Fatalf("seed %d: %v", seed, w.wrong)
		}
		if s := w.standing(); len(s) > 0 || w.wrong != nil {
			t.Fatalf("seed %d: part of a move that is over stands still: %v %v", seed, s, w.wrong)
		}
		givenUp += w.givenUp
		forgotten += w.forgotten
		moved += w.moved
		for _, h := range w.seen {
			issued += len(h.issued)
		}
	}
	t.Logf("%d numbers issued, %d parts moved, %d targets given up, %d of them forgotten", issued, moved, givenUp, forgotten)
	if issued < 5000 || moved < 500 || forgotten < 3 {
		t.Errorf("only %d numbers issued, %d parts moved and %d targets given up and forgotten: too little to show anything", issued, moved, forgotten)
	}
}

func TestDrawnMovesKeepTheGuarantees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := movesOf(rapid.Uint64().Draw(t, "seed"), Bugs{})
		w.run(800)
		if w.wrong != nil {
			t.Fatal(w.wrong)
		}
	})
}

func TestEachMechanismOfMovesIsMissedWhenSwitchedOff(t *testing.T) {
	for name, bugs := range map[string]Bugs{
		"fence of ranges":      {ExtendOutsideRanges: true},
		"seal binds":           {ThawAfterSeal: true},
		"seal waits":           {SealWhileWaiting: true},
		"parts are fenced":     {ImportStalePart: true},
		"preloads stay out":    {PreloadIntoOwn: true},
		"proof of commit":      {ActivateBeforeCommit: true},
		"joins keep the newer": {OverwriteFloors: true},
		"leftovers are void":   {KeepLeftovers: true},
		"leftovers stay old":   {SettleLeftovers: true},
		"vacated stays clean":  {ForgetVacated: true},
	} {
		t.Run(name, func(t *testing.T) {
			const seeds = 3000
			for seed := range uint64(seeds) {
				w := movesOf(seed, bugs)
				w.run(1500)
				if w.wrong != nil {
					t.Logf("seed %d: %v", seed, w.wrong)
					return
				}
			}
			t.Errorf("%d clusters did without", seeds)
		})
	}
}
