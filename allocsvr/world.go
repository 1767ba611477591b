package allocsvr

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/handover"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/router"
)

// world is everything that belongs to one session. A new session is a new
// world; nothing of the old one is served or sent again.
type world struct {
	clusterID string
	set       string
	session   ids.SessionID
	spaces    []ids.Space
	sections  []section
	keeper    *keeper
	// stage has the request ids of sections that are about to come.
	stage *handover.Stage
	// lost is set, for good, before anything of the world is dropped.
	lost atomic.Bool
	// ranges is the newest table known to say which positions the Set owns; nil
	// while none does, then nothing is served.
	ranges atomic.Pointer[ranges]
	// told: a directive has been carried out, so that "owns nothing" is knowledge.
	told atomic.Bool
}

func newWorld(clusterID, set string, session ids.SessionID, spaces []ids.Space, sections uint32) *world {
	w := &world{
		clusterID: clusterID, set: set, session: session, spaces: spaces, sections: make([]section, sections),
		stage: handover.NewStage(clusterID, session, sections),
	}
	for i := range w.sections {
		w.sections[i].no = ids.Section(i)
	}
	return w
}

func (w *world) section(k ids.Key) *section { return &w.sections[k.Section(uint32(len(w.sections)))] }

func (w *world) space(name string) (ids.Space, bool) {
	for _, sp := range w.spaces {
		if sp.Name == name {
			return sp, true
		}
	}
	return ids.Space{}, false
}

// ranges is what the Set map says of one Set.
type ranges struct {
	table *router.Table
	set   string
	// whole: every position of every space is the Set's, so that no key needs a look.
	whole bool
}

func rangesOf(t *router.Table, set string) *ranges {
	r := &ranges{table: t, set: set, whole: true}
	for _, e := range t.Map.Entries {
		r.whole = r.whole && e.Set == set
	}
	return r
}

// has tells whether the key is one of the Set's. Two Sets must never serve one key.
func (r *ranges) has(k ids.Key) bool {
	if r == nil {
		return false
	}
	if r.whole {
		return true
	}
	set, ok := r.table.Map.Lookup(k.Space, k.Position())
	return ok && set == r.set
}

// phase of a section's life here: absent → serving → closing → absent.
type phase uint8

const (
	absent phase = iota
	serving
	// closing is one-way: the section is served again only in another epoch.
	closing
)

// section is one section as this process has it.
type section struct {
	// open: callers may take numbers. It is set only while phase is serving, and
	// only with mu held; callers read it without, inside the arena's guard.
	open atomic.Bool
	// taken counts the numbers issued, for the load report.
	taken atomic.Uint64
	_     [48]byte

	mu    sync.Mutex
	no    ids.Section
	phase phase
	epoch ids.Epoch // of the phase; of the last one when absent
	// extending has the raises queued or under way, at most one a key.
	extending map[ids.Key]*extend
	// holes has the keys that were acquired with a hole which no caller was told
	// of yet. They have nothing in the arena, so the hot path does not find them.
	holes map[ids.Key]hole
	// rate of numbers a second, smoothed; seen is taken at the last look. The load report's own.
	rate float64
	seen uint64
}

// hole is an acquired key's range, and what is missing below it.
type hole struct {
	floor, bound ids.Seq
	from, to     ids.Seq
}

// start makes the section serve. The arena has it open at that epoch.
func (sec *section) start(w *world, e ids.Epoch) bool {
	sec.mu.Lock()
	defer sec.mu.Unlock()
	if w.lost.Load() {
		return false
	}
	sec.phase, sec.epoch = serving, e
	sec.extending = map[ids.Key]*extend{}
	sec.holes = map[ids.Key]hole{}
	sec.open.Store(true)
	return true
}

// shut stops callers from entering, for good in this epoch. Those inside may still be taking.
func (sec *section) shut() {
	sec.mu.Lock()
	defer sec.mu.Unlock()
	sec.open.Store(false)
	sec.phase = closing
	sec.holes = nil
}

// gone ends the section's life here.
func (sec *section) gone() {
	sec.mu.Lock()
	defer sec.mu.Unlock()
	sec.open.Store(false)
	sec.phase = absent
	sec.holes = nil
}

func (sec *section) state() (phase, ids.Epoch) {
	sec.mu.Lock()
	defer sec.mu.Unlock()
	return sec.phase, sec.epoch
}

// servingAt needs mu.
func (sec *section) servingAt(w *world, e ids.Epoch) bool {
	return sec.phase == serving && sec.epoch == e && !w.lost.Load()
}

// lose drops the world: nothing of it is served once this returned.
func (w *world) lose() {
	w.lost.Store(true)
	for i := range w.sections {
		w.sections[i].gone()
	}
}

// bell wakes everyone who waits for something to change.
type bell struct {
	mu sync.Mutex
	ch chan struct{}
}

func (b *bell) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// handOverWait is how long a caller is kept while a section changes hands here,
// so that it can be told the new owner instead of being sent away to look for it.
const handOverWait = 250 * time.Millisecond
