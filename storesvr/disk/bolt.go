package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

const (
	// boltMmapBytes reserves address space so that growth of the file seldom
	// needs a new mapping: that would wait for a running snapshot's read
	// transaction, and every read with it. It costs no memory.
	boltMmapBytes   = 16 << 30
	boltFilePerm    = 0o600
	boltLockTimeout = time.Second
)

// BoltOptions are the options of every bbolt file that a node writes: fsync on;
// no freelist on disk (it is rebuilt at opening), since writing it with each
// commit is what makes large files slow.
func BoltOptions() *bbolt.Options {
	return &bbolt.Options{
		Timeout:         boltLockTimeout,
		NoFreelistSync:  true,
		FreelistType:    bbolt.FreelistMapType,
		InitialMmapSize: boltMmapBytes,
	}
}

// OpenBolt opens a bbolt file after its header and length were checked. bbolt
// itself would turn an empty file into a new database and fault on a shortened one.
func OpenBolt(path string, o *bbolt.Options) (db *bbolt.DB, err error) {
	if err := CheckBolt(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	err = Guard(path, "open", func() error {
		var err error
		db, err = bbolt.Open(path, boltFilePerm, o)
		return err
	})
	return db, boltError(path, "open", err)
}

// boltError gives bbolt's errors the types of this package.
func boltError(path, op string, err error) error {
	var ce *CorruptError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ce):
		return err
	case errors.Is(err, berrors.ErrTimeout):
		return &InUseError{Path: path}
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return &CorruptError{Path: path, What: "not a database", Err: err}
	}
	return &IOError{Path: path, Op: op, Err: err}
}

// Guard runs f on bbolt's pages and turns what bbolt does on a bad page — a
// panic or a memory fault — into a CorruptError.
func Guard(path, doing string, f func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			cause, ok := r.(error)
			if !ok {
				cause = fmt.Errorf("%v", r)
			}
			err = &CorruptError{Path: path, What: doing, Err: cause}
		}
	}()
	return f()
}

const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2
	// boltPageHeader and the offsets below are bbolt's file format, version 2.
	boltPageHeader = 16
	boltMetaBytes  = 64
)

// CheckBolt refuses a file that is not a whole bbolt database. os.ErrNotExist if there is none.
func CheckBolt(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err != nil {
		return &IOError{Path: path, Op: "open", Err: err}
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return &IOError{Path: path, Op: "stat", Err: err}
	}
	if fi.Size() == 0 {
		return &CorruptError{Path: path, What: "it is empty"}
	}
	var best *boltMeta
	// The second meta page lies one page later; the page size is in the first,
	// or, when that one is damaged, the machine's.
	second := int64(os.Getpagesize())
	if m := readBoltMeta(f, 0); m != nil {
		best, second = m, int64(m.pageSize)
	}
	if m := readBoltMeta(f, second); m != nil && (best == nil || m.txid > best.txid) {
		best = m
	}
	if best == nil {
		return &CorruptError{Path: path, What: "neither of its two header pages is valid"}
	}
	if want := best.pages * uint64(best.pageSize); uint64(fi.Size()) < want {
		return &CorruptError{Path: path, What: fmt.Sprintf("it is cut short: %d bytes, its header says %d", fi.Size(), want)}
	}
	return nil
}

type boltMeta struct {
	pageSize uint32
	pages    uint64
	txid     uint64
}

func readBoltMeta(r io.ReaderAt, off int64) *boltMeta {
	var b [boltMetaBytes]byte
	if _, err := r.ReadAt(b[:], off+boltPageHeader); err != nil {
		return nil
	}
	e := binary.NativeEndian
	h := fnv.New64a()
	h.Write(b[:56])
	if e.Uint32(b[0:]) != boltMagic || e.Uint32(b[4:]) != boltVersion || e.Uint64(b[56:]) != h.Sum64() {
		return nil
	}
	m := &boltMeta{pageSize: e.Uint32(b[8:]), pages: e.Uint64(b[40:]), txid: e.Uint64(b[48:])}
	if m.pageSize == 0 || m.pages > 1<<48 {
		return nil
	}
	return m
}
