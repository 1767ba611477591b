package raise

import (
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// adaptive chooses each key's step so that it lasts about the target, by how fast
// the key's numbers went since its last raise. From one raise to the next a step
// grows or shrinks fourfold at most: a burst is no rate.
//
// What it knows is in a table of fixed size, a key's in one of four places, 16
// bytes each, whatever the number of keys. A new key takes, of its four, a place
// that is free, else one that has long been of no use, else that of the smallest
// step. A key that lost its place begins again at the least step, as one that was
// never raised: more raises, never more numbers at risk.
type adaptive struct {
	steps Steps
	begun time.Time
	mu    [adaptiveStripes]sync.Mutex
	sets  [][adaptiveWays]place
}

// place is what is known of one key.
type place struct {
	tag  uint32 // of the key; 0: free
	at   uint32 // ms of the last raise since begun, modulo 2^32
	cur  uint32 // low bits of the last number issued then
	step uint32 // of that raise
}

const (
	adaptiveStripes = 64
	adaptiveWays    = 4
	adaptiveChange  = 4
	// adaptiveStale, in targets: a key that was not raised for so long has nothing to lose.
	adaptiveStale = 8
)

func newAdaptive(s Steps) *adaptive {
	keys := s.Keys
	if keys <= 0 {
		keys = DefaultAdaptiveKeys
	}
	n := 1
	for n*adaptiveWays < keys {
		n *= 2
	}
	return &adaptive{steps: s, begun: time.Now(), sets: make([][adaptiveWays]place, n)}
}

// nextStep is the step after one of last, of which used numbers went in elapsed.
func nextStep(s Steps, last, used ids.Seq, elapsed time.Duration) ids.Seq {
	elapsed = max(elapsed, time.Millisecond)
	wanted := ids.Seq(min(float64(used)*float64(s.Target)/float64(elapsed), float64(s.Max)))
	wanted = min(max(wanted, last/adaptiveChange), last*adaptiveChange)
	return min(max(wanted, s.Min), s.Max)
}

// lock finds where a key's knowledge would be.
func (a *adaptive) lock(k ids.Key) (set *[adaptiveWays]place, tag uint32, mu *sync.Mutex) {
	h := (k.Hi*0x9e3779b97f4a7c15 ^ k.Lo) * 0xbf58476d1ce4e5b9
	h ^= h >> 29
	i := h & uint64(len(a.sets)-1)
	mu = &a.mu[i%adaptiveStripes]
	mu.Lock()
	return &a.sets[i], uint32(h>>32) | 1, mu
}

func find(set *[adaptiveWays]place, tag uint32) *place {
	for i := range set {
		if set[i].tag == tag {
			return &set[i]
		}
	}
	return nil
}

func (a *adaptive) ms(now time.Time) uint32 { return uint32(now.Sub(a.begun).Milliseconds()) }

// Step implements Policy.
func (a *adaptive) Step(k ids.Key, cur ids.Seq, now time.Time) ids.Seq {
	set, tag, mu := a.lock(k)
	defer mu.Unlock()
	p := find(set, tag)
	if p == nil || cur == 0 {
		return a.steps.Min
	}
	elapsed := time.Duration(a.ms(now)-p.at) * time.Millisecond
	return nextStep(a.steps, ids.Seq(p.step), ids.Seq(uint32(cur)-p.cur), elapsed)
}

// Granted implements Policy.
func (a *adaptive) Granted(k ids.Key, cur, step ids.Seq, now time.Time) {
	set, tag, mu := a.lock(k)
	defer mu.Unlock()
	p := find(set, tag)
	if p == nil {
		p = a.victim(set, a.ms(now))
	}
	*p = place{tag: tag, at: a.ms(now), cur: uint32(cur), step: uint32(step)}
}

func (a *adaptive) victim(set *[adaptiveWays]place, now uint32) *place {
	worst := &set[0]
	for i := range set {
		p := &set[i]
		if p.tag == 0 || time.Duration(now-p.at)*time.Millisecond > adaptiveStale*a.steps.Target {
			return p
		}
		if p.step < worst.step {
			worst = p
		}
	}
	return worst
}

// Last implements Policy.
func (a *adaptive) Last(k ids.Key) ids.Seq {
	set, tag, mu := a.lock(k)
	defer mu.Unlock()
	if p := find(set, tag); p != nil {
		return ids.Seq(p.step)
	}
	return a.steps.Min
}
