package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/seqsvr/seqsvr/client"
)

// Of uids and names, many more than an arena holds, each is called again and again by
// clients that mix them, while one is called all the time. The pages of the arena are
// fewer than the sections, so names alone cannot have one each.
func TestUidsAndNamesTakeTurnsInAnArenaThatIsTooSmall(t *testing.T) {
	// A megabyte more than what holds pages.
	each, batch, mb := 6_000, 1000, 2
	if long() == 1 {
		each, batch, mb = 200_000, 5000, 3
	}
	f := startBeside(t, arenaOf(mb))
	warm, most := f.keepWarm(t), f.mostKeys(t)
	keys := make([]client.Key, 0, 2*each)
	for i := range each {
		keys = append(keys, client.UID(uint64(i)), client.Name("conv", fmt.Sprintf("room-%d", i)))
	}
	var clients []*client.Client
	for range 4 {
		clients = append(clients, dialClient(t, f.p.Addrs()...))
	}
	for round := int64(1); round <= 3; round++ {
		parts := slices.Collect(slices.Chunk(keys, batch))
		took, longest := inParts(t, len(clients), len(parts), func(caller, part int) {
			if err := takeEach(t, clients[caller], parts[part], round); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		})
		t.Logf("round %d: %s, and meanwhile %s", round, pace(len(keys), batch, took, longest), warm())
		rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	}
	if n := most(); n == 0 || n > uint64(len(keys)*3/4) {
		t.Errorf("up to %d of %d keys were held at a time: that is no lack of room", n, len(keys))
	} else {
		t.Logf("up to %d keys were held at a time", n)
	}
}
