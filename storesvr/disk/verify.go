package disk

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// Report is what a directory was found to hold.
type Report struct {
	Identity Identity
	Applied  uint64
	Keys     uint64
	Gaps     uint64
	// Checksum over all keys, bounds, epochs and ledgers: equal for equal states.
	Checksum          string
	LogFirst, LogLast uint64
}

// Verify reads every byte of a stopped node's directory that matters and checks
// it: pages, checksums, encodings, and the state's own invariants. It changes nothing.
func Verify(dir string) (Report, error) {
	var rep Report
	id, ok, err := LoadIdentity(dir)
	if err != nil {
		return rep, err
	}
	if !ok {
		return rep, &MissingError{Path: filepath.Join(dir, IdentityFile), Reason: "there is none", Remedy: "name the directory of a StoreSvr"}
	}
	rep.Identity = id
	statePath := filepath.Join(dir, StateFile)
	if err := verifyFile(statePath, func(tx *bbolt.Tx) error { return verifyState(statePath, tx, &rep) }); err != nil {
		return rep, err
	}
	raftPath := filepath.Join(dir, RaftFile)
	if err := verifyFile(raftPath, func(tx *bbolt.Tx) error { return verifyLog(raftPath, tx, &rep) }); err != nil {
		return rep, err
	}
	if rep.Applied > rep.LogLast && rep.LogLast != 0 {
		return rep, &CorruptError{Path: raftPath, What: fmt.Sprintf("its last entry is %d, but %d was applied", rep.LogLast, rep.Applied)}
	}
	return rep, nil
}

func verifyFile(path string, f func(*bbolt.Tx) error) error {
	if err := CheckBolt(path); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return &MissingError{Path: path, Reason: "the file is missing", Remedy: remedyWipe}
		}
		return err
	}
	return readOnly(path, f)
}

func verifyState(path string, tx *bbolt.Tx, rep *Report) error {
	if err := checkFormat(path, tx); err != nil {
		return err
	}
	applied, meta, err := readHead(path, tx)
	if err != nil {
		return err
	}
	rep.Applied = applied
	st := &state.State{}
	if meta != nil {
		st.Meta = *meta
	}
	h := sha256.New()
	gaps := tx.Bucket(bucketGaps)
	ferr, err := eachRecord(path, tx, func(k ids.Key, r state.Record) error {
		key := appendKey(nil, k)
		var g []state.Gap
		if gb := gaps.Get(key); gb != nil {
			var err error
			if g, err = openGaps(key, gb); err != nil {
				return &CorruptError{Path: path, What: "gap ledger of key " + k.String(), Err: err}
			}
		}
		if len(st.Meta.Sections) == 0 {
			return &CorruptError{Path: path, What: "keys without a founded state"}
		}
		if err := state.CheckKey(st, k, r, g); err != nil {
			return &CorruptError{Path: path, What: "invariant", Err: err}
		}
		h.Write(key)
		h.Write(state.EncodeRecord(nil, r))
		h.Write(state.EncodeGaps(nil, g))
		rep.Keys++
		return nil
	})
	if err = errors.Join(err, ferr); err != nil {
		return err
	}
	err = gaps.ForEach(func(key, b []byte) error {
		rep.Gaps++
		if _, err := openGaps(key, b); err != nil {
			return &CorruptError{Path: path, What: "gap ledger", Err: err}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if meta != nil {
		st.Keys = state.NewMapKeys()
		if err := state.Check(st); err != nil {
			return &CorruptError{Path: path, What: "invariant", Err: err}
		}
		h.Write(state.EncodeMeta(nil, meta))
	}
	h.Write(binary.BigEndian.AppendUint64(nil, rep.Keys))
	rep.Checksum = hex.EncodeToString(h.Sum(nil))
	return nil
}

func verifyLog(path string, tx *bbolt.Tx, rep *Report) error {
	first, last, err := walkIndexes(path, tx, func(index uint64, v []byte) error {
		var l raft.Log
		if err := codec.NewDecoderBytes(v, &codec.MsgpackHandle{}).Decode(&l); err != nil {
			return &CorruptError{Path: path, What: fmt.Sprintf("log entry %d", index), Err: err}
		}
		if err := checkLog(path, index, &l); err != nil {
			return err
		}
		if l.Type != raft.LogCommand {
			return nil
		}
		if _, err := state.DecodeCommand(l.Data); err != nil {
			return &CorruptError{Path: path, What: fmt.Sprintf("command of log entry %d", index), Err: err}
		}
		return nil
	})
	rep.LogFirst, rep.LogLast = first, last
	return err
}
