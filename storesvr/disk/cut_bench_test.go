package disk

import (
	"strconv"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// BenchmarkCut reads a page of a range from the file, with many changes of other keys in memory.
func BenchmarkCut(b *testing.B) {
	for _, dirty := range []int{0, 16_000, 250_000} {
		b.Run(strconv.Itoa(dirty)+" dirty", func(b *testing.B) {
			s := openTest(b, b.TempDir(), Options{FlushKeys: 1 << 20, HardKeys: 1 << 21})
			const keys = 1_000_000
			for i := range uint64(keys) {
				s.Put(uid(i), rec(1))
			}
			if err := s.Flush(b.Context(), 1, testMeta()); err != nil {
				b.Fatal(err)
			}
			for i := range uint64(dirty) {
				s.Put(uid(i*7919%keys), rec(2))
			}
			r := sets.Range{Space: 1, Lo: keys / 2, Last: ids.Position(keys/2 + 8191)}
			var cutting time.Duration
			b.ResetTimer()
			for i := range b.N {
				// What comes in between two pages.
				for j := range uint64(1000) {
					s.Put(uid((uint64(i)*1000+j)%(keys/4)), rec(3))
				}
				began := time.Now()
				cut := s.Cut(Filter{Within: &r, Ledgers: true}, ids.Key{}, 16<<10)
				cutting += time.Since(began)
				page, _, _ := cut.Read()
				if len(page) != 8192 {
					b.Fatal(len(page))
				}
			}
			b.ReportMetric(float64(cutting.Microseconds())/float64(b.N), "cutting-µs/op")
		})
	}
}
