package sim

import (
	"math/rand/v2"
	"time"
)

// source is a stream of random numbers for one purpose. Each message, each
// client and the fault plan draw from a source of their own, made from the seed
// and the purpose's name: a goroutine that runs a little earlier in one run
// than in the other then shifts nobody else's luck.
type source struct{ pcg rand.PCG }

// nameHash is FNV-1a, so that a name means the same in every process.
func nameHash(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return h
}

func newSource(seed, purpose, number uint64) source {
	var s source
	s.pcg.Seed(seed*0x9e3779b97f4a7c15+purpose, number*0xbf58476d1ce4e5b9+1)
	return s
}

// chance is true with probability p.
func (s *source) chance(p float64) bool {
	return p > 0 && float64(s.pcg.Uint64()>>11)/(1<<53) < p
}

// below is uniform in [0, n).
func (s *source) below(n int) int {
	if n <= 0 {
		return 0
	}
	return int(s.pcg.Uint64() % uint64(n))
}

// between is uniform in [lo, hi].
func (s *source) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(s.pcg.Uint64()%uint64(hi-lo+1))
}

// within is uniform in [lo, hi].
func (s *source) within(lo, hi float64) float64 {
	return lo + (hi-lo)*float64(s.pcg.Uint64()>>11)/(1<<53)
}
