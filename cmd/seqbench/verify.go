package main

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// verifier checks every number of every key in bounded memory.
//
// Order: a number must be above all those of its key that had come back, to
// anybody, before its call began. This is exact, for each number.
//
// Each once: in the end a key's numbers must be base+1 … highest, with none
// missing and none twice. Their count and a sum of their hashes are compared
// with those of that interval: a wrong count is certain to be seen, and wrong
// numbers of the right count escape with probability 2^-64.
//
// A key that had a declared hole, or a call of unknown outcome, may lack
// numbers; of these only order and "not more than there are" are checked.
type verifier struct {
	ks   *keyset
	keys []counter

	mu sync.Mutex
	// lenient has the keys that may lack numbers.
	lenient map[int]bool
	found   []string // the first violations
	count   int
}

// counter is what is known of a key, in 32 bytes.
type counter struct {
	base uint64
	// highest that came back; base before any.
	highest atomic.Uint64
	count   atomic.Uint64
	// hashes is the sum of the numbers' hashes, modulo 2^64.
	hashes atomic.Uint64
}

// violationsMax is how many violations are told in words; all are counted.
const violationsMax = 10

func newVerifier(ks *keyset, keys int) *verifier {
	return &verifier{ks: ks, keys: make([]counter, keys), lenient: map[int]bool{}}
}

func (v *verifier) setBase(key int, base uint64) {
	v.keys[key].base = base
	v.keys[key].highest.Store(base)
}

// before notes what each key has reached as a call begins.
func (v *verifier) before(keys []int, reached []uint64) {
	for i, k := range keys {
		reached[i] = v.keys[k].highest.Load()
	}
}

// after checks what a call brought.
func (v *verifier) after(keys []int, reached []uint64, got []number) {
	for i, k := range keys {
		n := &got[i]
		if n.hole || n.unknown {
			v.allow(k)
		}
		if n.err != nil {
			continue
		}
		if n.seq <= reached[i] {
			v.violation("key %s: got %d, by a call that began after %d had been issued: a duplicate or a number out of order", v.ks.text(k), n.seq, reached[i])
		}
		c := &v.keys[k]
		c.count.Add(1)
		c.hashes.Add(hash(n.seq))
		for {
			h := c.highest.Load()
			if n.seq <= h || c.highest.CompareAndSwap(h, n.seq) {
				break
			}
		}
	}
}

func (v *verifier) allow(key int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lenient[key] = true
}

func (v *verifier) violation(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.count++; len(v.found) < violationsMax {
		v.found = append(v.found, fmt.Sprintf(format, args...))
	}
}

// finish checks the keys as wholes, once no call is under way.
func (v *verifier) finish() {
	for k := range v.keys {
		c := &v.keys[k]
		count, highest := c.count.Load(), c.highest.Load()
		span := highest - c.base
		switch {
		case count > span:
			v.violation("key %s: %d numbers came from the %d in %d..%d: duplicates", v.ks.text(k), count, span, c.base+1, highest)
		case v.lenient[k]:
		case count < span:
			v.violation("key %s: %d numbers came from the %d in %d..%d: an undeclared hole, or somebody else uses the key", v.ks.text(k), count, span, c.base+1, highest)
		case c.hashes.Load() != hashesOf(c.base, highest):
			v.violation("key %s: the %d numbers that came are not those of %d..%d: a duplicate and a hole", v.ks.text(k), count, c.base+1, highest)
		}
	}
}

// hashesOf sums the hashes of the numbers above base, up to highest. There are
// as many as were got, or the count would have been wrong.
func hashesOf(base, highest uint64) (sum uint64) {
	for n := base; n < highest; n++ {
		sum += hash(n + 1)
	}
	return sum
}

// hash is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable
// Pseudorandom Number Generators, 2014).
func hash(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
