package state

import (
	"fmt"
	"maps"
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// Bounds of what a Genesis may found.
const (
	SectionsMax  = 1 << 16
	SpacesMax    = 1 << 10
	textBytesMax = 1 << 10
)

// Apply carries out one command. index is its Raft index: it grows from call
// to call and is used as the version of what clients can see.
func (s *State) Apply(index uint64, c Command) Reply {
	if g, ok := c.(Genesis); ok {
		return Reply{Refusal: s.found(index, g)}
	}
	if s.Meta.Genesis.Sections == 0 {
		return Reply{Refusal: RefusedNotFounded}
	}
	switch c := c.(type) {
	case PutStore:
		return Reply{Refusal: s.putStore(index, c.Node)}
	case DropStore:
		return Reply{Refusal: s.dropStore(index, c.ID)}
	case SetDraining:
		return Reply{Refusal: s.setDraining(c)}
	case Register:
		return s.register(index, c)
	case Resume:
		return s.resume(index, c)
	case Expire:
		return Reply{Refusal: s.expire(index, c)}
	case Leave:
		return Reply{Refusal: s.leave(index, c)}
	case Assign:
		return Reply{Applied: s.assign(index, c.Assignments)}
	case Settle:
		return Reply{Refusal: s.settle(c)}
	case Advance:
		res := s.advance(c)
		return Reply{Refusal: res.Refusal, Results: []OpResult{res}}
	case Batch:
		return s.batch(index, &c)
	case CreateSet, UpdateSet, RetireSet, StartMove, OpenPart, CommitPart, AbortPart, EndPart, AbortMove:
		return s.direct(index, c)
	default:
		return Reply{Refusal: s.move(index, c)}
	}
}

// move carries out the commands of a move's two sides.
func (s *State) move(index uint64, c Command) Refusal {
	switch c := c.(type) {
	case PutMap:
		return s.putMap(index, c.Published)
	case Freeze:
		return s.freeze(index, c)
	case Thaw:
		return s.thaw(c)
	case Seal:
		return s.seal(c)
	case Drop:
		return s.drop(index, c)
	case Import:
		return s.importRecords(c)
	case Preload:
		return s.preload(&c)
	case Activate:
		return s.activate(index, c)
	case Discard:
		return s.discard(c)
	case EndMove:
		return s.endMoves(c)
	case Sweep:
		return s.sweep(c)
	}
	panic(fmt.Sprintf("state: command of unknown type %T", c))
}

func (s *State) found(index uint64, g Genesis) Refusal {
	if s.Meta.Genesis.Sections != 0 {
		return RefusedFounded
	}
	if !validGenesis(&g) {
		return RefusedInvalid
	}
	g.Spaces, g.Ranges = slices.Clone(g.Spaces), slices.Clone(g.Ranges)
	s.Meta = Meta{
		Genesis:      g,
		Sections:     make([]SectionState, g.Sections),
		Sessions:     map[ids.SessionID]*SessionState{},
		Stores:       map[string]StoreNode{},
		Draining:     map[string]bool{},
		RouteVersion: index,
	}
	s.Meta.foundSets()
	return OK
}

// foundSets is what a Genesis says of Sets.
func (m *Meta) foundSets() {
	m.Ranges = m.Genesis.Ranges
	m.Out, m.In = map[sets.MoveID]*Outgoing{}, map[sets.MoveID]*Incoming{}
	if m.Genesis.Directory {
		m.Directory = sets.NewDirectory(m.Genesis.Set, m.Genesis.Spaces)
		m.Published = m.Directory.Published
	}
}

func validGenesis(g *Genesis) bool {
	if !validText(g.Cluster) || !validText(g.ClusterID) || !validText(g.Set) ||
		g.Sections == 0 || g.Sections > SectionsMax ||
		len(g.Spaces) == 0 || len(g.Spaces) > SpacesMax {
		return false
	}
	seenID, seenName := map[ids.SpaceID]bool{}, map[string]bool{}
	for _, sp := range g.Spaces {
		if !validText(sp.Name) || sp.Kind != ids.KindUID && sp.Kind != ids.KindName ||
			seenID[sp.ID] || seenName[sp.Name] {
			return false
		}
		seenID[sp.ID], seenName[sp.Name] = true, true
	}
	// A Set owns at its founding all or nothing: anything else would be a map that nobody keeps.
	if g.Directory {
		return slices.Equal(g.Ranges, sets.WholeSpaces(g.Spaces))
	}
	return len(g.Ranges) == 0
}

// validText: names and addresses that are required and kept.
func validText(t string) bool { return t != "" && len(t) <= textBytesMax }

func (s *State) putStore(index uint64, n StoreNode) Refusal {
	if !validText(n.ID) {
		return RefusedInvalid
	}
	if old, ok := s.Meta.Stores[n.ID]; ok && old == n {
		return OK
	}
	s.Meta.Stores[n.ID] = n
	s.Meta.RouteVersion = index
	return OK
}

func (s *State) dropStore(index uint64, id string) Refusal {
	if _, ok := s.Meta.Stores[id]; ok {
		delete(s.Meta.Stores, id)
		s.Meta.RouteVersion = index
	}
	return OK
}

func (s *State) setDraining(c SetDraining) Refusal {
	if !validText(c.Node) {
		return RefusedInvalid
	}
	if c.Draining {
		s.Meta.Draining[c.Node] = true
	} else {
		delete(s.Meta.Draining, c.Node)
	}
	return OK
}

func (s *State) batch(index uint64, b *Batch) Reply {
	if refusal := s.admitBatch(b); refusal != OK {
		return Reply{Refusal: refusal}
	}
	results := make([]OpResult, len(b.Ops))
	// Sections of which this batch has a return that cannot be trusted.
	var doubtful map[ids.Section]bool
	// Keys of those returns.
	var doubted []ids.Key
	for i := range b.Ops {
		op := &b.Ops[i]
		if op.Kind == OpVacate {
			results[i].Refusal = s.vacateUnless(doubted, b.Session, op)
			continue
		}
		sec, ok := s.sectionOf(op)
		if !ok {
			results[i].Refusal = RefusedInvalid
			continue
		}
		if refusal := s.admitOp(b.Session, sec, op.Epoch); refusal != OK {
			results[i] = OpResult{Refusal: refusal, SectionEpoch: s.Meta.Sections[sec].Epoch}
			continue
		}
		switch op.Kind {
		case OpExtend:
			results[i] = s.extend(sec, op)
		case OpReturn:
			results[i] = s.handBack(b.Session, op)
			if results[i].Refusal == RefusedCur {
				doubted = append(doubted, op.Key)
				if doubtful == nil {
					doubtful = map[ids.Section]bool{}
				}
				doubtful[sec] = true
			}
		case OpRelease:
			if doubtful[sec] {
				results[i].Refusal = RefusedCur
			} else {
				s.release(index, sec, op.Next)
			}
		}
		results[i].SectionEpoch = s.Meta.Sections[sec].Epoch
	}
	return Reply{Results: results}
}

// sectionOf finds the section that an op is about; false if the op is malformed.
func (s *State) sectionOf(op *Op) (ids.Section, bool) {
	switch op.Kind {
	case OpExtend, OpReturn:
		return op.Key.Section(s.Meta.Genesis.Sections), s.validKey(op.Key)
	case OpRelease:
		return op.Section, int(op.Section) < len(s.Meta.Sections)
	}
	return 0, false
}

func (s *State) validKey(k ids.Key) bool {
	for i := range s.Meta.Genesis.Spaces {
		sp := &s.Meta.Genesis.Spaces[i]
		if sp.ID == k.Space {
			return sp.Kind == ids.KindName || k.Lo == 0 && k.Hi <= sp.MaxUID
		}
	}
	return false
}

// Clone copies what is not per key, for a snapshot taken while Apply goes on.
func (m *Meta) Clone() Meta {
	c := *m
	c.Genesis.Spaces = slices.Clone(m.Genesis.Spaces)
	c.Sections = slices.Clone(m.Sections)
	for i := range c.Sections {
		c.Sections[i].Unclean = slices.Clone(c.Sections[i].Unclean)
	}
	c.Sessions = maps.Clone(m.Sessions)
	for id, ses := range c.Sessions {
		ses := *ses
		c.Sessions[id] = &ses
	}
	c.Stores = maps.Clone(m.Stores)
	c.Draining = maps.Clone(m.Draining)
	if m.Directory != nil {
		c.Directory = m.Directory.Clone()
	}
	// What these point to is replaced, never changed.
	c.Out, c.In = maps.Clone(m.Out), maps.Clone(m.In)
	return c
}
