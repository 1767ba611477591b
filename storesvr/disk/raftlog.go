package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// RaftLog is raft.db: the Raft log and Raft's vote. bbolt has no checksum on
// its data pages, so each entry carries one here: a flipped bit in the log must
// not become a number.
type RaftLog struct {
	*raftboltdb.BoltStore
	path string
	once sync.Once
	err  error
}

// The buckets of raft-boltdb/v2.
var (
	raftLogs = []byte("logs")
	raftConf = []byte("conf")
)

// OpenRaftLog opens dir's raft.db, creating it only if create is set.
func OpenRaftLog(dir string, create bool) (*RaftLog, error) {
	path := filepath.Join(dir, RaftFile)
	if err := CheckBolt(path); err == nil {
		if err := walkRaftLog(path); err != nil {
			return nil, err
		}
	} else if !errors.Is(err, os.ErrNotExist) || !create {
		return nil, err
	}
	var st *raftboltdb.BoltStore
	err := Guard(path, "open", func() error {
		var err error
		st, err = raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: BoltOptions(), MsgpackUseNewTimeFormat: true})
		return err
	})
	if err != nil {
		return nil, boltError(path, "open", err)
	}
	if err := syncDir(dir); err != nil {
		st.Close()
		return nil, err
	}
	return &RaftLog{BoltStore: st, path: path}, nil
}

// walkRaftLog visits every page of the log and checks that its indexes ascend (a
// hole is legal: an installed snapshot leaves one). It comes before opening for
// writing: there bbolt walks the pages in a goroutine of its own, whose panic
// nobody could catch.
func walkRaftLog(path string) error {
	return readOnly(path, func(tx *bbolt.Tx) error {
		_, _, err := walkIndexes(path, tx, nil)
		return err
	})
}

func readOnly(path string, f func(*bbolt.Tx) error) error {
	db, err := OpenBolt(path, &bbolt.Options{ReadOnly: true, Timeout: boltLockTimeout})
	if err != nil {
		return err
	}
	defer db.Close()
	return boltError(path, "read", Guard(path, "its pages cannot be read", func() error { return db.View(f) }))
}

// walkIndexes answers the first and last index of the log; each may be nil.
func walkIndexes(path string, tx *bbolt.Tx, each func(index uint64, value []byte) error) (first, last uint64, err error) {
	conf := tx.Bucket(raftConf)
	logs := tx.Bucket(raftLogs)
	if logs == nil || conf == nil {
		if logs == nil && conf == nil {
			return 0, 0, nil // created, and never used: the process died before its first write
		}
		return 0, 0, &CorruptError{Path: path, What: "a bucket is missing"}
	}
	if err := conf.ForEach(func(_, _ []byte) error { return nil }); err != nil {
		return 0, 0, err
	}
	c := logs.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if len(k) != 8 {
			return first, last, &CorruptError{Path: path, What: fmt.Sprintf("index of %d bytes", len(k))}
		}
		i := binary.BigEndian.Uint64(k)
		switch {
		case first == 0:
			first = i
		case i <= last:
			return first, last, &CorruptError{Path: path, What: fmt.Sprintf("entry %d after %d", i, last)}
		}
		last = i
		if each != nil {
			if err := each(i, v); err != nil {
				return first, last, err
			}
		}
	}
	return first, last, nil
}

const logSumBytes = 4

// logSum covers what must not change between writing an entry and applying it.
func logSum(l *raft.Log, ext []byte) uint32 {
	var h [17]byte
	binary.LittleEndian.PutUint64(h[0:], l.Index)
	binary.LittleEndian.PutUint64(h[8:], l.Term)
	h[16] = byte(l.Type)
	sum := crc32.Checksum(h[:], castagnoli)
	sum = crc32.Update(sum, castagnoli, l.Data)
	return crc32.Update(sum, castagnoli, ext)
}

// checkLog verifies an entry as read and takes its checksum off.
func checkLog(path string, index uint64, l *raft.Log) error {
	n := len(l.Extensions) - logSumBytes
	if n < 0 || l.Index != index || binary.LittleEndian.Uint32(l.Extensions[n:]) != logSum(l, l.Extensions[:n]) {
		return &CorruptError{Path: path, What: fmt.Sprintf("log entry %d", index), Err: errChecksum}
	}
	l.Extensions = l.Extensions[:n:n]
	if n == 0 {
		l.Extensions = nil
	}
	return nil
}

// GetLog reads an entry and verifies it.
func (r *RaftLog) GetLog(index uint64, l *raft.Log) error {
	*l = raft.Log{}
	err := Guard(r.path, "log entry cannot be read", func() error { return r.BoltStore.GetLog(index, l) })
	switch {
	case errors.Is(err, raft.ErrLogNotFound):
		return raft.ErrLogNotFound
	case err != nil:
		var ce *CorruptError
		if errors.As(err, &ce) {
			return err
		}
		return &CorruptError{Path: r.path, What: fmt.Sprintf("log entry %d", index), Err: err}
	}
	return checkLog(r.path, index, l)
}

// StoreLog writes an entry with its checksum.
func (r *RaftLog) StoreLog(l *raft.Log) error { return r.StoreLogs([]*raft.Log{l}) }

// StoreLogs writes entries with their checksums in one fsynced transaction. The
// entries themselves stay as they are: Raft is sending them to others meanwhile.
func (r *RaftLog) StoreLogs(logs []*raft.Log) error {
	sealed := make([]raft.Log, len(logs))
	ptrs := make([]*raft.Log, len(logs))
	for i, l := range logs {
		sealed[i] = *l
		ext := append(make([]byte, 0, len(l.Extensions)+logSumBytes), l.Extensions...)
		sealed[i].Extensions = binary.LittleEndian.AppendUint32(ext, logSum(l, l.Extensions))
		ptrs[i] = &sealed[i]
	}
	return boltError(r.path, "write", Guard(r.path, "write", func() error { return r.BoltStore.StoreLogs(ptrs) }))
}

// DeleteRange deletes entries, both ends included.
func (r *RaftLog) DeleteRange(from, to uint64) error {
	return boltError(r.path, "delete", Guard(r.path, "delete", func() error { return r.BoltStore.DeleteRange(from, to) }))
}

// Set keeps one of Raft's own values.
func (r *RaftLog) Set(k, v []byte) error {
	return boltError(r.path, "write", Guard(r.path, "write", func() error { return r.BoltStore.Set(k, v) }))
}

// SetUint64 keeps one of Raft's own numbers.
func (r *RaftLog) SetUint64(k []byte, v uint64) error {
	return boltError(r.path, "write", Guard(r.path, "write", func() error { return r.BoltStore.SetUint64(k, v) }))
}

// GetUint64 reads one of Raft's own numbers.
func (r *RaftLog) GetUint64(k []byte) (uint64, error) {
	v, err := r.BoltStore.Get(k)
	if err != nil {
		return 0, err
	}
	if len(v) != 8 {
		return 0, &CorruptError{Path: r.path, What: fmt.Sprintf("value of %q", k)}
	}
	return binary.BigEndian.Uint64(v), nil
}

// Close closes the file.
func (r *RaftLog) Close() error {
	r.once.Do(func() { r.err = boltError(r.path, "close", r.BoltStore.Close()) })
	return r.err
}
