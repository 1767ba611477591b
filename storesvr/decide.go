package storesvr

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/lease"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/placement"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// move is a section that its owner was told to hand back.
type move struct {
	section  ids.Section
	epoch    ids.Epoch
	from, to ids.SessionID
	reason   placement.Reason
}

// sectionLoad is what a heartbeat said of a section.
type sectionLoad struct {
	keys uint64
	rate float64
}

// load is what a session last said of itself.
type load struct {
	keys     uint64
	rate     float64
	steps    []*seqpb.SpaceSteps // for status
	sections map[ids.Section]sectionLoad
}

// situation is all that the leader decides on.
type situation struct {
	now     time.Duration
	meta    *state.Meta
	expired []lease.Session
	// attached sessions have an open stream; silent ones are not heard of over it.
	attached map[ids.SessionID]bool
	silent   func(ids.SessionID) bool
	loads    map[ids.SessionID]*load
	moves    map[ids.Section]move
	movedAt  map[ids.Section]time.Duration
	holdOff  func(node string) bool
	limits   placement.Limits
	// balancing and force are as in placement.Input.
	balancing, force bool
}

// decision is what to do, in this order.
type decision struct {
	// over are moves that need no more watching: done, or their owner lost the section.
	over []move
	// expire ends sessions whose lease ran out.
	expire []state.Expire
	// leave ends sessions that wanted to go and own nothing any more.
	leave []state.Leave
	// assign gives unowned sections away.
	assign []state.Assignment
	// revoke starts moves, or gives one under way another target.
	revoke    []move
	balancing bool
	// forceDone: an operator's rebalancing has nothing left to do.
	forceDone bool
}

// decide is pure. When something is to expire it decides nothing else: what
// follows is decided once that is committed.
func decide(s *situation) decision {
	d := decision{balancing: s.balancing}
	for _, sec := range slices.Sorted(maps.Keys(s.moves)) {
		if m := s.moves[sec]; s.isOver(m) {
			d.over = append(d.over, m)
		}
	}
	for _, e := range s.expired {
		d.expire = append(d.expire, state.Expire{Session: e.ID, Incarnation: e.Incarnation})
	}
	if len(d.expire) > 0 {
		return d
	}
	d.leave = s.leavers()
	s.place(&d)
	return d
}

// isOver: the section is not any more where the move began.
func (s *situation) isOver(m move) bool {
	st := &s.meta.Sections[m.section]
	return st.Owner != m.from || st.Epoch != m.epoch
}

// leavers own nothing any more, and want to go.
func (s *situation) leavers() []state.Leave {
	owning := map[ids.SessionID]bool{}
	for i := range s.meta.Sections {
		owning[s.meta.Sections[i].Owner] = true
	}
	var out []state.Leave
	for _, ses := range liveSessions(s.meta) {
		if ses.Leaving && !owning[ses.ID] {
			out = append(out, state.Leave{Session: ses.ID, Incarnation: ses.Incarnation, Done: true})
		}
	}
	return out
}

// place turns placement's plan into assignments and revocations. What cannot be
// carried out now, because one of the two has no open stream, is left for when it has.
func (s *situation) place(d *decision) {
	moves := placement.Plan(s.placementInput())
	balance := false
	for _, m := range moves {
		switch {
		case m.To != 0 && !s.attached[m.To]:
			continue
		case m.Reason == placement.Unowned:
			d.assign = append(d.assign, state.Assignment{Section: m.Section, To: m.To})
			continue
		case !s.attached[m.From]:
			continue
		}
		balance = balance || m.Reason == placement.Balance
		d.revoke = append(d.revoke, move{
			section: m.Section, epoch: s.meta.Sections[m.Section].Epoch, from: m.From, to: m.To, reason: m.Reason,
		})
	}
	moving := len(s.moves) - len(d.over)
	d.balancing = balance || s.balancing && moving > 0
	d.forceDone = s.force && !balance && moving == 0
}

func (s *situation) placementInput() placement.Input {
	in := placement.Input{
		Now: s.now, Limits: s.limits, Balancing: s.balancing, Force: s.force,
		Sections: make([]placement.Section, len(s.meta.Sections)),
	}
	for _, ses := range liveSessions(s.meta) {
		in.Sessions = append(in.Sessions, placement.Session{
			ID: ses.ID, Draining: s.meta.Draining[ses.Node], Leaving: ses.Leaving,
			HoldOff: !s.force && s.holdOff(ses.Node), Contact: s.contact(ses.ID),
		})
	}
	for i := range s.meta.Sections {
		st := &s.meta.Sections[i]
		p := placement.Section{Owner: st.Owner, MovedAt: s.movedAt[ids.Section(i)]}
		if m, ok := s.moves[ids.Section(i)]; ok && !s.isOver(m) {
			p.Moving, p.To = true, m.to
		}
		if l := s.loads[st.Owner]; l != nil {
			sl := l.sections[ids.Section(i)]
			p.Keys, p.Rate = sl.keys, sl.rate
		}
		in.Sections[i] = p
	}
	return in
}

func (s *situation) contact(id ids.SessionID) placement.Contact {
	switch {
	case !s.attached[id]:
		return placement.Absent
	case s.silent(id):
		return placement.Silent
	}
	return placement.Heard
}

// liveSessions in the order of their ids.
func liveSessions(m *state.Meta) []*state.SessionState {
	return slices.SortedFunc(maps.Values(m.Sessions), func(a, b *state.SessionState) int { return cmp.Compare(a.ID, b.ID) })
}

func leaseSessions(m *state.Meta) []lease.Session {
	var out []lease.Session
	for _, s := range liveSessions(m) {
		out = append(out, lease.Session{ID: s.ID, Incarnation: s.Incarnation})
	}
	return out
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func sortedUnclean[V any](m map[uncleanEpoch]V) []uncleanEpoch {
	return slices.SortedFunc(maps.Keys(m), func(a, b uncleanEpoch) int {
		return cmp.Or(cmp.Compare(a.section, b.section), cmp.Compare(a.epoch, b.epoch))
	})
}
