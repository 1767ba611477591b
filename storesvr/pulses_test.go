package storesvr

import (
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

func TestASessionIsSilentOnceItsHeartbeatsAreOverdue(t *testing.T) {
	const beat = 400 * time.Millisecond
	p := newPulses(beat)
	now := time.Hour
	p.heard(1, now)
	if p.silent(1, now+2*beat-1) || !p.silent(1, now+2*beat) {
		t.Error("not silent after exactly two intervals")
	}
	p.heard(1, now-beat) // read late
	if p.silent(1, now+2*beat-1) {
		t.Error("an older heartbeat made it silent")
	}
	p.heard(1, now+3*beat)
	if p.silent(1, now+4*beat) {
		t.Error("silent although it was heard of again")
	}
	p.doubt(1, now+4*beat)
	p.heard(1, now+4*beat-1) // sent before the other's Hello
	if !p.silent(1, now+4*beat) {
		t.Error("not silent although another process speaks for its node")
	}
	p.heard(1, now+4*beat+1)
	if p.silent(1, now+4*beat+1) {
		t.Error("doubted although it was heard of since")
	}
	p.doubt(1, now+5*beat)
	p.again(now + time.Hour)
	if p.silent(1, now+time.Hour+beat) {
		t.Error("silent while the leader was held up")
	}
	p.forget(1)
	if !p.silent(1, now+time.Hour) {
		t.Error("one that was never heard of is not silent")
	}
}

func (a *alloc) setQuiet(quiet bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.quiet = quiet
}

// untilSilent: by then the session's heartbeats are overdue and its lease is not over.
const untilSilent = overdueBeats * testTTL / 5

// moveAgain lets sections be balanced as soon as they have moved.
func moveAgain(c *Config) { c.Placement.CoolDown = 1 }

// abc attaches AllocSvrs and waits until they share the sections.
func abc(t *testing.T, g *group, nodes ...string) (all []*alloc) {
	for _, n := range nodes {
		all = append(all, attach(t, g.leader, hello(n)))
	}
	share := 16 / len(nodes)
	eventually(t, 10*time.Second, "balance", func() bool {
		for _, a := range all {
			if n := a.owned(); n < share-1 || n > share+1 {
				return false
			}
		}
		return true
	})
	time.Sleep(5 * time.Second) // wait out a new leader's patience
	return all
}

func setDraining(t *testing.T, g *group, node string, draining bool) {
	t.Helper()
	if rep, err := g.leader().propose(t.Context(), state.SetDraining{Node: node, Draining: draining}); err != nil || rep.Refusal != state.OK {
		t.Fatalf("%v %v", rep, err)
	}
}

func TestADrainedNodeServesOnWhileTheOthersAreSilent(t *testing.T) {
	simulate(t, 1, moveAgain, func(t *testing.T, g *group) {
		all := abc(t, g, "a1", "a2")
		a, b := all[0], all[1]
		defer a.crash()
		defer b.crash()
		b.setQuiet(true)
		time.Sleep(untilSilent)
		setDraining(t, g, "a1", true)
		time.Sleep(testTTL / 5)
		if n := a.owned(); n != 8 {
			t.Errorf("a1 has %d of 8 sections, and nobody else is heard of", n)
		}
		b.setQuiet(false)
		eventually(t, testTTL/5+20*time.Millisecond, "a2 is heard of again and has all", func() bool { return b.owned() == 16 })
	})
}

func TestNothingIsBalancedToASilentNode(t *testing.T) {
	simulate(t, 1, moveAgain, func(t *testing.T, g *group) {
		all := abc(t, g, "a1", "a2")
		a, b := all[0], all[1]
		defer a.crash()
		defer b.crash()
		setDraining(t, g, "a2", true)
		eventually(t, time.Second, "a2 is empty", func() bool { return a.owned() == 16 })
		b.setQuiet(true)
		time.Sleep(untilSilent)
		setDraining(t, g, "a2", false)
		time.Sleep(testTTL / 5)
		if n := a.owned(); n != 16 {
			t.Errorf("a1 has %d of 16 sections, and nobody else is heard of", n)
		}
		b.setQuiet(false)
		eventually(t, testTTL/5+20*time.Millisecond, "a2 is heard of again and has its share", func() bool { return b.owned() == 8 })
	})
}

func TestLostSectionsGoToWhoIsHeardOf(t *testing.T) {
	simulate(t, 1, moveAgain, func(t *testing.T, g *group) {
		all := abc(t, g, "a1", "a2", "a3")
		a, b, c := all[0], all[1], all[2]
		defer b.crash()
		defer c.crash()
		had, lost := c.owned(), a.owned()
		a.setQuiet(true)
		time.Sleep(testTTL - untilSilent - testTTL/5)
		b.setQuiet(true)
		eventually(t, testTTL, "take-over", func() bool { return b.owned()+c.owned() == 16 })
		if n := c.owned(); n != had+lost {
			t.Errorf("a3 was given %d of %d sections, the others a silent node", n-had, lost)
		}
		b.setQuiet(false)
		eventually(t, 5*time.Second, "a2 is heard of again and has its share", func() bool { return b.owned() >= 7 })
	})
}

// With nobody to prefer, silence is no reason to leave a section to nobody.
func TestLostSectionsGoToASilentNodeRatherThanNobody(t *testing.T) {
	simulate(t, 1, moveAgain, func(t *testing.T, g *group) {
		all := abc(t, g, "a1", "a2")
		a, b := all[0], all[1]
		defer b.crash()
		a.setQuiet(true)
		time.Sleep(testTTL - untilSilent - testTTL/5)
		b.setQuiet(true)
		eventually(t, testTTL, "take-over", func() bool { return b.owned() == 16 })
	})
}

// A machine that was lost and is back says Hello long before its lease is over.
func TestAMoveGetsAnotherTargetWhenItsOwnIsNotHeardOf(t *testing.T) {
	for name, silences := range map[string]func(*testing.T, *group, *alloc){
		"overdue": func(_ *testing.T, _ *group, b *alloc) { b.setQuiet(true) },
		"replaced": func(t *testing.T, g *group, b *alloc) {
			b.setQuiet(true)
			if again := attach(t, g.leader, hello("a2")); again.refusal.GetCode() != seqpb.RefusalCode_REFUSAL_NODE_IN_USE {
				t.Errorf("told %v", again.refusal)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 1, moveAgain, func(t *testing.T, g *group) {
				all := abc(t, g, "a1", "a2", "a3")
				for _, a := range all {
					defer a.crash()
				}
				a, b := all[0], all[1]
				a.mu.Lock()
				a.keep = true // so that the moves stay under way
				a.mu.Unlock()
				setDraining(t, g, "a1", true)
				heads := func() (to map[string]bool) {
					to = map[string]bool{}
					a.mu.Lock()
					defer a.mu.Unlock()
					for _, n := range a.directive.Next {
						to[n.Addr] = true
					}
					return to
				}
				eventually(t, time.Second, "to both", func() bool { return len(heads()) == 2 })
				silences(t, g, b)
				within := untilSilent + 20*time.Millisecond
				if name == "replaced" {
					within = 20 * time.Millisecond
				}
				eventually(t, within, "to a3 alone", func() bool { to := heads(); return len(to) == 1 && to["a3:7000"] })
			})
		})
	}
}
