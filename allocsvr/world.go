package allocsvr

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/handover"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/router"
	"github.com/seqsvr/seqsvr/sets"
)

// world is everything that belongs to one session. A new session is a new
// world; nothing of the old one is served or sent again.
type world struct {
	clusterID string
	set       string
	session   ids.SessionID
	spaces    []ids.Space
	steps     []*spaceSteps // by space id
	sections  []section
	taken     *takings
	keeper    *keeper
	sweeper   *sweeper
	early     *early
	// stage has the request ids of sections that are about to come.
	stage *handover.Stage
	// lost is set, for good, before anything of the world is dropped.
	lost atomic.Bool
	// ranges is what may be served, by the newest table known and what is frozen;
	// nil while no table is known, then nothing is served.
	ranges atomic.Pointer[ranges]
	// rangesMu orders the changes of ranges. frozen are those that are leaving;
	// gained is, per section, when keys came into the Set last, in Unix ms, and
	// gains how often some did.
	rangesMu sync.Mutex
	frozen   []sets.Range
	gained   []uint64
	gains    []uint32
	// told: a directive has been carried out, so that "owns nothing" is knowledge.
	told atomic.Bool
}

func newWorld(clusterID, set string, session ids.SessionID, spaces []ids.Space, steps []*spaceSteps, sections uint32) *world {
	w := &world{
		clusterID: clusterID, set: set, session: session, spaces: spaces, steps: steps, sections: make([]section, sections),
		stage: handover.NewStage(clusterID, session, sections), taken: newTakings(sections), gained: make([]uint64, sections), gains: make([]uint32, sections),
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

// learn takes the newest table into the ranges. Before keys are served that were
// not the Set's, gain is told of their sections: what it remembers of them begins
// there. first: the table is what a process before this one knew, at the least.
func (w *world) learn(t *router.Table, first bool, gain func(no ids.Section, nowMS uint64)) {
	w.rangesMu.Lock()
	defer w.rangesMu.Unlock()
	next, now := rangesOf(t, w.set, w.frozen), uint64(time.Now().UnixMilli())
	if !first {
		for _, r := range w.ranges.Load().gained(next, t.Map.Version) {
			eachSection(r, len(w.sections), func(no ids.Section) {
				w.gained[no] = now
				w.gains[no]++
				gain(no, now)
			})
		}
	}
	w.ranges.Store(next)
}

// freeze has nothing served of the frozen ranges, and of no others that were.
func (w *world) freeze(frozen []sets.Range, t *router.Table) {
	w.rangesMu.Lock()
	defer w.rangesMu.Unlock()
	w.frozen = frozen
	if w.ranges.Load() != nil {
		w.ranges.Store(rangesOf(t, w.set, frozen))
	}
}

// gainedAt is when keys of the section came into the Set last; 0 for never.
func (w *world) gainedAt(no ids.Section) uint64 {
	w.rangesMu.Lock()
	defer w.rangesMu.Unlock()
	return w.gained[no]
}

// gainsOf is how often keys of the section came into the Set. What was known of
// such a key may be out of date: it was another Set's meanwhile.
func (w *world) gainsOf(no ids.Section) uint32 {
	w.rangesMu.Lock()
	defer w.rangesMu.Unlock()
	return w.gains[no]
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
	_    [60]byte

	mu    sync.Mutex
	no    ids.Section
	phase phase
	epoch ids.Epoch // of the phase; of the last one when absent
	// extending has the raises queued or under way, at most one a key.
	extending map[ids.Key]*extend
	// most is how many there were at once, since the map was made.
	most int
	// holes has the keys that were acquired with a hole which no caller was told
	// of yet. They have nothing in the arena, so the hot path does not find them.
	holes map[ids.Key]hole
	// returning has the closed keys whose hand-back is not acknowledged; see evict.go.
	returning map[ids.Key]*eviction
	// doubted keys stay closed: the store group contradicts the arena.
	doubted map[ids.Key]bool
	// rate of numbers a second, smoothed; seen is taken at the last look. The load report's own.
	rate float64
	seen uint64
}

// hole is an acquired key's range, and what is missing below it.
type hole struct {
	floor, bound ids.Seq
	from, to     ids.Seq
}

// forgetMany is the most raises at once whose map is kept.
const forgetMany = 16

// forget takes a raise out. A map never gives memory back: one that a storm of cold
// keys has filled is made anew when it is empty, or each section would keep the
// room for its largest storm. It needs sec.mu.
func (sec *section) forget(e *extend) {
	sec.most = max(sec.most, len(sec.extending))
	delete(sec.extending, e.key)
	if len(sec.extending) == 0 && sec.most > forgetMany {
		sec.extending, sec.most = map[ids.Key]*extend{}, 0
	}
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
	sec.returning = map[ids.Key]*eviction{}
	sec.doubted = nil
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
