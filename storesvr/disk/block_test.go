package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

func drawRecord(rt *rapid.T) state.Record {
	floor := rapid.Uint64Range(0, uint64(ids.MaxSeq)).Draw(rt, "floor") >> rapid.IntRange(0, 63).Draw(rt, "shift")
	r := state.Record{Floor: ids.Seq(floor), Bound: ids.Seq(floor), HoleAtFloor: rapid.Bool().Draw(rt, "hole"), Moved: rapid.Bool().Draw(rt, "moved")}
	if rapid.Bool().Draw(rt, "held") {
		r.Epoch = ids.Epoch(rapid.Uint64Min(1).Draw(rt, "epoch"))
		r.Bound += ids.Seq(rapid.Uint64Range(0, uint64(ids.MaxSeq)-floor).Draw(rt, "span"))
	}
	return r
}

func TestABlockIsWhatItsChangesMakeOfIt(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		id := blockID{space: 7, no: rapid.Uint64Max(1<<56-1).Draw(rt, "no")}
		key := id.append(nil)
		var sealed []byte
		want := map[int]state.Record{}
		for range rapid.IntRange(1, 6).Draw(rt, "flushes") {
			var changes []change
			for _, slot := range slices.Sorted(maps.Keys(rapid.MapOfN(rapid.IntRange(0, 255), rapid.Bool(), 1, 40).Draw(rt, "slots"))) {
				c := change{key: id.key(slot), deleted: rapid.IntRange(0, 3).Draw(rt, "delete") == 0}
				if c.deleted {
					delete(want, slot)
				} else {
					c.record = drawRecord(rt)
					want[slot] = c.record
				}
				changes = append(changes, c)
			}
			var old block
			var err error
			if sealed != nil {
				if old, err = openBlock(key, sealed); err != nil {
					rt.Fatal(err)
				}
			}
			before := slices.Clone(sealed)
			now, err := old.with(changes)
			if err != nil {
				rt.Fatal(err)
			}
			if !bytes.Equal(before, sealed) {
				rt.Fatal("the old block was changed: it is a page of the file")
			}
			if sealed = nil; now.slots != (slotSet{}) {
				sealed = now.sealed(key)
			}
		}
		if len(want) == 0 {
			if sealed != nil {
				rt.Fatal("a block without records was written")
			}
			return
		}
		b, err := openBlock(key, sealed)
		if err != nil {
			rt.Fatal(err)
		}
		n := 0
		for slot := range ids.BlockSize {
			got, known, err := b.at(slot)
			exp, ok := want[slot]
			if err != nil || got != exp || known != ok {
				rt.Fatalf("slot %d: %+v %v %v, want %+v %v", slot, got, known, err, exp, ok)
			}
			if b.slots.rank(slot) != n {
				rt.Fatalf("rank of slot %d: %d, want %d", slot, b.slots.rank(slot), n)
			}
			if ok {
				n++
			}
		}
		bit := rapid.IntRange(0, 8*len(sealed)-1).Draw(rt, "bit")
		sealed[bit/8] ^= 1 << (bit % 8)
		if _, err := openBlock(key, sealed); err == nil {
			rt.Fatalf("bit %d is flipped, and nobody noticed", bit)
		}
		sealed[bit/8] ^= 1 << (bit % 8)
		if _, err := openBlock(blockID{space: 7, no: id.no ^ 1}.append(nil), sealed); !errors.Is(err, errChecksum) {
			rt.Fatalf("under the key of another block: %v", err)
		}
	})
}

// FuzzBlock: whatever carries the right checksum is refused or is a block whose
// records are refused or are records.
func FuzzBlock(f *testing.F) {
	key := blockID{space: 1, no: 3}.append(nil)
	b, err := new(block).with([]change{{key: uid(3*256 + 4), record: rec(5)}, {key: uid(3*256 + 5), record: state.Record{Floor: 1, Bound: 1, Moved: true}}})
	if err != nil {
		f.Fatal(err)
	}
	s := b.sealed(key)
	f.Add(s[:len(s)-4])
	f.Fuzz(func(t *testing.T, in []byte) {
		b, err := openBlock(key, seal(key, slices.Clone(in)))
		if err != nil {
			return
		}
		var changes []change
		for slot := b.slots.next(0); slot >= 0; slot = b.slots.next(slot + 1) {
			r, known, err := b.at(slot)
			if err != nil {
				return
			}
			if !known || r.Floor > r.Bound || r.Bound > ids.MaxSeq || r.Epoch == 0 && r.Floor != r.Bound {
				t.Fatalf("slot %d: %+v %v", slot, r, known)
			}
			changes = append(changes, change{key: blockID{space: 1, no: 3}.key(slot), record: r})
		}
		again, err := b.with(changes)
		if err != nil || !bytes.Equal(again.sealed(key), seal(key, in)) {
			t.Fatalf("written again it differs: %v", err)
		}
	})
}

// A space has uids or names. Should a name ever look like a uid, or a space have
// both, the order of the keys is still what everything that goes over them sees.
func TestRecordsOfBlocksAndNamesComeInTheOrderOfTheirKeys(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "disk")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		s := openTest(t, dir, Options{})
		defer s.Close()
		want := state.NewMapKeys()
		key := rapid.Custom(func(rt *rapid.T) ids.Key {
			return ids.Key{
				Space: ids.SpaceID(rapid.IntRange(1, 2).Draw(rt, "space")),
				Hi:    rapid.OneOf(rapid.Uint64Max(600), rapid.Uint64Min(^uint64(0)-300)).Draw(rt, "hi"),
				Lo:    rapid.Uint64Max(2).Draw(rt, "lo"),
			}
		})
		for i, k := range rapid.SliceOfN(key, 1, 60).Draw(rt, "keys") {
			s.Put(k, rec(ids.Seq(i)))
			want.Put(k, rec(ids.Seq(i)))
		}
		if err := s.Flush(t.Context(), 1, testMeta()); err != nil {
			rt.Fatal(err)
		}
		all := recordsOf(want, func(ids.Key) bool { return true })
		from := key.Draw(rt, "from")
		err = s.view(func(tx *bbolt.Tx) error {
			var got []KeyRecord
			c := newRecordCursor(s.path, tx)
			if err := c.seek(from); err != nil {
				return err
			}
			for k, more := c.key(); more; k, more = c.key() {
				r, err := c.record()
				if err != nil {
					return err
				}
				got = append(got, KeyRecord{Key: k, Record: r})
				if err := c.next(); err != nil {
					return err
				}
			}
			at, _ := slices.BinarySearchFunc(all, from, func(r KeyRecord, k ids.Key) int { return r.Key.Compare(k) })
			if !slices.EqualFunc(got, all[at:], func(a, b KeyRecord) bool { return a.Key == b.Key && a.Record == b.Record }) {
				rt.Fatalf("from %v: got %v, want %v", from, got, all[at:])
			}
			return nil
		})
		if err != nil {
			rt.Fatal(err)
		}
	})
}

func TestAStateFileOfTheFirstFormatIsRefused(t *testing.T) {
	dir := lived(t)
	path := filepath.Join(dir, StateFile)
	db, err := OpenBolt(path, stateOptions())
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		if err := tx.DeleteBucket(bucketBlocks); err != nil {
			return err
		}
		return tx.Bucket(bucketMeta).Put(keyFormat, seal(keyFormat, binary.LittleEndian.AppendUint32(nil, 1)))
	})
	if err == nil {
		err = db.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	var re *RefusedError
	if _, err := OpenDir(dir, me, Options{}); !errors.As(err, &re) || re.Found != "1" || re.Want != "2" {
		t.Fatalf("opened: %v", err)
	}
	if _, err := Verify(dir); !errors.As(err, &re) {
		t.Fatalf("verify: %v", err)
	}
}

// Keys at random over a dense file: what a flush writes must not grow back to a page a key.
func TestAFlushOfScatteredKeysWritesLittleOfTheFile(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{FlushKeys: 1 << 20})
	const keys = 100_000
	for n := range uint64(keys) {
		s.Put(uid(n), state.Record{Floor: 70_000, Bound: 80_000, Epoch: 3})
	}
	if err := s.Flush(t.Context(), 1, testMeta()); err != nil {
		t.Fatal(err)
	}
	size := func() (pages int64) {
		if err := s.view(func(tx *bbolt.Tx) error { pages = tx.Size(); return nil }); err != nil {
			t.Fatal(err)
		}
		return pages
	}
	if perKey := float64(size()) / keys; perKey > 20 {
		t.Errorf("the file has %.1f bytes a key, want at most 20", perKey)
	}
	before := s.db.Stats().TxStats
	const changed = keys / 40
	for n := range uint64(changed) {
		s.Put(uid(n*40+n%40), state.Record{Floor: 80_000, Bound: 90_000, Epoch: 3})
	}
	if err := s.Flush(t.Context(), 2, testMeta()); err != nil {
		t.Fatal(err)
	}
	after := s.db.Stats().TxStats
	written := float64(after.Sub(&before).PageAlloc) / changed
	if written > 600 {
		t.Errorf("a flush of one key in forty allocated %.0f bytes of pages a key, want at most 600", written)
	}
	t.Logf("%.1f bytes a key, %.0f bytes of pages a changed key", float64(size())/keys, written)
}
