package arena

import "sync/atomic"

// fetchLine starts to bring the cache line of p. It reads nothing, so p may be
// memory that is given away or unmapped this moment.
//
//go:noescape
func fetchLine(p *atomic.Uint64)
