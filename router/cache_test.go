package router

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func TestCacheRoundTrips(t *testing.T) {
	path := filepath.Join(t.TempDir(), "routes")
	if _, err := Load(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("a missing file: %v", err)
	}
	for _, version := range []uint64{7, 8} { // the second replaces the first
		want := demo(t)
		want.Sets[0].Version = version
		if err := Save(path, want); err != nil {
			t.Fatal(err)
		}
		got, err := Load(path)
		if err != nil || !bytes.Equal(Encode(got), Encode(want)) {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
	entries, _ := os.ReadDir(filepath.Dir(path))
	if len(entries) != 1 {
		t.Fatalf("temporary files are left: %v", entries)
	}
}

func TestARandomTableRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newTruth("s1")
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			w.step(t)
		}
		want := w.table(t)
		got, err := Decode(Encode(want))
		if err != nil || !bytes.Equal(Encode(got), Encode(want)) {
			t.Fatalf("got %+v, %v", got, err)
		}
	})
}

func TestEveryFlippedBitIsNoticed(t *testing.T) {
	good := Encode(demo(t))
	for i := range good {
		for bit := range 8 {
			bad := append([]byte(nil), good...)
			bad[i] ^= 1 << bit
			if _, err := Decode(bad); err == nil {
				t.Fatalf("bit %d of byte %d flipped, and read all the same", bit, i)
			}
		}
	}
	for n := range good {
		if _, err := Decode(good[:n]); err == nil {
			t.Fatalf("cut to %d bytes, and read all the same", n)
		}
	}
}

func TestABadCacheFileIsATypedError(t *testing.T) {
	good := Encode(demo(t))
	for name, content := range map[string][]byte{
		"empty":    {},
		"foreign":  []byte("SQLite format 3\x00 and so on and so forth"),
		"trailing": append(append([]byte(nil), good...), 0),
		"future":   append([]byte("seqroute\x02\x00"), good[10:]...),
		"garbage with a right checksum": func() []byte {
			b := append([]byte("seqroute\x01\x00\x03\x00\x00\x00"), 0xff, 0xff, 0x7f)
			return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "routes")
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			var e *CacheError
			if _, err := Load(path); !errors.As(err, &e) || e.Path != path {
				t.Fatalf("got %v, want a CacheError", err)
			}
		})
	}
	var e *CacheError
	if err := Save(filepath.Join(t.TempDir(), "no", "such", "dir"), demo(t)); !errors.As(err, &e) {
		t.Fatalf("saving to nowhere: %v", err)
	}
}

// FuzzDecodePayload skips the checksum, so that the fuzzer reaches the parser.
func FuzzDecodePayload(f *testing.F) {
	good := Encode(demo(f))
	f.Add(good[cacheHeader : len(good)-cacheChecksum])
	f.Fuzz(func(t *testing.T, payload []byte) {
		b := append([]byte(cacheMagic), cacheFormat, 0)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
		b = append(b, payload...)
		b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
		table, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Decode(Encode(table))
		if err != nil || !reflect.DeepEqual(table.Whole(), again.Whole()) {
			t.Fatalf("a table that was read does not read back: %v", err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(Encode(demo(f)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if table, err := Decode(b); err == nil && !table.Known() {
			t.Fatal("an empty table was read")
		}
	})
}
