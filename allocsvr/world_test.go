package allocsvr

import (
	"runtime"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
)

func TestAStormOfColdKeysLeavesNoMemoryBehind(t *testing.T) {
	live := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	sections := make([]section, 256)
	w := &world{}
	for i := range sections {
		sections[i].start(w, 1)
	}
	before := live()
	for i := range sections {
		sec := &sections[i]
		storm := make([]*extend, 300)
		for k := range storm {
			storm[k] = &extend{sec: sec, key: ids.Key{Space: 1, Hi: uint64(k)}}
			sec.extending[storm[k].key] = storm[k]
		}
		for _, e := range storm {
			sec.forget(e)
		}
	}
	// Kept maps would be about 16 kB each.
	if after := live(); after > before+uint64(len(sections))<<11 {
		t.Errorf("%d bytes more are in use after the storm than before", after-before)
	}
	runtime.KeepAlive(sections)
}
