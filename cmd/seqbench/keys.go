package main

import (
	"math/rand/v2"
	"strconv"

	"github.com/seqsvr/seqsvr/client"
)

// keyset numbers the keys of a run 0, 1, 2 …; the rest of the program knows
// them by that index.
type keyset struct {
	first uint64
	// chosen has the uids, where not all that follow first are fit; else nil.
	chosen []uint64
	names  bool
}

func newKeyset(c *config) *keyset {
	return &keyset{first: c.firstKey, names: c.space != client.DefaultSpace}
}

func (k *keyset) uid(i int) uint64 {
	if k.chosen != nil {
		return k.chosen[i]
	}
	return k.first + uint64(i)
}

// text is the key as people and Redis write it.
func (k *keyset) text(i int) string {
	if k.names {
		return "bench-" + strconv.FormatUint(k.uid(i), 10)
	}
	return strconv.FormatUint(k.uid(i), 10)
}

// chooser draws keys for one caller.
type chooser struct {
	keys uint64
	rng  *rand.Rand
	zipf *rand.Zipf
}

const (
	zipfExponent = 1.1
	// scatter spreads the popular keys, which else would be neighbours and so
	// share a section. It is prime and above keysMax, so no two ranks meet.
	scatter = 2_654_435_761
)

func newChooser(c *config, caller int) *chooser {
	ch := &chooser{keys: uint64(c.keys), rng: rand.New(rand.NewPCG(c.seed, uint64(caller)))}
	if c.dist == distZipf {
		ch.zipf = rand.NewZipf(ch.rng, zipfExponent, 1, ch.keys-1)
	}
	return ch
}

func (c *chooser) next() int {
	if c.zipf != nil {
		return int(c.zipf.Uint64() * scatter % c.keys)
	}
	return int(c.rng.Uint64N(c.keys))
}

func (c *chooser) fill(keys []int) {
	for i := range keys {
		keys[i] = c.next()
	}
}
