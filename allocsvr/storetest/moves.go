package storetest

import (
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// OtherSet is where Freeze moves ranges to; its stores are at OtherStores.
const OtherSet = "s2"

// OtherStores of OtherSet.
var OtherStores = []string{"other-store:1"}

// Part is one frozen part of a move, as the test goes on with it.
type Part struct {
	s    *Store
	move sets.MoveID
	part sets.Part
	rng  sets.Range
}

func (p Part) String() string { return fmt.Sprintf("part %d of move %d", p.part, p.move) }

// must applies a command that cannot be refused.
func (s *Store) must(c state.Command) {
	if rep := s.apply(c); rep.Refusal != state.OK {
		panic(fmt.Sprintf("storetest: %T refused: %v %s", c, rep.Refusal, rep.Detail))
	}
}

// Freeze begins to move a range to OtherSet, and freezes it as one part.
func (s *Store) Freeze(r sets.Range) Part {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.must(state.CreateSet{Name: OtherSet, Stores: OtherStores})
	s.must(state.StartMove{From: "s1", To: OtherSet, Ranges: []sets.Range{r}})
	p := Part{s: s, move: s.state.Meta.Directory.LastMove, part: 1, rng: r}
	p.freeze()
	return p
}

func (p Part) freeze() {
	p.s.must(state.OpenPart{Move: p.move, Part: p.part, Range: p.rng})
	p.s.must(state.Freeze{Move: p.move, Part: p.part, Range: p.rng, To: OtherSet})
	p.s.changed()
}

// Again freezes the range as the next part of its move, after Thaw.
func (p Part) Again() Part {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.s.must(state.AbortPart{Move: p.move, Part: p.part, Reason: "thawed"})
	p.s.must(state.EndPart{Move: p.move, Part: p.part})
	p.part++
	p.freeze()
	return p
}

// Thaw is what a leader does whose patience has ended.
func (p Part) Thaw() state.Refusal {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	rep := p.s.apply(state.Thaw{Move: p.move, Part: p.part})
	p.s.changed()
	return rep.Refusal
}

// Waiting counts the sessions that have not vacated.
func (p Part) Waiting() int {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return len(p.s.state.Meta.Out[p.move].Waiting)
}

// Seal gives up the right to thaw.
func (p Part) Seal() state.Refusal {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	rep := p.s.apply(state.Seal{Move: p.move, Part: p.part})
	p.s.changed()
	return rep.Refusal
}

// Commit gives the range to OtherSet in the map, and then drops it. quiet: nobody
// is told by a directive or of the routes until something else changes.
func (p Part) Commit(quiet bool) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.s.must(state.CommitPart{Move: p.move, Part: p.part})
	p.s.must(state.Drop{Move: p.move, Part: p.part, Published: p.s.state.Meta.Directory.Published})
	p.s.must(state.EndPart{Move: p.move, Part: p.part})
	if !quiet {
		p.s.changed()
	}
}

// Back moves a range from OtherSet here; early: the map says so before the range
// is active, until activate is called.
func (s *Store) Back(r sets.Range, early bool, records ...state.KeyedRecord) (activate func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.must(state.StartMove{From: OtherSet, To: "s1", Ranges: []sets.Range{r}})
	m := s.state.Meta.Directory.LastMove
	s.must(state.OpenPart{Move: m, Part: 1, Range: r})
	s.must(state.Import{Move: m, Part: 1, Range: r, From: OtherSet, Records: records})
	s.must(state.CommitPart{Move: m, Part: 1})
	activate = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.activate(m)
	}
	if early {
		s.changed()
		return activate
	}
	s.activate(m)
	return nil
}

func (s *Store) activate(m sets.MoveID) {
	s.must(state.Activate{Move: m, Part: 1, Published: s.state.Meta.Directory.Published})
	s.must(state.EndPart{Move: m, Part: 1})
	s.changed()
}

// Leave has every directive say that a range is to be frozen soon.
func (s *Store) Leave(r sets.Range) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave = []*seqpb.Range{rangePB(r)}
	s.changed()
}

// frozen is what every directive says of parts that are leaving.
func (s *Store) frozen() (all []*seqpb.FrozenRange) {
	for id := sets.MoveID(1); s.state.Meta.Directory != nil && id <= s.state.Meta.Directory.LastMove; id++ {
		o := s.state.Meta.Out[id]
		if o == nil || o.Phase != state.OutFrozen && o.Phase != state.OutSealed {
			continue
		}
		all = append(all, &seqpb.FrozenRange{Move: uint64(o.Move), Part: uint32(o.Part), Range: rangePB(o.Range)})
	}
	return all
}

func rangePB(r sets.Range) *seqpb.Range {
	return &seqpb.Range{Space: uint32(r.Space), Lo: uint64(r.Lo), Last: uint64(r.Last)}
}

// otherSets are the routes of the Sets of the map, with the owners of this one.
func (s *Store) otherSets(own *seqpb.SetRoutes, p *sets.Published) []*seqpb.SetRoutes {
	all := make([]*seqpb.SetRoutes, 0, len(p.Sets))
	for _, info := range p.Sets {
		set := own
		if info.Name != own.Name {
			set = &seqpb.SetRoutes{Name: info.Name, Stores: info.Stores}
		}
		for _, r := range p.Map.Owned(info.Name) {
			set.Ranges = append(set.Ranges, rangePB(r))
		}
		all = append(all, set)
	}
	return all
}

// Export is what the target of a move would import of a key.
func (s *Store) Export(k ids.Key) state.KeyedRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, _ := s.state.Keys.Get(k)
	return state.Effective(s.state, k, rec, s.state.Keys.Gaps(k))
}
