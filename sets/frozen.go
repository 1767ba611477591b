package sets

import "math/bits"

// frozenBuckets reach from 64 µs to 50 s.
const frozenBuckets = 40

// Frozen is the distribution of how long the parts of a move were frozen.
type Frozen struct {
	MaxUS uint32
	// Counts has one bucket for each half octave from 64 µs on; the last one has the rest.
	Counts [frozenBuckets]uint32
}

// note adds one part.
func (f *Frozen) note(us uint32) {
	f.MaxUS = max(f.MaxUS, us)
	f.Counts[frozenBucket(us)]++
}

// MaxMS is the longest.
func (f *Frozen) MaxMS() float64 { return float64(f.MaxUS) / 1000 }

// P99MS is no less than what 99 of 100 parts took, and at most half as much again.
func (f *Frozen) P99MS() float64 {
	total := uint64(0)
	for _, n := range f.Counts {
		total += uint64(n)
	}
	seen := uint64(0)
	for i, n := range f.Counts {
		if seen += uint64(n); total > 0 && seen*100 >= total*99 {
			return min(float64(frozenBucketEnd(i))/1000, f.MaxMS())
		}
	}
	return 0
}

// frozenBucketEnd is the first duration beyond a bucket: 64, 96, 128, 192 … µs.
func frozenBucketEnd(i int) uint64 { return uint64(2+i%2) << (5 + i/2) }

func frozenBucket(us uint32) int {
	if us < 64 {
		return 0
	}
	octave := bits.Len32(us) - 7
	half := int(us>>(octave+5)) & 1
	return min(2*octave+half+1, frozenBuckets-1)
}
