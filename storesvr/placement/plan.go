package placement

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// A section that has this many keys, or this many allocations a second, weighs
// one more than an idle one.
const (
	KeysPerUnit = 1000
	RatePerUnit = 100
)

// Session is one AllocSvr that is alive.
type Session struct {
	ID ids.SessionID
	// Draining: the node is to be emptied, but serves on if nobody can take over.
	Draining bool
	// Leaving: the process wants to stop; its sections go to nobody if they must.
	Leaving bool
	// HoldOff: the node was lost repeatedly of late (see Flaps). It gets sections only if nobody else can.
	HoldOff bool
	Contact Contact
}

// Contact is what is known of whether a session can take sections now. What is
// given to one that is dead is served by nobody until its lease ends.
type Contact uint8

const (
	Heard Contact = iota
	// Silent: it may be dead. It gets only what nobody else can have and nobody serves anyway.
	Silent
	// Absent: it cannot even be told what it gets.
	Absent
)

func (s *Session) eligible() bool { return !s.Draining && !s.Leaving }

// rank: those of the lowest that there is may get sections.
func (s *Session) rank() int {
	if s.Contact != Heard {
		return heldOff + int(s.Contact)
	}
	if s.HoldOff {
		return heldOff
	}
	return 0
}

// heldOff is the highest rank of those that are heard of.
const heldOff = 1

// Section is one section; its index in Input.Sections is its number.
type Section struct {
	// Owner is 0 for none.
	Owner ids.SessionID
	// Moving: a move is under way, To whom (0: nobody).
	Moving bool
	To     ids.SessionID
	// Keys held and allocations a second, as last measured.
	Keys uint64
	Rate float64
	// MovedAt is when it last changed owner by a Move that was not an
	// assignment of an unowned section; 0 for never.
	MovedAt time.Duration
}

// weight is what the section costs to serve, in idle sections.
func (s *Section) weight() float64 {
	rate := s.Rate
	if !(rate > 0) || math.IsInf(rate, 0) {
		rate = 0
	}
	return 1 + float64(s.Keys)/KeysPerUnit + rate/RatePerUnit
}

// Limits are the knobs; a zero field has its default.
type Limits struct {
	// MovingMax is how many sections may be on the move at once.
	MovingMax int
	// Threshold: balancing starts when the most and the least loaded differ by
	// more than this share of the mean, and by more than MinWeight.
	Threshold float64
	MinWeight float64
	// Fine: once started, balancing goes on down to this share of the mean.
	Fine float64
	// CoolDown: how long a moved section is not moved again for balance.
	CoolDown time.Duration
}

// DefaultLimits are what zero fields of Limits stand for.
func DefaultLimits() Limits {
	return Limits{MovingMax: 64, Threshold: 0.20, MinWeight: 2, Fine: 0.05, CoolDown: 30 * time.Second}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	return Limits{
		MovingMax: cmp.Or(l.MovingMax, d.MovingMax),
		Threshold: cmp.Or(l.Threshold, d.Threshold),
		MinWeight: cmp.Or(l.MinWeight, d.MinWeight),
		Fine:      cmp.Or(l.Fine, d.Fine),
		CoolDown:  cmp.Or(l.CoolDown, d.CoolDown),
	}
}

// Input is everything that Plan looks at.
type Input struct {
	Now      time.Duration
	Sessions []Session
	Sections []Section
	Limits   Limits
	// Balancing: an earlier plan began to balance and its moves are not all
	// done, so the finer threshold counts. Set it while the last plan had
	// Balance moves, or had none but moves were still under way.
	Balancing bool
	// Force ignores threshold and cool-down: an operator asked. The number of
	// moves at once stays limited.
	Force bool
}

// Reason says what a move is for.
type Reason uint8

const (
	// Unowned: nobody owns the section; From is 0, To is never 0.
	Unowned Reason = iota + 1
	// Empty: the owner is draining or leaving.
	Empty
	// Retarget: the move is under way, but to somebody who may not have it (any more).
	Retarget
	// Balance: the owner has more than others.
	Balance
)

func (r Reason) String() string {
	switch r {
	case Unowned:
		return "unowned"
	case Empty:
		return "drain"
	case Retarget:
		return "retarget"
	case Balance:
		return "balance"
	}
	return "none"
}

// Move gives a section to a session. With From 0 it is to be assigned; else its
// owner is to hand it back, and To gets it (0: nobody).
type Move struct {
	Section  ids.Section
	From, To ids.SessionID
	Reason   Reason
}

// Plan answers what to do now. It is deterministic, and stable: when its moves
// have been carried out it soon answers none.
func Plan(in Input) []Move {
	p := newPlan(&in)
	p.assignUnowned()
	p.retarget()
	p.empty()
	p.balance()
	return p.moves
}

// plan is one run of Plan.
type plan struct {
	in     *Input
	limits Limits
	byID   map[ids.SessionID]*Session
	// load is the weight that each session has or is about to get.
	load map[ids.SessionID]float64
	// candidates may get sections, in order of their ids: all are of one rank.
	candidates []ids.SessionID
	// heard: the candidates are. Else sections that are served stay where they are.
	heard bool
	// planned sections are in moves already.
	planned []bool
	// budget is how many more sections may start to move.
	budget int
	moves  []Move
}

func newPlan(in *Input) *plan {
	p := &plan{
		in:      in,
		limits:  in.Limits.withDefaults(),
		byID:    make(map[ids.SessionID]*Session, len(in.Sessions)),
		load:    make(map[ids.SessionID]float64, len(in.Sessions)),
		planned: make([]bool, len(in.Sections)),
	}
	for i := range in.Sessions {
		p.byID[in.Sessions[i].ID] = &in.Sessions[i]
	}
	p.candidates, p.heard = p.best()
	p.budget = p.limits.MovingMax
	for i := range in.Sections {
		s := &in.Sections[i]
		if s.Owner == 0 {
			continue
		}
		heir := s.Owner
		if s.Moving {
			p.budget--
			heir = s.To
		}
		p.load[heir] += s.weight()
	}
	return p
}

// best are the eligible of the lowest rank.
func (p *plan) best() (out []ids.SessionID, heard bool) {
	lowest := math.MaxInt
	for _, id := range p.eligible() {
		switch r := p.byID[id].rank(); {
		case r < lowest:
			lowest, out = r, append(out[:0], id)
		case r == lowest:
			out = append(out, id)
		}
	}
	return out, lowest <= heldOff
}

func (p *plan) eligible() []ids.SessionID {
	var out []ids.SessionID
	for i := range p.in.Sessions {
		if s := &p.in.Sessions[i]; s.eligible() {
			out = append(out, s.ID)
		}
	}
	slices.Sort(out)
	return out
}

// least is the least loaded candidate, the first of equals; 0 if there is none.
func (p *plan) least() ids.SessionID {
	var least ids.SessionID
	for _, id := range p.candidates {
		if least == 0 || p.load[id] < p.load[least] {
			least = id
		}
	}
	return least
}

func (p *plan) move(sec int, to ids.SessionID, why Reason) {
	s := &p.in.Sections[sec]
	heir := s.Owner
	if s.Moving {
		heir = s.To
	}
	p.load[heir] -= s.weight()
	p.load[to] += s.weight()
	p.planned[sec] = true
	p.moves = append(p.moves, Move{Section: ids.Section(sec), From: s.Owner, To: to, Reason: why})
}

// heaviestFirst sorts sections so that placing each on the least loaded evens out.
func (p *plan) heaviestFirst(secs []int) []int {
	slices.SortStableFunc(secs, func(a, b int) int {
		return cmp.Compare(p.in.Sections[b].weight(), p.in.Sections[a].weight())
	})
	return secs
}

func (p *plan) selectSections(want func(*Section) bool) []int {
	var secs []int
	for i := range p.in.Sections {
		if want(&p.in.Sections[i]) {
			secs = append(secs, i)
		}
	}
	return p.heaviestFirst(secs)
}

func (p *plan) assignUnowned() {
	for _, sec := range p.selectSections(func(s *Section) bool { return s.Owner == 0 }) {
		if to := p.least(); to != 0 {
			p.move(sec, to, Unowned)
		}
	}
}

// retarget finds another heir for sections on their way to somebody who has
// gone, is silent or is to be emptied. They move already, so it is not
// throttled. That may be the owner itself: a section being handed back comes
// back only under a new epoch. One that is absent is often back at once, as
// after a restart; the section is freed if it is not by the end of the move.
func (p *plan) retarget() {
	for _, sec := range p.selectSections(func(s *Section) bool { return s.Owner != 0 && s.Moving }) {
		s := &p.in.Sections[sec]
		to := p.least()
		heir := p.byID[s.To]
		stays := heir != nil && heir.eligible() && (heir.Contact != Silent || !p.heard)
		if stays || to == s.To {
			continue
		}
		p.move(sec, to, Retarget)
	}
}

// empty moves sections off nodes that are to have none; of those that want to
// stop first. The others serve on until there is somebody who is heard of.
func (p *plan) empty() {
	for _, leaving := range []bool{true, false} {
		for _, sec := range p.selectSections(func(s *Section) bool {
			owner := p.byID[s.Owner]
			return owner != nil && !owner.eligible() && owner.Leaving == leaving && !s.Moving
		}) {
			to := p.least()
			if p.budget <= 0 || !p.heard && !leaving {
				break
			}
			p.move(sec, to, Empty)
			p.budget--
		}
	}
}
