package storesvr

import (
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// Names that were forced to one position go to another Set and back in one part,
// however small parts are, and each goes on at its own next number.
func TestNamesOfOnePositionMoveTogetherAndKeepTheirCounters(t *testing.T) {
	tune := func(c *Config) { c.PartKeys = 2 }
	simulateSets(t, map[string]int{"s1": 3, "s2": 3}, tune, func(t *testing.T, w *realm) {
		a, b := w.owner("s1"), w.owner("s2")
		defer a.crash()
		defer b.crash()
		const position, twins = 0x5eed_0000, 7
		key := func(i int) ids.Key { return ids.Key{Space: 2, Hi: position, Lo: uint64(i) << 60} }
		last := func(i int) ids.Seq { return ids.Seq(10 + 7*i) }
		for i := range twins {
			a.extend(key(i), 100)
			a.mu.Lock()
			a.holds[key(i)] = last(i)
			a.mu.Unlock()
		}
		for _, way := range []struct {
			from, to string
			next     *alloc
		}{{"s1", "s2", b}, {"s2", "s1", a}} {
			m := w.await(w.move(way.from, way.to, &seqpb.Range{Space: 2, Lo: position - 1000, Last: position + 1000}), time.Minute, "done")
			if m.Keys != twins {
				t.Errorf("%d keys moved in %d parts, want %d", m.Keys, m.Parts, twins)
			}
			for i := range twins {
				if got := w.owning(key(i)); len(got) != 1 || got[0] != way.to {
					t.Fatalf("twin %d is owned by %v, want %s", i, got, way.to)
				}
				if r := way.next.extend(key(i), 100); r.Refusal != state.OK || r.Floor != last(i) || r.HoleTo != 0 {
					t.Fatalf("twin %d after %d: %+v", i, last(i), r)
				}
				way.next.mu.Lock()
				way.next.holds[key(i)] = last(i)
				way.next.mu.Unlock()
			}
		}
	})
}
