package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	restoreSuffix = ".restore"
	// restoreBatch is how many entries a restore writes in one transaction.
	restoreBatch = 4 << 10
)

// Restore replaces the state by the snapshot: Stage, and then the swap.
func (s *Store) Restore(r io.Reader, check func(applied uint64, meta *state.Meta) error) (SnapshotSummary, error) {
	sum, swap, err := s.Stage(r, check)
	if err != nil {
		return sum, err
	}
	return sum, swap()
}

// Stage builds the state of a snapshot beside the old one, which stands and can
// be read until swap is called: all of it was read, verified and synced by then.
// On any error the old state stands for good.
// check may refuse what the snapshot's head says before anything is read; it may be nil.
func (s *Store) Stage(r io.Reader, check func(applied uint64, meta *state.Meta) error) (sum SnapshotSummary, swap func() error, err error) {
	tmp := s.path + restoreSuffix
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return sum, nil, &IOError{Path: tmp, Op: "remove", Err: err}
	}
	if sum, err = buildState(tmp, r, check); err != nil {
		// What is left of it is removed by the next restore at the latest.
		_ = os.Remove(tmp)
		return sum, nil, err
	}
	return sum, func() error { return s.swap(tmp) }, nil
}

// swap puts the verified file in the place of the present one.
func (s *Store) swap(tmp string) error {
	s.dbMu.Lock()
	defer s.dbMu.Unlock()
	s.reader.renew()
	if err := os.Rename(tmp, s.path); err != nil {
		return &IOError{Path: s.path, Op: "rename", Err: err}
	}
	// From here the name belongs to the new state: an error leaves the store failed, not mixed.
	err := syncDir(filepath.Dir(s.path))
	var db *bbolt.DB
	if err == nil {
		db, err = OpenBolt(s.path, stateOptions())
	}
	if err != nil {
		s.fail(err)
		return err
	}
	old := s.db
	s.db = db
	s.mu.Lock()
	s.endViews(&SnapshotError{What: "the state was replaced by a restore"})
	s.frozen, s.active = nil, newGeneration()
	s.signal()
	s.mu.Unlock()
	// The replaced file can only be closed once no view reads it any more. Who has
	// one may be waiting for our caller, so this must not wait for them.
	s.wg.Go(func() {
		if err := old.Close(); err != nil {
			s.fail(&IOError{Path: s.path, Op: "close the replaced file", Err: err})
		}
	})
	return nil
}

// buildState writes a snapshot to a new state file at path.
func buildState(path string, r io.Reader, check func(uint64, *state.Meta) error) (sum SnapshotSummary, err error) {
	o := stateOptions()
	o.NoSync = true // synced once, at the end
	db, err := OpenBolt(path, o)
	if err != nil {
		return sum, err
	}
	b := &builder{path: path, db: db, check: check}
	if err = initState(db); err == nil {
		sum, err = ReadSnapshot(r, b)
	}
	b.abort()
	if err == nil {
		err = db.Sync()
	}
	if cerr := db.Close(); err == nil {
		err = cerr
	}
	var se *SnapshotError
	if err != nil && !errors.As(err, &se) {
		err = boltError(path, "restore", err)
	}
	return sum, err
}

// builder is the SnapshotSink that fills a new state file.
type builder struct {
	path  string
	db    *bbolt.DB
	check func(uint64, *state.Meta) error
	tx    *bbolt.Tx
	n     int
	head  []byte
	// run are the records of one block that were read so far.
	run []change
}

func (b *builder) Head(applied uint64, meta *state.Meta) error {
	if b.check != nil {
		if err := b.check(applied, meta); err != nil {
			return &SnapshotError{What: "it is not for this node", Err: err}
		}
	}
	b.head = encodeHead(applied, meta)
	return nil
}

func (b *builder) bucket(name []byte) (*bbolt.Bucket, error) {
	if b.n == restoreBatch {
		if err := b.commit(); err != nil {
			return nil, err
		}
	}
	if b.tx == nil {
		tx, err := b.db.Begin(true)
		if err != nil {
			return nil, boltError(b.path, "restore", err)
		}
		b.tx = tx
	}
	b.n++
	bk := b.tx.Bucket(name)
	bk.FillPercent = 0.9 // keys come in order
	return bk, nil
}

func (b *builder) commit() error {
	tx := b.tx
	b.tx, b.n = nil, 0
	if tx == nil {
		return nil
	}
	return boltError(b.path, "restore", tx.Commit())
}

func (b *builder) abort() {
	if b.tx != nil {
		_ = b.tx.Rollback()
	}
}

func (b *builder) Record(k ids.Key, r state.Record) error {
	if len(b.run) > 0 {
		if id, _ := blockOf(b.run[0].key); !inBlock(k) || !id.has(k) {
			if err := b.endBlock(); err != nil {
				return err
			}
		}
	}
	if inBlock(k) {
		b.run = append(b.run, change{key: k, record: r})
		return nil
	}
	bk, err := b.bucket(bucketNames)
	if err != nil {
		return err
	}
	return boltError(b.path, "restore", putName(bk, k, r))
}

// endBlock writes the block that was being read.
func (b *builder) endBlock() error {
	if len(b.run) == 0 {
		return nil
	}
	bk, err := b.bucket(bucketBlocks)
	if err != nil {
		return err
	}
	err = writeBlock(b.path, bk, b.run)
	b.run = b.run[:0]
	return boltError(b.path, "restore", err)
}

func (b *builder) Gaps(k ids.Key, g []state.Gap) error {
	if err := b.endBlock(); err != nil {
		return err
	}
	bk, err := b.bucket(bucketGaps)
	if err != nil {
		return err
	}
	return boltError(b.path, "restore", putGaps(bk, k, g))
}

func (b *builder) Finish() error {
	if err := b.endBlock(); err != nil {
		return err
	}
	bk, err := b.bucket(bucketMeta)
	if err != nil {
		return err
	}
	if err := bk.Put(keyState, seal(keyState, b.head)); err != nil {
		return err
	}
	return b.commit()
}
