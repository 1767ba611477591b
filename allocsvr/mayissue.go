package allocsvr

import "github.com/seqsvr/seqsvr/internal/ids"

// MayIssue tells whether a number of the key could leave this node now, without a
// word from the store group: what no two nodes may answer yes to at one time. It
// is for simulations to hold against each other; serving looks for itself.
func (s *Server) MayIssue(k ids.Key) bool {
	w := s.world.Load()
	if w == nil || w.lost.Load() || !w.knows(k) {
		return false
	}
	defer s.arena.Guard().Enter().Exit()
	sec := w.section(k)
	if !s.session.Alive() || !sec.open.Load() || !w.ranges.Load().has(k) {
		return false
	}
	if cell, ok := s.arena.Find(k); ok {
		if cur, bound, closed := cell.Load(); !closed && cur < bound {
			return true
		}
	}
	sec.mu.Lock()
	defer sec.mu.Unlock()
	_, hole := sec.holes[k]
	return hole && sec.phase == serving
}
