package storesvr

import (
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/lease"
	"github.com/seqsvr/seqsvr/storesvr/placement"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// sit is a situation with sections owned as listed and all sessions attached.
func sit(owners ...ids.SessionID) *situation {
	m := &state.Meta{Sessions: map[ids.SessionID]*state.SessionState{}, Draining: map[string]bool{}}
	s := &situation{
		now: time.Hour, meta: m, attached: map[ids.SessionID]bool{}, loads: map[ids.SessionID]*load{},
		moves: map[ids.Section]move{}, movedAt: map[ids.Section]time.Duration{}, holdOff: func(string) bool { return false }, silent: func(ids.SessionID) bool { return false },
	}
	for _, o := range owners {
		m.Sections = append(m.Sections, state.SectionState{Owner: o, Epoch: 1})
		if o != 0 {
			s.join(o)
		}
	}
	return s
}

func (s *situation) join(id ids.SessionID) {
	s.meta.Sessions[id] = &state.SessionState{ID: id, Incarnation: 1, Node: string(rune('a' + id))}
	s.attached[id] = true
}

func TestUnownedSectionsGoOnlyToWhoIsThere(t *testing.T) {
	s := sit(0, 0)
	s.join(1)
	s.attached = map[ids.SessionID]bool{}
	if d := decide(s); len(d.assign) != 0 {
		t.Fatalf("assigned to nobody's stream: %+v", d)
	}
	s.attached[1] = true
	if d := decide(s); len(d.assign) != 2 || d.assign[0].To != 1 {
		t.Fatalf("%+v", d)
	}
}

func TestExpiryComesBeforeEverythingElse(t *testing.T) {
	s := sit(1, 0)
	s.join(2)
	s.expired = []lease.Session{{ID: 1, Incarnation: 1}}
	d := decide(s)
	if len(d.expire) != 1 || len(d.assign)+len(d.revoke)+len(d.leave) != 0 {
		t.Fatalf("%+v", d)
	}
}

func TestAMoveIsOverWhenItsEpochIs(t *testing.T) {
	s := sit(1, 2)
	s.moves[0] = move{section: 0, epoch: 1, from: 1, to: 2, reason: placement.Balance}
	s.moves[1] = move{section: 1, epoch: 1, from: 1, to: 2, reason: placement.Balance}
	d := decide(s)
	if len(d.over) != 1 || d.over[0].section != 1 {
		t.Fatalf("%+v", d)
	}
	s.meta.Sections[0].Epoch = 2 // the same owner again, in a new epoch
	if d := decide(s); len(d.over) != 2 {
		t.Fatalf("%+v", d)
	}
}

func TestALeavingSessionGoesOnlyWhenItOwnsNothing(t *testing.T) {
	s := sit(1, 2)
	s.meta.Sessions[1].Leaving = true
	d := decide(s)
	if len(d.leave) != 0 || len(d.revoke) != 1 || d.revoke[0].to != 2 {
		t.Fatalf("%+v", d)
	}
	s.meta.Sections[0].Owner = 2
	if d := decide(s); len(d.leave) != 1 || !d.leave[0].Done || d.leave[0].Session != 1 {
		t.Fatalf("%+v", d)
	}
}

func TestNothingIsRevokedFromOrForWhoIsNotThere(t *testing.T) {
	for gone := range ids.SessionID(3) {
		s := sit(1, 1, 1, 1)
		s.join(2)
		s.force = true
		delete(s.attached, gone)
		d := decide(s)
		if want := gone == 0; (len(d.revoke) == 2) != want || !want && len(d.revoke) != 0 {
			t.Errorf("without session %d: %+v", gone, d.revoke)
		}
	}
}

func TestAnOperatorsRebalancingOverridesTheHoldOff(t *testing.T) {
	for _, force := range []bool{false, true} {
		s := sit(1, 1, 1, 1, 1, 1, 1, 1)
		s.join(2)
		s.holdOff = func(node string) bool { return node == s.meta.Sessions[2].Node }
		s.force = force
		if d := decide(s); (len(d.revoke) == 4) != force {
			t.Errorf("force %v: %+v", force, d.revoke)
		}
	}
}

func TestAReleaseNamesWhomTheSectionIsMovedTo(t *testing.T) {
	l := &leadership{
		moves:   map[ids.Section]move{3: {section: 3, epoch: 7, from: 1, to: 2}, 4: {section: 4, epoch: 7, from: 1, to: 9}},
		streams: map[ids.SessionID]*stream{2: {}},
	}
	release := func(sec ids.Section, e ids.Epoch) state.Op {
		return state.Op{Kind: state.OpRelease, Section: sec, Epoch: e, Next: 77}
	}
	b := state.Batch{Session: 1, Ops: []state.Op{release(3, 7), release(3, 6), release(4, 7), release(5, 7), {Kind: state.OpExtend}}}
	l.fillNext(&b)
	for i, want := range []ids.SessionID{2, 0, 0, 0, 0} {
		if b.Ops[i].Next != want {
			t.Errorf("op %d: next %d, want %d", i, b.Ops[i].Next, want)
		}
	}
	other := state.Batch{Session: 5, Ops: []state.Op{release(3, 7)}}
	l.fillNext(&other)
	if other.Ops[0].Next != 0 {
		t.Error("a move of another session was followed")
	}
}
