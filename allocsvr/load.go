package allocsvr

import (
	"math"
	"sync"
	"time"
)

// rateMemory is the time constant of the smoothed rates: long enough not to
// make sections move for a burst, short enough to follow a shift of the load.
const rateMemory = 10 * time.Second

// load is what a heartbeat reports.
type load struct {
	keys        int64
	rate        float64
	section     []uint32
	sectionKeys []uint64
	sectionRate []float32
}

// loadBook computes rates between looks. One look at a time.
type loadBook struct {
	mu   sync.Mutex
	w    *world
	last time.Time
	rate float64 // of the whole world, at the last look
}

// look reports the sections that serve, and moves their rates on.
func (b *loadBook) look(s *Server, w *world) load {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	dt := now.Sub(b.last).Seconds()
	if b.w != w {
		b.w, b.last, dt = w, now, 0
	}
	weight := 1 - math.Exp(-dt/rateMemory.Seconds())
	var l load
	for i := range w.sections {
		sec := &w.sections[i]
		taken := w.taken.of(sec.no)
		if dt > 0 {
			sec.rate += weight * (float64(taken-sec.seen)/dt - sec.rate)
			sec.seen = taken
		}
		if !sec.open.Load() {
			continue
		}
		keys := s.arena.SectionKeys(sec.no)
		if keys == 0 {
			continue
		}
		l.keys += keys
		l.rate += sec.rate
		l.section = append(l.section, uint32(sec.no))
		l.sectionKeys = append(l.sectionKeys, uint64(keys))
		l.sectionRate = append(l.sectionRate, float32(sec.rate))
	}
	b.last, b.rate = now, l.rate
	return l
}

// lastRate is the rate at the last look, which the heartbeats take.
func (b *loadBook) lastRate() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rate
}
