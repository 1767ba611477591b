package allocsvr

import (
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
)

// freezes is the book of the ranges that are leaving; see freeze.go. It decides
// and does nothing. The keeper's goroutine has it.
type freezes struct{ list []*freeze }

type freezePhase uint8

const (
	// freezeShut: callers are turned away; keys are still to be closed.
	freezeShut freezePhase = iota
	// freezeReturning: all keys that were found are closed, and on their way back.
	freezeReturning
	// freezeVacating: what was held is on its way back, if anything was, and the store
	// is being told behind it that nothing is.
	freezeVacating
	// freezeVacated: the store was told, or does not want to know any more.
	freezeVacated
	// freezeStuck: the store contradicts a key. Without a word from us the freeze
	// times out, which is loud and harmless.
	freezeStuck
)

// freeze is one frozen part of a move.
type freeze struct {
	move  sets.MoveID
	part  sets.Part
	rng   sets.Range
	phase freezePhase
	// listed: the last directive has it.
	listed bool
	// left are the hand-backs that are not acknowledged; freezeReturning only.
	left int
}

// directed compares the book with what the leader wants, and tells whether
// anything is shut or may be served that was not before. What the leader does not
// list any more ends once nothing of it is under way.
func (b *freezes) directed(want []*seqpb.FrozenRange) (changed bool) {
	for _, f := range b.list {
		f.listed = false
	}
	for _, w := range want {
		if w.GetRange() == nil || w.Range.Lo > w.Range.Last {
			continue
		}
		if f := b.find(sets.MoveID(w.Move), sets.Part(w.Part)); f != nil {
			f.listed = true
			continue
		}
		b.list = append(b.list, &freeze{
			move: sets.MoveID(w.Move), part: sets.Part(w.Part), listed: true,
			rng: rangeOf(w.Range),
		})
		changed = true
	}
	return b.settle() || changed
}

func rangeOf(r *seqpb.Range) sets.Range {
	return sets.Range{Space: ids.SpaceID(r.Space), Lo: ids.Position(r.Lo), Last: ids.Position(r.Last)}
}

func (b *freezes) find(m sets.MoveID, p sets.Part) *freeze {
	i := slices.IndexFunc(b.list, func(f *freeze) bool { return f.move == m && f.part == p })
	if i < 0 {
		return nil
	}
	return b.list[i]
}

// settle drops what is over, and tells whether anything was.
func (b *freezes) settle() bool {
	n := len(b.list)
	b.list = slices.DeleteFunc(b.list, func(f *freeze) bool {
		return !f.listed && f.phase != freezeVacating && f.left == 0
	})
	return len(b.list) != n
}

// shut are the ranges of which nothing may be served, in normal form.
func (b *freezes) shut() []sets.Range {
	all := make([]sets.Range, 0, len(b.list))
	for _, f := range b.list {
		all = append(all, f.rng)
	}
	return sets.Normal(all)
}

// freezeStep is what to do about a freeze now.
type freezeStep uint8

const (
	freezeWait freezeStep = iota
	// freezeClose: look for keys of the range, and close and return them.
	freezeClose
	// freezeVacate: tell the store.
	freezeVacate
)

// look is what was found of the range when its keys were looked for: closed are on
// their way now (also those that were already), elsewhere are in sections under
// release, doubted are contradicted by the store. begun are the hand-backs, of the
// closed ones, that began with this look.
type look struct {
	closed, elsewhere, doubted int
	begun                      []*eviction
}

// step says whether to look for keys.
func (f *freeze) step() freezeStep {
	switch {
	case !f.listed:
		return freezeWait
	case f.phase == freezeShut, f.phase == freezeReturning && f.left == 0:
		return freezeClose
	}
	return freezeWait
}

// looked says what follows from a look. The range is vacated only after a look that
// found nothing, or nothing but what it has closed itself.
func (f *freeze) looked(l look) freezeStep {
	switch {
	case l.doubted > 0:
		f.phase = freezeStuck
		return freezeWait
	case l.closed > len(l.begun) || l.closed > 0 && l.elsewhere > 0:
		f.phase, f.left = freezeReturning, l.closed
		return freezeWait
	case l.elsewhere > 0:
		f.phase = freezeShut // the end of the release wakes the keeper
		return freezeWait
	}
	f.phase = freezeVacating
	return freezeVacate
}

// returned: some hand-backs came to their end. It tells whether they were the last.
func (f *freeze) returned(n int) bool {
	if f.phase != freezeReturning {
		return false
	}
	f.left = max(0, f.left-n)
	return f.left == 0
}

// vacated: the store has answered.
func (f *freeze) vacated() {
	if f.phase == freezeVacating {
		f.phase = freezeVacated
	}
}

// again: the store was not told, or does not believe it.
func (f *freeze) again() {
	if f.phase == freezeVacating {
		f.phase = freezeShut
	}
}
