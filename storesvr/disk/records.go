package disk

import (
	"bytes"
	"errors"

	"go.etcd.io/bbolt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// finder looks records up in one transaction of the file.
type finder struct {
	path          string
	blocks, names *bbolt.Cursor
	// The last block asked for; exists: there is one.
	id     blockID
	open   block
	opened bool
	exists bool
}

func newFinder(path string, tx *bbolt.Tx) *finder {
	return &finder{path: path, blocks: tx.Bucket(bucketBlocks).Cursor(), names: tx.Bucket(bucketNames).Cursor()}
}

// get looks a record up.
func (f *finder) get(k ids.Key) (rec state.Record, known bool, err error) {
	if !inBlock(k) {
		var key [keyBytes]byte
		found, v := f.names.Seek(appendKey(key[:0], k))
		if !bytes.Equal(found, key[:]) {
			return rec, false, nil
		}
		if rec, err = openRecord(found, v); err != nil {
			return rec, false, corruptRecord(f.path, k, err)
		}
		return rec, true, nil
	}
	id, slot := blockOf(k)
	if !f.opened || f.id != id {
		var key [blockKeyBytes]byte
		found, v := f.blocks.Seek(id.append(key[:0]))
		f.opened, f.exists = false, bytes.Equal(found, key[:])
		if f.exists {
			if f.open, err = openBlock(found, v); err != nil {
				return rec, false, corruptRecord(f.path, k, err)
			}
		}
		f.opened, f.id = true, id
	}
	if !f.exists {
		return rec, false, nil
	}
	if rec, known, err = f.open.at(slot); err != nil {
		return rec, false, corruptRecord(f.path, k, err)
	}
	return rec, known, nil
}

func corruptRecord(path string, k ids.Key, err error) error {
	return &CorruptError{Path: path, What: "record of key " + k.String(), Err: err}
}

// recordCursor goes over all records of one transaction of the file, in the order of
// their keys; seek comes first.
type recordCursor struct {
	path          string
	blocks, names *bbolt.Cursor
	// The present record is at a slot of a block (-1: all were visited) or a name (raw
	// is nil: all were), whichever key is lower.
	id         blockID
	block      block
	slot       int
	name       ids.Key
	raw, value []byte
}

func newRecordCursor(path string, tx *bbolt.Tx) *recordCursor {
	return &recordCursor{path: path, blocks: tx.Bucket(bucketBlocks).Cursor(), names: tx.Bucket(bucketNames).Cursor()}
}

// seek goes to the first record at or after a key.
func (r *recordCursor) seek(k ids.Key) error {
	if err := r.atName(r.names.Seek(appendKey(nil, k))); err != nil {
		return err
	}
	id, slot := blockOf(k)
	if k.Lo != 0 {
		slot++ // a block has none such, and of this position only what is below
	}
	if err := r.atBlock(r.blocks.Seek(id.append(nil))); err != nil || r.slot < 0 || r.id != id {
		return err
	}
	return r.nextSlot(slot)
}

// next goes to the record after the present one.
func (r *recordCursor) next() error {
	if k, _ := r.key(); inBlock(k) && r.slot >= 0 {
		return r.nextSlot(r.slot + 1)
	}
	return r.atName(r.names.Next())
}

// key is the present record's; false: there are no more.
func (r *recordCursor) key() (ids.Key, bool) {
	if r.slot < 0 {
		return r.name, r.raw != nil
	}
	if k := r.id.key(r.slot); r.raw == nil || k.Compare(r.name) < 0 {
		return k, true
	}
	return r.name, true
}

// record is the present one.
func (r *recordCursor) record() (rec state.Record, err error) {
	k, _ := r.key()
	if inBlock(k) {
		rec, _, err = r.block.at(r.slot)
	} else {
		rec, err = openRecord(r.raw, r.value)
	}
	if err != nil {
		return rec, corruptRecord(r.path, k, err)
	}
	return rec, nil
}

func (r *recordCursor) nextSlot(from int) error {
	if r.slot = r.block.slots.next(from); r.slot >= 0 {
		return nil
	}
	return r.atBlock(r.blocks.Next())
}

func (r *recordCursor) atBlock(key, v []byte) (err error) {
	r.slot = -1
	if key == nil {
		return nil
	}
	if r.id, err = decodeBlockID(key); err != nil {
		return &CorruptError{Path: r.path, What: "block", Err: err}
	}
	if r.block, err = openBlock(key, v); err != nil {
		return &CorruptError{Path: r.path, What: "block of key " + r.id.key(0).String(), Err: err}
	}
	r.slot = r.block.slots.next(0)
	return nil
}

func (r *recordCursor) atName(key, v []byte) (err error) {
	if r.raw, r.value = key, v; key == nil {
		return nil
	}
	r.name, err = decodeKey(key)
	if err == nil && inBlock(r.name) {
		err = errors.New("it belongs to a block")
	}
	if err != nil {
		return &CorruptError{Path: r.path, What: "key", Err: err}
	}
	return nil
}

// eachRecord visits all records in key order until f answers an error, which is apart
// from those of the file.
func eachRecord(path string, tx *bbolt.Tx, f func(ids.Key, state.Record) error) (ferr, err error) {
	c := newRecordCursor(path, tx)
	for err = c.seek(ids.Key{}); err == nil && ferr == nil; err = c.next() {
		k, more := c.key()
		if !more {
			break
		}
		r, err := c.record()
		if err != nil {
			return nil, err
		}
		ferr = f(k, r)
	}
	return ferr, err
}
