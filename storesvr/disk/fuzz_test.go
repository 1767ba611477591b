package disk

import (
	"bytes"
	"errors"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// collector is a SnapshotSink in memory.
type collector struct {
	mapSource
	finished bool
}

func (c *collector) Head(applied uint64, meta *state.Meta) error {
	c.applied, c.meta = applied, meta
	return nil
}
func (c *collector) Record(k ids.Key, r state.Record) error { c.keys.Put(k, r); return nil }
func (c *collector) Gaps(k ids.Key, g []state.Gap) error    { c.gaps[k] = g; return nil }
func (c *collector) Finish() error                          { c.finished = true; return nil }

func FuzzSnapshot(f *testing.F) {
	src := &mapSource{applied: 5, meta: testMeta(), keys: state.NewMapKeys(), gaps: map[ids.Key][]state.Gap{uid(1): {{From: 1, To: 1, Cause: state.CauseAdvance}}}}
	for i := range uint64(5) {
		src.keys.Put(uid(i), rec(1))
	}
	var b bytes.Buffer
	if _, err := WriteSnapshot(&b, src); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(snapshotMagic))
	f.Fuzz(func(t *testing.T, in []byte) {
		c := &collector{mapSource: mapSource{keys: state.NewMapKeys(), gaps: map[ids.Key][]state.Gap{}}}
		_, err := ReadSnapshot(bytes.NewReader(in), c)
		if err == nil != c.finished {
			t.Fatalf("finished %v, %v", c.finished, err)
		}
		var se *SnapshotError
		if err != nil && !errors.As(err, &se) {
			t.Fatalf("%T %v", err, err)
		}
	})
}
