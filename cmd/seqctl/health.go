package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// silentAfter is without a word from a store long after it should have been heard of.
	silentAfter = 2 * time.Second
	// lagMax is how many entries a store may be behind under load.
	lagMax = 10_000
)

const (
	roleLeader  = "leader"
	stateSilent = "silent"
	stateGone   = "expired"
)

// lead is the Set's leader. Without one nobody knows of leases and contacts.
func (s *setJSON) lead() *storeJSON {
	for i := range s.Stores {
		if s.Stores[i].Role == roleLeader {
			return &s.Stores[i]
		}
	}
	return nil
}

// lag is how many entries a store is behind the leader.
func (s *setJSON) lag(n *storeJSON) uint64 {
	if l := s.lead(); l != nil && l.Applied > n.Applied {
		return l.Applied - n.Applied
	}
	return 0
}

func (n *storeJSON) contact() time.Duration {
	return time.Duration(n.LastContactMS) * time.Millisecond
}

func (n *storeJSON) silent() bool { return n.contact() >= silentAfter }

func (n *ownerJSON) lease() time.Duration { return time.Duration(n.LeaseMS) * time.Millisecond }

func (s *setJSON) expired(n *ownerJSON) bool {
	return s.lead() != nil && n.LeaseMS <= 0 || n.State == stateGone
}

// problems are what an operator should look at; empty when all is well.
func problems(sets []setJSON) []string {
	found := []string{}
	say := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	if len(sets) == 0 {
		say("the cluster has no sets")
	}
	for i := range sets {
		s := &sets[i]
		if s.unheard() {
			continue // that is said where it was asked
		}
		if s.lead() == nil {
			say("set %s: no leader: new keys, raises and moves wait; are a majority of its stores running?", s.Name)
		}
		for j := range s.Stores {
			n := &s.Stores[j]
			switch lag := s.lag(n); {
			case n.silent():
				say("set %s: store %s is silent for %v: is it running?", s.Name, n.ID, round(n.contact()))
			case n.Applied == 0 && lag > 0:
				say("set %s: store %s does not say how far it is", s.Name, n.ID)
			case lag > lagMax:
				say("set %s: store %s is %d entries behind", s.Name, n.ID, lag)
			}
		}
		if s.Unowned > 0 {
			say("set %s: %d of %d sections have no owner", s.Name, s.Unowned, s.Sections)
		}
		if len(s.Allocs) == 0 {
			say("set %s: no allocsvr: start one", s.Name)
		}
		for j := range s.Allocs {
			n := &s.Allocs[j]
			switch {
			case s.expired(n):
				say("set %s: the lease of %s has run out", s.Name, n.ID)
			case n.State == stateSilent:
				say("set %s: %s is silent, its lease ends in %v", s.Name, n.ID, round(n.lease()))
			}
		}
	}
	return found
}

// unheard: nobody of the Set has said anything of it.
func (s *setJSON) unheard() bool { return s.Sections == 0 && len(s.Stores) == 0 }

// moveProblems are of moves that do not get on. One that a target without a leader keeps
// from ending needs an operator, if the target is lost.
func moveProblems(moves []moveJSON, sets []setJSON) (found []string) {
	for i := range moves {
		m := &moves[i]
		target := slices.IndexFunc(sets, func(s setJSON) bool { return s.Name == m.To })
		switch gone := target >= 0 && sets[target].lead() == nil; {
		case m.State == moveAborting && gone:
			found = append(found, fmt.Sprintf("move %s from %s to %s waits for set %s to let go: bring a majority of its stores back; only if they are lost for good: seqctl set abort %s --target-lost",
				m.ID, m.From, m.To, m.To, m.ID))
		case m.State != moveAborting && m.Reason != "":
			found = append(found, fmt.Sprintf("move %s from %s to %s does not get on: %s", m.ID, m.From, m.To, m.Reason))
		}
	}
	return found
}

// round is a duration as exact as a person wants it.
func round(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}

func (a *app) printStatus(j *statusJSON) {
	fmt.Fprintf(&a.out, "cluster %s  %s  routes %d\n", orText(j.Cluster, "without a name"), j.ClusterID, j.RouteVersion)
	for _, p := range j.Problems {
		fmt.Fprintln(&a.out, a.badIf(true, "! "+p))
	}
	for i := range j.Moves {
		m := &j.Moves[i]
		fmt.Fprintf(&a.out, "move %s from %s to %s: %s\n", m.ID, m.From, m.To, m.line())
	}
	for i := range j.Sets {
		s := &j.Sets[i]
		if s.unheard() {
			fmt.Fprintf(&a.out, "\nset %s  %s\n", s.Name, a.badIf(true, "does not answer"))
		} else {
			fmt.Fprintf(&a.out, "\nset %s  %d sections, %s, %d moving  routes %d\n", s.Name, s.Sections,
				a.badIf(s.Unowned > 0, fmt.Sprintf("%d unowned", s.Unowned)), s.Moving, s.RouteVersion)
		}
		for _, r := range s.Ranges {
			fmt.Fprintf(&a.out, "  range %s\n", r)
		}
		a.printStores(s)
		a.printOwners(s)
		a.printSteps(s)
	}
}

func (a *app) printStores(s *setJSON) {
	t := newTable("STORE", "ADDR", "ROLE", ">APPLIED", ">LAG", ">CONTACT")
	for i := range s.Stores {
		n := &s.Stores[i]
		lag := s.lag(n)
		contact := "-"
		if n.LastContactMS > 0 {
			contact = round(n.contact()).String()
		}
		t.row(n.ID, n.Addr, n.Role, n.Applied, a.badIf(lag > lagMax, lag), a.badIf(n.silent(), contact))
	}
	fmt.Fprintln(&a.out)
	a.printTable(t)
}

func (a *app) printOwners(s *setJSON) {
	t := newTable("ALLOC", "ADDR", "STATE", ">SECTIONS", ">KEYS", ">RATE/S", ">LEASE")
	for i := range s.Allocs {
		n := &s.Allocs[i]
		lease := round(n.lease()).String()
		if s.lead() == nil {
			lease = "-"
		}
		t.row(n.ID, n.Addr, a.badIf(n.State == stateSilent || n.State == stateGone, n.State), n.Sections, n.Keys,
			fmt.Sprintf("%.1f", n.Rate), a.badIf(s.expired(n), lease))
	}
	fmt.Fprintln(&a.out)
	a.printTable(t)
}

// printSteps has one line for all nodes of a Set that treat a space alike.
func (a *app) printSteps(s *setJSON) {
	type line struct {
		stepsJSON
		nodes int
	}
	var lines []*line
	for i := range s.Allocs {
		for _, st := range s.Allocs[i].Steps {
			at := slices.IndexFunc(lines, func(l *line) bool {
				return l.Space == st.Space && l.Policy == st.Policy && l.Min == st.Min && l.Max == st.Max && l.TargetMS == st.TargetMS
			})
			if at < 0 {
				at = len(lines)
				lines = append(lines, &line{stepsJSON: st})
			} else {
				lines[at].Raises += st.Raises
				lines[at].numbers += st.numbers
			}
			lines[at].nodes++
		}
	}
	slices.SortStableFunc(lines, func(x, y *line) int { return strings.Compare(x.Space, y.Space) })
	t := newTable("SPACE", "STEPS", ">ALLOCS", ">RAISES", ">MEAN")
	for _, l := range lines {
		policy := fmt.Sprintf("%s %d", l.Policy, l.Min)
		if l.Max != l.Min {
			policy += fmt.Sprintf("-%d, %v", l.Max, time.Duration(l.TargetMS)*time.Millisecond)
		}
		mean := "-"
		if l.Raises > 0 {
			mean = fmt.Sprintf("%.0f", float64(l.numbers)/float64(l.Raises))
		}
		t.row(l.Space, policy, l.nodes, l.Raises, mean)
	}
	if len(lines) > 0 {
		fmt.Fprintln(&a.out)
	}
	a.printTable(t)
}
