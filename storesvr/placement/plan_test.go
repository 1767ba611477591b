package placement

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// cluster carries plans out, as the leader would.
type cluster struct {
	in    Input
	moved []int // per section, how often its owner changed
}

func newCluster(sections int, sessions ...ids.SessionID) *cluster {
	c := &cluster{
		in:    Input{Now: time.Hour, Sections: make([]Section, sections)},
		moved: make([]int, sections),
	}
	for _, id := range sessions {
		c.join(id)
	}
	return c
}

func (c *cluster) join(id ids.SessionID) {
	c.in.Sessions = append(c.in.Sessions, Session{ID: id})
}

func (c *cluster) session(id ids.SessionID) *Session {
	i := slices.IndexFunc(c.in.Sessions, func(s Session) bool { return s.ID == id })
	return &c.in.Sessions[i]
}

// lose is a session that expires.
func (c *cluster) lose(id ids.SessionID) {
	c.in.Sessions = slices.DeleteFunc(c.in.Sessions, func(s Session) bool { return s.ID == id })
	for i := range c.in.Sections {
		if s := &c.in.Sections[i]; s.Owner == id {
			s.Owner, s.Moving, s.To = 0, false, 0
		}
	}
}

// begin notes the moves of one plan as under way; assignments are done at once.
func (c *cluster) begin(moves []Move) {
	for _, m := range moves {
		s := &c.in.Sections[m.Section]
		if m.Reason == Unowned {
			s.Owner = m.To
			c.moved[m.Section]++
			continue
		}
		s.Moving, s.To = true, m.To
	}
}

func (c *cluster) finish() {
	for i := range c.in.Sections {
		if s := &c.in.Sections[i]; s.Moving {
			s.Owner, s.Moving, s.To, s.MovedAt = s.To, false, 0, c.in.Now
			c.moved[i]++
		}
	}
}

// settle plans and carries out until nothing is left to do; it answers the
// number of moves of owned sections.
func (c *cluster) settle(t interface{ Fatalf(string, ...any) }) int {
	total := 0
	for range 1000 {
		moves := Plan(c.in)
		if len(moves) == 0 && !c.in.Balancing {
			return total
		}
		c.in.Balancing = len(moves) > 0
		for _, m := range moves {
			if m.Reason != Unowned {
				total++
			}
		}
		c.begin(moves)
		c.finish()
		c.in.Now += time.Second
	}
	t.Fatalf("no end of moving")
	return 0
}

func (c *cluster) owned() map[ids.SessionID]int {
	n := map[ids.SessionID]int{}
	for i := range c.in.Sections {
		n[c.in.Sections[i].Owner]++
	}
	return n
}

func (c *cluster) load() map[ids.SessionID]float64 {
	n := map[ids.SessionID]float64{}
	for i := range c.in.Sections {
		n[c.in.Sections[i].Owner] += c.in.Sections[i].weight()
	}
	return n
}

func TestUnownedSectionsAreAssignedAtOnceAndEvenly(t *testing.T) {
	c := newCluster(1024, 1, 2, 3)
	moves := Plan(c.in)
	if len(moves) != 1024 {
		t.Fatalf("%d of 1024 sections assigned in the first plan", len(moves))
	}
	c.begin(moves)
	for id, n := range c.owned() {
		if n < 341 || n > 342 {
			t.Errorf("session %d got %d of 1024 sections", id, n)
		}
	}
	if again := Plan(c.in); len(again) != 0 {
		t.Errorf("an even cluster still has moves: %v", again[:1])
	}
}

func TestNobodyThereNothingPlanned(t *testing.T) {
	if moves := Plan(newCluster(8).in); len(moves) != 0 {
		t.Errorf("moves without a session: %v", moves)
	}
}

func TestJoinOfOneInNMovesAboutOneNth(t *testing.T) {
	for n := 1; n <= 9; n++ {
		c := newCluster(1024)
		for id := 1; id <= n; id++ {
			c.join(ids.SessionID(id))
		}
		c.settle(t)
		c.join(100)
		moved := c.settle(t)
		want := 1024 / (n + 1)
		if moved > want || moved < want*85/100 {
			t.Errorf("%d nodes and one more: %d sections moved, want about %d", n, moved, want)
		}
		for id, got := range c.owned() {
			if got < want*85/100 {
				t.Errorf("%d nodes and one more: session %d has %d sections", n, id, got)
			}
		}
	}
}

func TestLossOfOneInNMovesOnlyItsSections(t *testing.T) {
	c := newCluster(1024, 1, 2, 3, 4)
	c.settle(t)
	before := slices.Clone(c.in.Sections)
	c.lose(3)
	if moved := c.settle(t); moved != 0 {
		t.Errorf("%d sections of others moved", moved)
	}
	for i, s := range before {
		if s.Owner != 3 && c.in.Sections[i].Owner != s.Owner {
			t.Fatalf("section %d moved from %d to %d", i, s.Owner, c.in.Sections[i].Owner)
		}
	}
	for id, n := range c.owned() {
		if n < 341 || n > 342 {
			t.Errorf("session %d has %d sections", id, n)
		}
	}
}

func TestDrainEmptiesTheNodeThrottled(t *testing.T) {
	c := newCluster(1024, 1, 2, 3, 4)
	c.settle(t)
	c.session(2).Draining = true
	for round := 0; c.owned()[2] > 0; round++ {
		moves := Plan(c.in)
		if len(moves) == 0 || len(moves) > 64 {
			t.Fatalf("round %d: %d moves, want 1 to 64", round, len(moves))
		}
		for _, m := range moves {
			if m.From != 2 || m.To == 2 || m.Reason != Empty {
				t.Fatalf("round %d: %+v", round, m)
			}
		}
		c.begin(moves)
		if more := Plan(c.in); len(moves) == 64 && len(more) > 0 {
			t.Fatalf("round %d: %d more moves while 64 are under way", round, len(more))
		}
		c.finish()
	}
	c.session(2).Draining = false
	c.in.Now += time.Minute
	if moved := c.settle(t); moved < 200 || moved > 256 {
		t.Errorf("%d sections came back, want about 256", moved)
	}
}

func TestTheLastNode(t *testing.T) {
	c := newCluster(8, 1)
	c.settle(t)
	c.session(1).Draining = true
	if moves := Plan(c.in); len(moves) != 0 {
		t.Errorf("a draining node whose sections nobody can take should serve on, not %v", moves)
	}
	c.session(1).Leaving = true
	moves := Plan(c.in)
	if len(moves) != 8 || moves[0].To != 0 {
		t.Fatalf("a leaving node must hand its sections to nobody: %v", moves)
	}
	c.begin(moves)
	c.join(2)
	moves = Plan(c.in)
	if len(moves) != 8 || moves[0] != (Move{Section: 0, From: 1, To: 2, Reason: Retarget}) {
		t.Errorf("somebody came, but the sections are still to go to nobody: %v", moves)
	}
}

func TestMovesUnderWayGetAnotherTargetWhenTheirsGoes(t *testing.T) {
	c := newCluster(100, 1, 2, 3)
	c.settle(t)
	c.session(1).Draining = true
	c.begin(Plan(c.in))
	c.lose(2)
	for _, m := range Plan(c.in) {
		if m.To != 3 {
			t.Fatalf("%+v, only 3 is left", m)
		}
		c.begin([]Move{m})
	}
	for i, s := range c.in.Sections {
		if s.Owner == 1 && s.To != 3 {
			t.Errorf("section %d still goes to %d", i, s.To)
		}
	}
}

func TestSmallDifferencesAreLeftAlone(t *testing.T) {
	c := newCluster(1000, 1, 2)
	c.settle(t)
	for i := range 90 { // 590 to 410 would be 36 %, 545 to 455 is 18 %
		if i < 45 && c.in.Sections[2*i].Owner == 1 {
			c.in.Sections[2*i].Owner = 2
		}
	}
	if moves := Plan(c.in); len(moves) != 0 {
		t.Errorf("%d moves for a difference of %v", len(moves), c.owned())
	}
	c.in.Balancing = true
	if moves := Plan(c.in); len(moves) == 0 {
		t.Error("balancing that has begun stopped at the edge")
	}
	c.in.Balancing, c.in.Force = false, true
	if moves := Plan(c.in); len(moves) == 0 {
		t.Error("an operator's rebalance did nothing")
	}
}

func TestBusyNodeGivesLoadAwayWithFewMoves(t *testing.T) {
	c := newCluster(100, 1, 2)
	c.settle(t)
	for i := range c.in.Sections {
		if s := &c.in.Sections[i]; s.Owner == 1 {
			s.Rate, s.Keys = 10_000, 20_000
		}
	}
	moved := c.settle(t)
	if moved == 0 || moved > 26 {
		t.Errorf("%d moves, want at most half of the 50 busy sections", moved)
	}
	load := c.load()
	if hi, lo := max(load[1], load[2]), min(load[1], load[2]); (hi-lo)/((hi+lo)/2) > 0.20 {
		t.Errorf("loads are still %v", load)
	}
}

func TestOneHotSectionDoesNotBounce(t *testing.T) {
	c := newCluster(64, 1, 2)
	c.settle(t)
	c.in.Sections[5].Rate = 1e7
	c.settle(t)
	c.in.Now += time.Hour
	if moved := c.settle(t); moved != 0 || c.moved[5] > 2 {
		t.Errorf("%d moves once settled; the hot section moved %d times", moved, c.moved[5])
	}
}

func TestCooledDownSectionsOnly(t *testing.T) {
	c := newCluster(100, 1)
	c.settle(t)
	c.join(2)
	for i := range c.in.Sections {
		c.in.Sections[i].MovedAt = c.in.Now - time.Second
	}
	if moves := Plan(c.in); len(moves) != 0 {
		t.Errorf("%d moves of sections that have just moved", len(moves))
	}
	c.in.Now += DefaultLimits().CoolDown
	if moves := Plan(c.in); len(moves) == 0 {
		t.Error("no moves after the cool-down")
	}
}

// A node that is lost and comes back every 3 seconds for 5 minutes: its own
// sections must go each time it has any, but it must soon get none.
func TestFlappingNodeDoesNotMakeSectionsFlap(t *testing.T) {
	c := newCluster(1024, 1, 2, 3, 4)
	c.settle(t)
	var flaps Flaps
	start, moves := c.in.Now, 0
	next := ids.SessionID(10)
	flapping := ids.SessionID(4)
	for c.in.Now < start+5*time.Minute {
		c.lose(flapping)
		flaps.Lost("d", c.in.Now)
		for range 2 {
			plan := Plan(c.in)
			moves += len(plan)
			c.begin(plan)
			c.finish()
			c.in.Now += 1500 * time.Millisecond
		}
		flapping, next = next, next+1
		c.join(flapping)
		for range 2 {
			c.session(flapping).HoldOff = flaps.HoldOff("d", c.in.Now)
			plan := Plan(c.in)
			moves += len(plan)
			c.begin(plan)
			c.finish()
			c.in.Now += 1500 * time.Millisecond
		}
	}
	// 50 losses; without hold-off each would move up to 256 sections twice.
	if most := 1024; moves > most {
		t.Errorf("%d owner changes in 5 minutes of flapping, want at most %d", moves, most)
	}
	if worst := slices.Max(c.moved); worst > 6 {
		t.Errorf("a section moved %d times", worst)
	}
	// Once it stays, it gets its share.
	c.in.Now += holdOffMax
	c.session(flapping).HoldOff = flaps.HoldOff("d", c.in.Now)
	c.settle(t)
	if n := c.owned()[flapping]; n < 200 {
		t.Errorf("the node stays now, but has %d sections", n)
	}
}

func TestHeldOffNodeServesWhenAlone(t *testing.T) {
	c := newCluster(8, 1)
	c.session(1).HoldOff = true
	if moves := Plan(c.in); len(moves) != 8 {
		t.Errorf("%d of 8 sections assigned to the only node there is", len(moves))
	}
}

func TestNobodyIsMovedToWhoIsNotHeardOf(t *testing.T) {
	for _, contact := range []Contact{Silent, Absent} {
		c := newCluster(16, 1, 2)
		c.begin(Plan(c.in))
		c.session(1).Draining = true
		c.session(2).Contact = contact
		if moves := Plan(c.in); len(moves) != 0 {
			t.Errorf("contact %d: a drain moves %v", contact, moves)
		}
		c.session(1).Draining = false
		c.join(3)
		c.session(3).Contact = contact
		c.in.Force = true
		if moves := Plan(c.in); len(moves) != 0 {
			t.Errorf("contact %d: balance moves %v", contact, moves)
		}
		c.session(3).Contact = Heard
		if moves := Plan(c.in); len(moves) == 0 {
			t.Errorf("contact %d: one that is heard of again gets nothing", contact)
		}
	}
}

func TestUnownedSectionsPreferWhoIsHeardOf(t *testing.T) {
	c := newCluster(12, 1, 2, 3, 4)
	c.session(1).Contact = Absent
	c.session(2).Contact = Silent
	c.session(3).HoldOff = true
	for _, step := range []struct {
		to   ids.SessionID
		then func(*Session)
	}{
		{4, func(s *Session) { s.Contact = Silent }}, // 3 is heard of, though it came and went
		{3, func(s *Session) { s.Contact = Absent }}, // 2 and 4 are silent, but can be told
	} {
		for _, m := range Plan(c.in) {
			if m.To != step.to {
				t.Fatalf("%+v, want it to go to %d", m, step.to)
			}
		}
		step.then(c.session(step.to))
	}
	got := map[ids.SessionID]int{}
	for _, m := range Plan(c.in) {
		got[m.To]++
	}
	if got[2] != 6 || got[4] != 6 {
		t.Errorf("with nobody heard of, to those who can be told: %v", got)
	}
	c.session(2).Contact, c.session(4).Contact = Absent, Absent
	if moves := Plan(c.in); len(moves) != 12 {
		t.Errorf("%d of 12 sections planned", len(moves))
	}
}

func TestMovesUnderWayGetAnotherTargetWhenTheirsIsSilent(t *testing.T) {
	c := newCluster(4, 1, 2, 3)
	for i := range c.in.Sections {
		c.in.Sections[i] = Section{Owner: 1, Moving: true, To: 2}
	}
	c.session(2).Contact = Silent
	for _, m := range Plan(c.in) {
		if m.Reason == Retarget && m.To == 2 {
			t.Errorf("%+v", m)
		}
	}
	if moves := Plan(c.in); len(moves) != 4 {
		t.Errorf("%v", moves)
	}
	c.session(2).Contact = Absent
	if moves := Plan(c.in); len(moves) != 0 {
		t.Errorf("one that restarts loses its moves: %v", moves)
	}
	c.session(2).Contact = Silent
	c.session(1).Contact, c.session(3).Contact = Silent, Absent
	if moves := Plan(c.in); len(moves) != 0 {
		t.Errorf("with nobody heard of, moves change their targets: %v", moves)
	}
}

func TestFlaps(t *testing.T) {
	var f Flaps
	f.Lost("a", time.Hour)
	if f.HoldOff("a", time.Hour) {
		t.Error("held off after a single loss")
	}
	f.Lost("a", time.Hour+time.Minute)
	if at := time.Hour + time.Minute; !f.HoldOff("a", at+holdOffFirst-1) || f.HoldOff("a", at+holdOffFirst) {
		t.Error("held off for another time than the first one")
	}
	for range 100 {
		f.Lost("a", 2*time.Hour)
	}
	if !f.HoldOff("a", 2*time.Hour+holdOffMax-1) || f.HoldOff("a", 2*time.Hour+holdOffMax) {
		t.Error("held off for another time than the longest one")
	}
	f.Lost("a", 2*time.Hour+flapWindow+1)
	if f.HoldOff("a", 2*time.Hour+flapWindow+1) {
		t.Error("old losses are not forgotten")
	}
	for i := range 2 * flapNodesMax {
		f.Lost(string(rune('A'+i)), 3*time.Hour+time.Duration(i))
	}
	if len(f.nodes) > flapNodesMax {
		t.Errorf("%d nodes remembered", len(f.nodes))
	}
}

// Any cluster: the moves are valid, and carrying them out comes to an end at a
// state in which nothing unowned or to be emptied is left and the load is even.
func TestPlanSettlesAnyCluster(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(rapid.IntRange(1, 120).Draw(t, "sections"))
		n := rapid.IntRange(1, 6).Draw(t, "sessions")
		for id := 1; id <= n; id++ {
			c.join(ids.SessionID(id))
			s := c.session(ids.SessionID(id))
			s.Draining = rapid.IntRange(0, 4).Draw(t, "draining") == 0
			s.Leaving = rapid.IntRange(0, 6).Draw(t, "leaving") == 0
			s.HoldOff = rapid.IntRange(0, 6).Draw(t, "hold-off") == 0
			s.Contact = Contact(max(rapid.IntRange(-6, 2).Draw(t, "contact"), 0))
		}
		heaviest := 0.0
		for i := range c.in.Sections {
			s := &c.in.Sections[i]
			s.Owner = ids.SessionID(rapid.IntRange(0, n).Draw(t, "owner"))
			s.Keys = rapid.Uint64Range(0, 5000).Draw(t, "keys")
			s.Rate = rapid.Float64Range(0, 1000).Draw(t, "rate")
			if s.Owner != 0 && rapid.IntRange(0, 9).Draw(t, "moving") == 0 {
				s.Moving, s.To = true, ids.SessionID(rapid.IntRange(0, n+1).Draw(t, "to"))
			}
			heaviest = max(heaviest, s.weight())
		}
		c.in.Limits.MovingMax = rapid.IntRange(1, 64).Draw(t, "moving max")
		c.in.Limits.CoolDown = 1

		before := c.in
		moves := Plan(c.in)
		seen := map[ids.Section]bool{}
		started := 0
		for _, m := range moves {
			s := before.Sections[m.Section]
			if seen[m.Section] || m.From != s.Owner || m.To == m.From && m.Reason != Retarget {
				t.Fatalf("bad move %+v of %+v", m, s)
			}
			seen[m.Section] = true
			if m.To != 0 && !c.session(m.To).eligible() {
				t.Fatalf("%+v goes to a node that is to be emptied", m)
			}
			if m.To != 0 && c.session(m.To).Contact != Heard && (m.Reason == Balance || m.Reason == Empty && !c.session(m.From).Leaving) {
				t.Fatalf("%+v goes to a node that is not heard of", m)
			}
			if m.To == 0 && m.Reason != Retarget && !c.session(m.From).Leaving {
				t.Fatalf("%+v goes to nobody", m)
			}
			if m.Reason == Empty || m.Reason == Balance {
				started++
			}
		}
		moving := 0
		for _, s := range before.Sections {
			if s.Owner != 0 && s.Moving {
				moving++
			}
		}
		if started > 0 && started+moving > c.in.Limits.MovingMax {
			t.Fatalf("%d started with %d under way, limit %d", started, moving, c.in.Limits.MovingMax)
		}

		c.finish()
		for i := range c.in.Sections { // owners that do not exist cannot stay
			if s := &c.in.Sections[i]; s.Owner > ids.SessionID(n) {
				s.Owner = 0
			}
		}
		for i := range c.in.Sessions { // silence ends, one way or the other
			c.in.Sessions[i].Contact = Heard
		}
		c.settle(t)
		var takers []ids.SessionID
		for _, s := range c.in.Sessions {
			if s.eligible() {
				takers = append(takers, s.ID)
			}
		}
		if len(takers) == 0 {
			return
		}
		load, held := c.load(), c.owned()
		for id, n := range held {
			if n > 0 && !slices.Contains(takers, id) {
				t.Fatalf("%d sections are left with %d", n, id)
			}
		}
		var hi, lo, sum float64
		lo = -1
		for _, id := range takers {
			sum += load[id]
			hi = max(hi, load[id])
			if !c.session(id).HoldOff && (lo < 0 || load[id] < lo) {
				lo = load[id]
			}
		}
		if lo < 0 {
			return
		}
		limit := max(0.20*sum/float64(len(takers)), DefaultLimits().MinWeight, heaviest/usefulShare)
		if hi-lo > limit+1e-9 {
			t.Fatalf("loads %v differ by more than %v", load, limit)
		}
	})
}

func BenchmarkPlan(b *testing.B) {
	c := newCluster(1024, 1, 2, 3, 4, 5, 6, 7, 8)
	c.begin(Plan(c.in))
	c.join(9)
	for b.Loop() {
		Plan(c.in)
	}
}
