package sim

import (
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// custody watches that no two Sets have a key at one time, by two measures:
//
//   - After every entry that a StoreSvr applies: at most one Set's state may speak
//     for the key, which is that it owns it and has not sealed it. Of each Set the
//     newest state counts that any of its StoreSvrs has gone through. A Set gives a
//     key up in an entry that its leader has applied before it answers, and what
//     the other Set does about it comes after that answer; so this is no matter of
//     who was seen first.
//   - Every custodyEvery: at most one Set has an AllocSvr that could issue a number of
//     the key just now.
type custody struct {
	c     *Cluster
	names []string
	keys  []ids.Key

	mu     sync.Mutex
	speaks map[string]*spoken // by Set
}

// spoken is for which keys a Set speaks in the newest of its states.
type spoken struct {
	index uint64
	keys  []bool
}

// custodyEvery is how often the AllocSvrs are looked at.
const custodyEvery = 20 * time.Millisecond

func newCustody(c *Cluster) *custody {
	w := &custody{c: c, speaks: map[string]*spoken{}}
	for _, key := range c.keys() {
		w.mind(key)
	}
	return w
}

// mind has one more key looked at; nothing has begun to run yet.
func (w *custody) mind(key string) {
	k, err := parseKey(key)
	if err != nil {
		panic(err)
	}
	w.names, w.keys = append(w.names, key), append(w.keys, k)
}

// maySpeak: a Set with this state speaks for the key.
func maySpeak(m *state.Meta, k ids.Key) bool {
	if !sets.Has(m.Ranges, k.Space, k.Position()) {
		return false
	}
	for _, o := range m.Out {
		if o.Phase == state.OutSealed && o.Range.Contains(k.Space, k.Position()) {
			return false
		}
	}
	return true
}

// applied looks at a state that a StoreSvr of a Set has reached.
func (w *custody) applied(set string, index uint64, m *state.Meta) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.speaks[set]
	if s == nil {
		s = &spoken{keys: make([]bool, len(w.keys))}
		w.speaks[set] = s
	}
	if index <= s.index {
		return // another replica was here before
	}
	s.index = index
	for i, k := range w.keys {
		s.keys[i] = maySpeak(m, k)
		if !s.keys[i] {
			continue
		}
		for other, o := range w.speaks {
			if other != set && o.keys[i] {
				w.c.monitor.violation("two sets own %s: %s as of its entry %d, and %s as of its entry %d", w.names[i], set, s.index, other, o.index)
				return
			}
		}
	}
}

// look finds keys of which two Sets could issue numbers now.
func (w *custody) look() {
	for i := range w.keys {
		w.lookAt(i)
	}
}

func (w *custody) lookAt(i int) {
	first := ""
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	for _, set := range w.c.sets {
		for _, id := range set.allocs {
			h := w.c.allocs[id]
			if h.server == nil || !h.server.MayIssue(w.keys[i]) {
				continue
			}
			if first != "" && w.c.allocs[first].set != set {
				w.c.monitor.violation("two sets serve %s: %s and %s could both issue its next number", w.names[i], first, id)
				return
			}
			first = id
		}
	}
}

// watch looks now and then until stop is closed.
func (w *custody) watch(stop <-chan struct{}) {
	t := time.NewTicker(custodyEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			w.look()
		case <-stop:
			return
		}
	}
}
