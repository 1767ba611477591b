package dedupe

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// DefaultWindow is how long a request id is remembered unless its space says otherwise.
const DefaultWindow = 20 * time.Minute

// DefaultEntriesMax bounds the table: some 40 MB.
const DefaultEntriesMax = 1 << 20

// Options of a Table.
type Options struct {
	Arena *arena.Arena
	// EntriesMax bounds the records of all sections; 0 is DefaultEntriesMax. Records
	// come in pages of 127 that belong to one section, so a table for many sections
	// needs some more to be of use.
	EntriesMax int
	// Window is for how long records are of use; 0 is DefaultWindow.
	Window time.Duration
	Logger *zap.Logger
}

// SpaceOptions is what differs for one space. The zero value of a field: nothing.
type SpaceOptions struct {
	Window time.Duration
	// EntriesMax bounds the records of the space's keys, within Options.EntriesMax.
	EntriesMax int
}

// limits is what holds for single spaces.
type limits struct {
	windowMS map[ids.SpaceID]uint64
	longest  uint64 // of all windows
	pagesMax map[ids.SpaceID]int
}

// Table is the request-id window of one AllocSvr. All methods may be called from
// any goroutine, and, but for New, none before the arena was Reset or Adopted.
type Table struct {
	arena    *arena.Arena
	log      *zap.Logger
	windowMS uint64
	pagesMax int
	limits   atomic.Pointer[limits]

	sectionsMu sync.RWMutex
	sections   []*section
	count      uint32 // sections of the resumed arena; used by keep only

	mu     sync.Mutex // after any section's
	pages  map[ids.SpaceID]*pageQueue
	live   int // pages in them
	serial uint64
	// forgotten counts records dropped for want of room, before their time or after.
	forgotten atomic.Uint64
}

// New makes the window of an arena. Call it before the arena's Adopt.
func New(o Options) *Table {
	if o.EntriesMax <= 0 {
		o.EntriesMax = DefaultEntriesMax
	}
	if o.Window <= 0 {
		o.Window = DefaultWindow
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	t := &Table{
		arena: o.Arena, log: o.Logger,
		windowMS: uint64(o.Window.Milliseconds()),
		pagesMax: pagesFor(o.EntriesMax),
		pages:    make(map[ids.SpaceID]*pageQueue),
	}
	t.SetSpaces(nil)
	o.Arena.OnAdopt(t.resumed, t.keep)
	return t
}

// pagesFor is how many pages hold so many records.
func pagesFor(entries int) int { return (entries + pageEntries - 1) / pageEntries }

// SetSpaces says what differs for single spaces. Call it before the arena is Reset
// or Adopted, each time.
func (t *Table) SetSpaces(spaces map[ids.SpaceID]SpaceOptions) {
	l := &limits{windowMS: map[ids.SpaceID]uint64{}, longest: t.windowMS, pagesMax: map[ids.SpaceID]int{}}
	for id, o := range spaces {
		if o.Window > 0 {
			l.windowMS[id] = uint64(o.Window.Milliseconds())
			l.longest = max(l.longest, l.windowMS[id])
		}
		if o.EntriesMax > 0 {
			l.pagesMax[id] = pagesFor(o.EntriesMax)
		}
	}
	t.limits.Store(l)
}

func (t *Table) window(s ids.SpaceID) uint64 {
	if w, ok := t.limits.Load().windowMS[s]; ok {
		return w
	}
	return t.windowMS
}

func (t *Table) longest() uint64 { return t.limits.Load().longest }

func (t *Table) section(no ids.Section) *section {
	t.sectionsMu.RLock()
	if int(no) < len(t.sections) {
		defer t.sectionsMu.RUnlock()
		return t.sections[no]
	}
	t.sectionsMu.RUnlock()
	t.sectionsMu.Lock()
	defer t.sectionsMu.Unlock()
	for len(t.sections) <= int(no) {
		t.sections = append(t.sections, &section{t: t, no: ids.Section(len(t.sections))})
	}
	return t.sections[no]
}

// Kind is what Begin found.
type Kind uint8

const (
	// Miss: the request is new; it is the caller's to carry out with the Token.
	Miss Kind = iota + 1
	// Hit: it was answered before; First is the answer.
	Hit
	// Busy: it is being carried out; wait for Pending.
	Busy
)

// Outcome of Begin.
type Outcome struct {
	Kind  Kind
	First ids.Seq // of a Hit
	// AfterHole, of a Hit: see Entry.
	AfterHole bool
	Token     *Token   // of a Miss
	Pending   *Pending // of Busy
	// Since when (Unix ms) all answers for keys of this section and space are remembered.
	Since uint64
}

// Begin looks the request id up. n must be at least 1. The errors are *MismatchError
// and ErrNotReady.
func (t *Table) Begin(no ids.Section, key ids.Key, id ID, n uint32, now uint64) (Outcome, error) {
	d := digestOf(key, id)
	defer t.arena.Guard().Enter().Exit()
	s, err := t.lock(no, now)
	if err != nil {
		return Outcome{}, err
	}
	defer s.mu.Unlock()
	since := s.sinceFor(key.Space, now)
	if at, ok := s.find(d); ok {
		e := s.entry(at)
		if now <= e.At || now-e.At <= t.window(key.Space) {
			if e.Count != n {
				return Outcome{}, &MismatchError{Key: key, Was: e.Count, Want: n}
			}
			return Outcome{Kind: Hit, First: e.First, AfterHole: e.AfterHole, Since: since}, nil
		}
		s.forget(at, d) // or there would be two records of one request
	}
	if p := s.pending[d]; p != nil {
		if p.n != n {
			return Outcome{}, &MismatchError{Key: key, Was: p.n, Want: n}
		}
		return Outcome{Kind: Busy, Pending: p, Since: since}, nil
	}
	p := &Pending{n: n, done: make(chan struct{})}
	s.pending[d] = p
	s.begun = true
	return Outcome{
		Kind:  Miss,
		Token: &Token{s: s, life: s.life, key: key, digest: d, n: n, pending: p},
		Since: since,
	}, nil
}

// lock returns the section, locked, knowing what the arena has of it now.
func (t *Table) lock(no ids.Section, now uint64) (*section, error) {
	life := t.arena.Life(no)
	if life == 0 {
		return nil, ErrNotReady
	}
	if epoch, _ := t.arena.Section(no); epoch == 0 {
		return nil, ErrNotReady
	}
	s := t.section(no)
	s.mu.Lock()
	s.refresh(now)
	return s, nil
}

// Since is from when on (Unix ms) all answers for keys of this section and space
// are remembered; 0 if the section is not open here.
func (t *Table) Since(no ids.Section, space ids.SpaceID, now uint64) uint64 {
	defer t.arena.Guard().Enter().Exit()
	s, err := t.lock(no, now)
	if err != nil {
		return 0
	}
	defer s.mu.Unlock()
	return s.sinceFor(space, now)
}

// Pending is a request that is being carried out.
type Pending struct {
	n     uint32
	done  chan struct{}
	first ids.Seq // after done; 0: aborted
}

// Wait returns what the original got; ErrAborted if it got nothing.
func (p *Pending) Wait(ctx context.Context) (first ids.Seq, err error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if p.first == 0 {
		return 0, ErrAborted
	}
	return p.first, nil
}

// Stats of a Table.
type Stats struct {
	Entries, EntriesMax int
	// Forgotten records were dropped for want of room.
	Forgotten uint64
	// Bytes of pages and index.
	Bytes int64
}

// Stats takes each section's lock for a moment.
func (t *Table) Stats() Stats {
	st := Stats{EntriesMax: t.pagesMax * pageEntries, Forgotten: t.forgotten.Load()}
	t.sectionsMu.RLock()
	defer t.sectionsMu.RUnlock()
	for _, s := range t.sections {
		s.mu.Lock()
		st.Entries += s.index.live
		st.Bytes += int64(len(s.index.slots))*4 + int64(len(s.pages))*(arena.PageWords*8+pageBytes)
		s.mu.Unlock()
	}
	return st
}

// pageBytes is about what a page takes beside its memory: its struct, its places in
// the lists, and its entry in the arena's directory.
const pageBytes = 240
