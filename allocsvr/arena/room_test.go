package arena

import (
	"errors"
	"strconv"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// namesOf makes n names of one section.
func namesOf(t *testing.T, s ids.Section, prefix string, n int) (ks []ids.Key) {
	t.Helper()
	for i := 0; len(ks) < n; i++ {
		if k := name(t, prefix+strconv.Itoa(i)); k.Section(testSections) == s {
			ks = append(ks, k)
		}
	}
	return ks
}

// A page of names serves others once its last name was freed, without anybody
// coming to its section for it.
func TestAPageWithoutNamesIsRoom(t *testing.T) {
	a := heapArena(t)
	ks := namesOf(t, 3, "n", namesPerSlot)
	before := a.Room()
	for _, k := range ks {
		ensure(t, a, k)
	}
	if got := a.Room(); got != before-1 {
		t.Fatalf("room for %d pages, want %d", got, before-1)
	}
	inside := a.Guard().Enter()
	for _, k := range ks {
		a.Free(k)
	}
	if got := a.Room(); got != before-1 {
		t.Fatalf("room for %d pages while a reader may be in one of them, want %d", got, before-1)
	}
	inside.Exit()
	a.Room() // the entries have passed their grace; the page's begins
	if got := a.Room(); got != before {
		t.Fatalf("room for %d pages, want %d", got, before)
	}
	if _, used, _ := a.Usage(); used != 0 {
		t.Errorf("%d pages in use", used)
	}
}

// shelfOf is the shelf that a key is on.
func shelfOf(t *testing.T, a *Arena, k ids.Key) (found Shelf) {
	t.Helper()
	defer a.Guard().Enter().Exit()
	for _, sh := range a.Shelves(k.Section(testSections)) {
		sh.Look(false, func(h Held) {
			if h.Key == k {
				found = sh
			}
		})
	}
	return found
}

// Names that come meanwhile do not keep a page from coming free.
func TestAShelfThatLeavesTakesNoName(t *testing.T) {
	a := heapArena(t)
	before := a.Room()
	old, young := namesOf(t, 3, "old", namesPerSlot/2), namesOf(t, 3, "young", namesPerSlot/2)
	for _, k := range old {
		ensure(t, a, k)
	}
	shelfOf(t, a, old[0]).Leave()
	for i, k := range old {
		ensure(t, a, k).Close()
		a.Free(k)
		ensure(t, a, young[i])
	}
	a.Room()
	if got := a.Room(); got != before-1 {
		t.Errorf("room for %d pages, want all but one of %d", got, before)
	}
}

// A shelf that was to leave and did not, since a key of it stays open, takes names again.
func TestAShelfWithAnOpenKeyStays(t *testing.T) {
	a := heapArena(t)
	before := a.Room()
	ks := namesOf(t, 3, "n", 3)
	ensure(t, a, ks[0])
	shelfOf(t, a, ks[0]).Leave()
	ensure(t, a, ks[1])
	if got := a.Room(); got != before-2 {
		t.Fatalf("room for %d pages, want %d", got, before-2)
	}
	shelfOf(t, a, ks[0]) // looks
	a.Free(ks[1])
	a.Room()
	ensure(t, a, ks[2])
	if got := a.Room(); got != before-1 {
		t.Errorf("room for %d pages, want %d", got, before-1)
	}
}

// A table that can have no other slot uses those that were to leave.
func TestATableOfLeavingShelvesIsUsed(t *testing.T) {
	a := heapArena(t)
	ks := namesOf(t, 3, "n", nameTableMax)
	for _, k := range ks {
		ensure(t, a, k)
	}
	shelfOf(t, a, ks[0]).Leave()
	before := a.Room()
	a.Free(ks[0])
	a.Room()
	ensure(t, a, ks[0])
	if got := a.Room(); got != before {
		t.Errorf("room for %d pages, want %d", got, before)
	}
}

func TestAKeyInPlaceTakesNoPage(t *testing.T) {
	a := heapArena(t)
	ks := namesOf(t, 3, "n", 2)
	for _, pair := range [][2]ids.Key{{uid(1), uid(2)}, {ks[0], ks[1]}} {
		before := a.Room()
		if _, err := a.EnsureInPlace(pair[0]); !errors.Is(err, ErrNoPage) || a.Room() != before {
			t.Fatalf("%v: %v, room for %d pages of %d", pair[0], err, a.Room(), before)
		}
		ensure(t, a, pair[0])
		for _, k := range pair {
			if _, err := a.EnsureInPlace(k); err != nil {
				t.Errorf("%v beside %v: %v", k, pair[0], err)
			}
		}
	}
}
