package placement

import "github.com/seqsvr/seqsvr/internal/ids"

// usefulShare: a move must not carry more than this share of the difference
// between giver and taker, or it only swaps their roles.
const usefulShare = 0.9

// balance moves sections from the most to the least loaded. Each move is the
// one that brings the two closest together, so that few are needed.
func (p *plan) balance() {
	if !p.heard || !p.uneven() {
		return
	}
	stuck := map[ids.SessionID]bool{}
	for p.budget > 0 {
		from, to := p.most(stuck), p.least()
		gap := p.load[from] - p.load[to]
		if from == 0 || from == to || gap <= p.limits.Fine*p.mean() {
			return
		}
		sec := p.closest(from, gap)
		if sec < 0 {
			stuck[from] = true
			continue
		}
		p.move(sec, to, Balance)
		p.budget--
	}
}

// uneven: it is worth the trouble.
func (p *plan) uneven() bool {
	from, to := p.most(nil), p.least()
	if from == 0 {
		return false
	}
	gap := p.load[from] - p.load[to]
	if p.in.Force || p.in.Balancing {
		return gap > p.limits.Fine*p.mean()
	}
	return gap > p.limits.Threshold*p.mean() && gap > p.limits.MinWeight
}

// mean is the load of each if all who may have sections had the same.
func (p *plan) mean() float64 {
	var sum float64
	n := 0
	for i := range p.in.Sessions {
		if s := &p.in.Sessions[i]; s.eligible() {
			sum += p.load[s.ID]
			n++
		}
	}
	return sum / float64(max(n, 1))
}

// most is the most loaded session that has something to give, the first of
// equals; 0 if there is none. Those to be emptied are not balanced.
func (p *plan) most(except map[ids.SessionID]bool) ids.SessionID {
	var most ids.SessionID
	for _, id := range p.eligible() {
		if !except[id] && (most == 0 || p.load[id] > p.load[most]) {
			most = id
		}
	}
	return most
}

// closest is the section of from whose move brings the two closest: the heaviest
// up to half the gap, else the lightest that still helps. -1 if none does.
func (p *plan) closest(from ids.SessionID, gap float64) int {
	under, over := -1, -1
	for i := range p.in.Sections {
		s := &p.in.Sections[i]
		if s.Owner != from || s.Moving || p.planned[i] || p.cooling(s) {
			continue
		}
		switch w := s.weight(); {
		case w <= gap/2:
			if under < 0 || w > p.in.Sections[under].weight() {
				under = i
			}
		case w <= usefulShare*gap:
			if over < 0 || w < p.in.Sections[over].weight() {
				over = i
			}
		}
	}
	if under >= 0 {
		return under
	}
	return over
}

func (p *plan) cooling(s *Section) bool {
	return !p.in.Force && s.MovedAt != 0 && p.in.Now < s.MovedAt+p.limits.CoolDown
}
