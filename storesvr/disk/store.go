package disk

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// Options of a Store. Zero fields get their defaults.
type Options struct {
	// FlushKeys: with about so many dirty keys a flush starts; see Spread.
	FlushKeys int
	// HardKeys: with so many dirty keys applying waits for the flush.
	HardKeys int
	// Spread answers numbers in [0, 1) by which the replicas of a group, which
	// count the same dirty keys, flush at different times: at FlushKeys to twice
	// as many. Default: random.
	Spread func() float64
	// Failed is called once, from any goroutine, when the disk has failed.
	Failed func(error)
}

const (
	// defaultFlushKeys keeps a flush short, as replies wait beside it for the same
	// cores and the same disk. What comes in while one is under way is the next
	// one, so where keys are scattered and flushes slow, they grow by themselves.
	defaultFlushKeys = 16 << 10
	defaultHardKeys  = 1 << 20
)

// Store is state.Keys over state.db. Put, PutGaps, Delete, Commit, Snapshot and
// Restore are for the one goroutine that applies; Get and Gaps for anyone. When the
// disk fails or lies, these panic with a *CorruptError or *IOError: an apply
// that went on would fork the replicas.
type Store struct {
	path string
	opts Options

	// dbMu is held for reading around every use of db, and for writing while a restore swaps it.
	dbMu sync.RWMutex
	db   *bbolt.DB
	// reader is used with dbMu held.
	reader reader
	// mapped is how large the file may become without a new mapping, at least.
	mapped int64

	mu     sync.RWMutex
	active *generation
	// flushAt is the number of dirty keys at which the active generation is frozen.
	flushAt int
	// restUntil is when the flushes may go on, unless much is dirty.
	restUntil time.Time
	// calm: a part of a move is at hand. Until calmUntil flushes are held up for it.
	calm      bool
	calmUntil time.Time
	// heldUp is for how long the present flush was. The flusher has it.
	heldUp time.Duration
	// frozen, oldest first, waits for the flusher. The flusher alone removes from it.
	frozen []*generation
	err    error
	// moved is closed and replaced whenever frozen shrinks or err is set.
	moved chan struct{}

	// wake has room for one: a generation was frozen.
	wake chan struct{}
	stop chan struct{}
	wg   sync.WaitGroup
	once sync.Once

	flushes    atomic.Uint64
	flushNanos atomic.Int64
}

var _ state.Keys = (*Store)(nil)

// Create makes an empty state.db in dir; one that is there already is only completed.
func Create(dir string) error {
	path := filepath.Join(dir, StateFile)
	db, err := OpenBolt(path, stateOptions())
	if err != nil {
		return err
	}
	err = boltError(path, "create", initState(db))
	if cerr := db.Close(); err == nil {
		err = boltError(path, "close", cerr)
	}
	if err != nil {
		return err
	}
	return syncDir(dir)
}

// stateOptions keeps the freelist on disk: flushes are large and rare, and
// opening then does not have to walk every page.
func stateOptions() *bbolt.Options {
	o := BoltOptions()
	o.NoFreelistSync = false
	return o
}

func initState(db *bbolt.DB) error {
	return db.Update(func(tx *bbolt.Tx) error {
		for _, b := range buckets {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		m := tx.Bucket(bucketMeta)
		if m.Get(keyFormat) != nil {
			return nil
		}
		return m.Put(keyFormat, seal(keyFormat, binary.LittleEndian.AppendUint32(nil, stateFormat)))
	})
}

// Open opens dir's state.db, which must exist.
func Open(dir string, o Options) (*Store, error) {
	if o.FlushKeys <= 0 {
		o.FlushKeys = defaultFlushKeys
	}
	if o.Spread == nil {
		o.Spread = rand.Float64
	}
	if o.HardKeys <= 0 {
		o.HardKeys = max(defaultHardKeys, 2*o.FlushKeys)
	}
	path := filepath.Join(dir, StateFile)
	if err := CheckBolt(path); err != nil {
		return nil, err
	}
	db, err := OpenBolt(path, stateOptions())
	if err != nil {
		return nil, err
	}
	if err := checkState(path, db); err != nil {
		db.Close()
		return nil, err
	}
	s := &Store{
		flushAt: spread(o),
		path:    path,
		opts:    o,
		db:      db,
		mapped:  boltMmapBytes,
		active:  newGeneration(),
		moved:   make(chan struct{}),
		wake:    make(chan struct{}, 1),
		stop:    make(chan struct{}),
	}
	s.wg.Go(s.flusher)
	return s, nil
}

// checkState reads what every opening relies on: the buckets, the format and the meta state.
func checkState(path string, db *bbolt.DB) error {
	return Guard(path, "its head cannot be read", func() error {
		return db.View(func(tx *bbolt.Tx) error {
			if err := checkFormat(path, tx); err != nil {
				return err
			}
			_, _, err := readHead(path, tx)
			return err
		})
	})
}

func checkFormat(path string, tx *bbolt.Tx) error {
	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		return missingBucket(path, bucketMeta)
	}
	f, err := unseal(keyFormat, meta.Get(keyFormat))
	if err != nil || len(f) != 4 {
		return &CorruptError{Path: path, What: "its format is unreadable", Err: err}
	}
	if v := binary.LittleEndian.Uint32(f); v != stateFormat {
		return wrongFormat(path, int(v), stateFormat)
	}
	for _, b := range buckets {
		if tx.Bucket(b) == nil {
			return missingBucket(path, b)
		}
	}
	return nil
}

func missingBucket(path string, name []byte) error {
	return &CorruptError{Path: path, What: fmt.Sprintf("bucket %q is missing", name)}
}

// readHead gives index 0 and no meta when nothing was applied yet.
func readHead(path string, tx *bbolt.Tx) (uint64, *state.Meta, error) {
	b := tx.Bucket(bucketMeta).Get(keyState)
	if b == nil {
		return 0, nil, nil
	}
	v, err := unseal(keyState, b)
	if err != nil {
		return 0, nil, &CorruptError{Path: path, What: "meta state", Err: err}
	}
	applied, m, err := decodeHead(v)
	if err != nil {
		return 0, nil, &CorruptError{Path: path, What: "meta state", Err: err}
	}
	return applied, m, nil
}

// Load answers what is in the file: the index of the last entry in it (0: none yet) and the meta state.
func (s *Store) Load() (applied uint64, meta *state.Meta, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		applied, meta, err = readHead(s.path, tx)
		return err
	})
	return applied, meta, err
}

func (s *Store) view(f func(*bbolt.Tx) error) error {
	s.dbMu.RLock()
	defer s.dbMu.RUnlock()
	return boltError(s.path, "read", Guard(s.path, "read", func() error { return s.db.View(f) }))
}

// Get looks a record up.
func (s *Store) Get(k ids.Key) (state.Record, bool) {
	s.mu.RLock()
	r, p := inMemory(s, k, (*generation).record)
	s.mu.RUnlock()
	if p != unknown {
		return r, p == present
	}
	found := false
	s.must(s.lookup(func(file *reader) (err error) {
		r, found, err = file.at.get(k)
		return err
	}))
	return r, found
}

// Gaps looks a key's ledger up. The caller must not change it.
func (s *Store) Gaps(k ids.Key) []state.Gap {
	s.mu.RLock()
	gaps, p := inMemory(s, k, (*generation).ledger)
	s.mu.RUnlock()
	if p != unknown {
		return gaps
	}
	var key [keyBytes]byte
	s.must(s.lookup(func(file *reader) error {
		b := file.gaps.Get(appendKey(key[:0], k))
		if b == nil {
			return nil
		}
		var err error
		if gaps, err = openGaps(key[:], b); err != nil {
			return &CorruptError{Path: s.path, What: "gap ledger of key " + k.String(), Err: err}
		}
		return nil
	}))
	return gaps
}

// inMemory asks the generations, from new to old.
func inMemory[V any](s *Store, k ids.Key, ask func(*generation, ids.Key) (V, presence)) (V, presence) {
	v, p := ask(s.active, k)
	for i := len(s.frozen) - 1; i >= 0 && p == unknown; i-- {
		v, p = ask(s.frozen[i], k)
	}
	return v, p
}

// Put changes a record in memory; Commit says up to which entry.
func (s *Store) Put(k ids.Key, r state.Record) {
	s.mu.Lock()
	s.active.put(k, r)
	s.mu.Unlock()
}

// PutGaps changes a ledger in memory. It keeps g.
func (s *Store) PutGaps(k ids.Key, g []state.Gap) {
	s.mu.Lock()
	s.active.gaps[k] = g
	s.mu.Unlock()
}

// Delete forgets a key in memory, with its ledger.
func (s *Store) Delete(k ids.Key) {
	s.mu.Lock()
	s.active.delete(k)
	s.mu.Unlock()
}

// Commit says that all changes so far are those of the entries up to index. It
// starts a flush when enough is dirty, and waits for one when too much is.
func (s *Store) Commit(index uint64, meta *state.Meta) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mustLocked()
	s.attend(meta)
	if dirty := s.active.dirty(); dirty >= s.flushAt && len(s.frozen) == 0 && (dirty >= s.opts.HardKeys/growPart || !time.Now().Before(s.restUntil)) {
		s.freeze(index, meta, nil)
	}
	for s.dirtyLocked() >= s.opts.HardKeys && len(s.frozen) > 0 {
		moved := s.moved
		s.mu.Unlock()
		<-moved
		s.mu.Lock()
		s.mustLocked()
	}
}

func (s *Store) dirtyLocked() int {
	n := s.active.dirty()
	for _, g := range s.frozen {
		n += g.dirty()
	}
	return n
}

// freeze hands the active generation to the flusher. s.mu is held.
func (s *Store) freeze(index uint64, meta *state.Meta, view chan<- viewResult) {
	g := s.active
	g.head = encodeHead(index, meta)
	g.view = view
	g.awaited = view != nil
	s.frozen = append(s.frozen, g)
	s.active = newGeneration()
	s.flushAt = spread(s.opts)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// spread is when to flush next.
func spread(o Options) int { return o.FlushKeys + int(o.Spread()*float64(o.FlushKeys)) }

// Flush writes everything up to index to the file and waits for it.
func (s *Store) Flush(ctx context.Context, index uint64, meta *state.Meta) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.freeze(index, meta, nil)
	s.frozen[len(s.frozen)-1].awaited = true
	for len(s.frozen) > 0 {
		moved := s.moved
		s.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
		}
		s.mu.Lock()
		if s.err != nil {
			return s.err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("flush %s: %w", s.path, ctx.Err())
		}
	}
	return nil
}

// Close stops the flusher and closes the file. What was not flushed is not in
// it: the log has it.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		close(s.stop)
		s.wg.Wait()
		s.mu.Lock()
		if s.err == nil {
			s.err = &IOError{Path: s.path, Op: "use", Err: errClosed}
		}
		s.endViews(s.err)
		s.signal()
		s.mu.Unlock()
		s.dbMu.Lock()
		defer s.dbMu.Unlock()
		s.reader.renew()
		err = boltError(s.path, "close", s.db.Close())
	})
	return err
}

// Dirty is the number of changed keys that are not in the file yet.
func (s *Store) Dirty() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.dirtyLocked()
}

// Flushes is how many generations were written to the file, and how long all took together.
func (s *Store) Flushes() (n uint64, took time.Duration) {
	return s.flushes.Load(), time.Duration(s.flushNanos.Load())
}

// fail records the first failure and lets go of everyone who waits.
func (s *Store) fail(err error) {
	s.mu.Lock()
	first := s.err == nil
	if first {
		s.err = err
		s.endViews(err)
		s.signal()
	}
	s.mu.Unlock()
	if first && s.opts.Failed != nil {
		s.opts.Failed(err)
	}
}

// endViews answers those who wait for a view that will not come. s.mu is held.
func (s *Store) endViews(err error) {
	for _, g := range s.frozen {
		g.answer(viewResult{err: err})
	}
}

// signal wakes whoever waits for moved. s.mu is held.
func (s *Store) signal() {
	close(s.moved)
	s.moved = make(chan struct{})
}

func (s *Store) must(err error) {
	if err != nil {
		s.fail(err)
		panic(err)
	}
}

func (s *Store) mustLocked() {
	if s.err != nil {
		panic(s.err)
	}
}
