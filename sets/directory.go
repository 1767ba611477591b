package sets

import (
	"slices"
	"strings"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Directory is what the directory Set knows: the published part, and the moves.
// Its methods are the only way to change it; each one either answers a refusal
// and changes nothing, or changes it in one step. Repeating a change that is in
// effect already is no refusal. No slice is changed in place, so a shallow copy
// of a Directory (Clone) is a snapshot of it.
type Directory struct {
	Published
	// Moves are ascending: all that are under way, and the newest EndedMax others.
	Moves []Move
	// LastMove is the last MoveID given out.
	LastMove MoveID
}

// NewDirectory is that of a cluster which has only the Set that it is in.
func NewDirectory(home string, spaces []ids.Space) *Directory {
	return &Directory{Published: Published{Map: Single(home, spaces), Home: home, Sets: []SetInfo{{Name: home}}}}
}

// Clone is a copy that later changes leave alone.
func (d *Directory) Clone() *Directory {
	c := *d
	c.Moves = slices.Clone(d.Moves)
	return &c
}

// CreateSet puts a running Set into the map. It owns nothing yet.
func (d *Directory) CreateSet(name string, stores []string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := checkStores(name, stores, false); err != nil {
		return err
	}
	if old, ok := d.Info(name); ok {
		if slices.Equal(old.Stores, stores) {
			return nil
		}
		return &NameTakenError{Set: name}
	}
	if len(d.Sets) >= SetsMax {
		return &TooManySetsError{}
	}
	next := d.Published
	next.Sets = append(slices.Clone(d.Sets), SetInfo{Name: name, Stores: slices.Clone(stores)})
	return d.publish(next)
}

// UpdateSet changes by which StoreSvrs a Set is known.
func (d *Directory) UpdateSet(name string, stores []string) error {
	if err := checkStores(name, stores, name == d.Home); err != nil {
		return err
	}
	old, ok := d.Info(name)
	if !ok {
		return &NoSuchSetError{Set: name}
	}
	if slices.Equal(old.Stores, stores) {
		return nil
	}
	next := d.Published
	next.Sets = append(d.without(name), SetInfo{Name: name, Stores: slices.Clone(stores)})
	return d.publish(next)
}

// RetireSet takes a Set that owns nothing out of the map.
func (d *Directory) RetireSet(name string) error {
	if _, ok := d.Info(name); !ok {
		return &NoSuchSetError{Set: name}
	}
	if name == d.Home {
		return &InUseError{Set: name, Reason: "it has the directory"}
	}
	if owned := d.Map.Owned(name); len(owned) > 0 {
		return &StillOwnsError{Set: name, Range: owned[0]}
	}
	for i := range d.Moves {
		if m := &d.Moves[i]; !m.Over() && (m.From == name || m.To == name) {
			return &InUseError{Set: name, Reason: "a move from or to it is under way: wait for it, or abort it"}
		}
	}
	next := d.Published
	next.Sets = d.without(name)
	return d.publish(next)
}

func (d *Directory) without(name string) []SetInfo {
	return slices.DeleteFunc(slices.Clone(d.Sets), func(s SetInfo) bool { return s.Name == name })
}

// publish makes next, with its Sets changed, the newest version, if it is valid.
func (d *Directory) publish(next Published) error {
	slices.SortFunc(next.Sets, func(a, b SetInfo) int { return strings.Compare(a.Name, b.Name) })
	next.Map.Sets = nil
	for _, s := range next.Sets {
		next.Map.Sets = append(next.Map.Sets, s.Name)
	}
	next.Map.Version = d.Map.Version + 1
	if err := next.Validate(); err != nil {
		return err
	}
	d.Published = next
	return nil
}

// StartMove begins to move ranges, or everything that `from` owns if none is named.
func (d *Directory) StartMove(from, to string, ranges []Range, spaces []ids.Space, nowMS int64) (MoveID, error) {
	ranges, err := d.PlanMove(from, to, ranges, spaces)
	if err != nil {
		return 0, err
	}
	d.LastMove++
	d.Moves = append(slices.Clone(d.Moves), Move{
		ID: d.LastMove, From: from, To: to, Ranges: ranges, State: MoveRunning,
		Next: ranges[0].Lo, StartedMS: nowMS,
	})
	return d.LastMove, nil
}

// PlanMove answers what StartMove would move, or its refusal, and changes nothing.
func (d *Directory) PlanMove(from, to string, ranges []Range, spaces []ids.Space) ([]Range, error) {
	if from == to {
		return nil, &SameSetError{Set: from}
	}
	for _, name := range []string{from, to} {
		if _, ok := d.Info(name); !ok {
			return nil, &NoSuchSetError{Set: name}
		}
	}
	if len(ranges) == 0 {
		if ranges = d.Map.Owned(from); len(ranges) == 0 {
			return nil, &NothingToMoveError{Set: from}
		}
	}
	for i, r := range ranges {
		if err := d.checkRange(from, r, spaces); err != nil {
			return nil, err
		}
		if at := slices.IndexFunc(ranges[:i], r.Overlaps); at >= 0 {
			return nil, &OverlappingRangesError{A: ranges[at], B: r}
		}
	}
	ranges = Normal(ranges)
	if len(ranges) > MoveRangesMax {
		return nil, &TooManyMovesError{Reason: "the move has too many ranges: move fewer at once"}
	}
	return ranges, d.roomForMove()
}

// checkRange: r lies in its space, is owned by `from`, and no other move has any of it.
func (d *Directory) checkRange(from string, r Range, spaces []ids.Space) error {
	if r.Lo > r.Last {
		return &EmptyRangeError{Range: r}
	}
	i := slices.IndexFunc(spaces, func(s ids.Space) bool { return s.ID == r.Space })
	if i < 0 {
		return &OutsideError{Entry: Entry{Range: r, Set: from}}
	}
	if !Whole(spaces[i]).Covers(r) {
		return &OutsideError{Entry: Entry{Range: r, Set: from}, Space: spaces[i]}
	}
	for i := range d.Moves {
		m := &d.Moves[i]
		if m.Over() {
			continue
		}
		if at := slices.IndexFunc(m.Ranges, r.Overlaps); at >= 0 {
			return &OverlappingMoveError{Range: r, Move: m.ID, Has: m.Ranges[at]}
		}
	}
	for _, e := range d.Map.Entries {
		if e.Overlaps(r) && e.Set != from {
			return &NotOwnedError{Range: r, By: from, Entry: e}
		}
	}
	return nil
}

func (d *Directory) roomForMove() error {
	running := 0
	for i := range d.Moves {
		if !d.Moves[i].Over() {
			running++
		}
	}
	switch {
	case running >= RunningMax:
		return &TooManyMovesError{Reason: "as many are under way as may be: wait for one, or abort one"}
	case d.LastMove-d.EndedThrough() >= SpanMax:
		return &TooManyMovesError{Reason: "the oldest one under way has been overtaken by too many: wait for it, or abort it"}
	}
	return nil
}

// EndedThrough is the last MoveID of which it and all before it are over.
func (d *Directory) EndedThrough() MoveID {
	for i := range d.Moves {
		if m := &d.Moves[i]; !m.Over() {
			return m.ID - 1
		}
	}
	return d.LastMove
}

// Move is one of Moves; false if there is none of that id (any more).
func (d *Directory) Move(id MoveID) (Move, bool) {
	i := d.index(id)
	if i < 0 {
		return Move{}, false
	}
	return d.Moves[i], true
}

func (d *Directory) index(id MoveID) int {
	i, ok := slices.BinarySearchFunc(d.Moves, id, func(m Move, id MoveID) int {
		switch {
		case m.ID < id:
			return -1
		case m.ID > id:
			return 1
		}
		return 0
	})
	if !ok {
		return -1
	}
	return i
}

// put replaces one move, and forgets the oldest ended ones of too many.
func (d *Directory) put(m Move) {
	moves := slices.Clone(d.Moves)
	moves[d.index(m.ID)] = m
	over := 0
	for i := range moves {
		if moves[i].Over() {
			over++
		}
	}
	d.Moves = slices.DeleteFunc(moves, func(m Move) bool {
		if over <= EndedMax || !m.Over() {
			return false
		}
		over--
		return true
	})
}
