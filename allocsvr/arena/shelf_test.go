package arena

import (
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// ages looks at all shelves once.
func ages(a *Arena, age bool) map[ids.Key]int {
	defer a.Guard().Enter().Exit()
	got := map[ids.Key]int{}
	for s := range ids.Section(testSections) {
		for _, sh := range a.Shelves(s) {
			sh.Look(age, func(h Held) { got[h.Key] = h.Age })
		}
	}
	return got
}

func TestAKeyAgesWhileItsNumberStandsStill(t *testing.T) {
	a := heapArena(t)
	still, moving, room := uid(1), uid(2), name(t, "room")
	for _, k := range []ids.Key{still, moving, room} {
		ensure(t, a, k).Extend(0, 1000)
	}
	for look := range 6 {
		got := ages(a, true)
		want := min(look, AgeMax)
		if got[still] != want || got[room] != want || got[moving] != 0 {
			t.Fatalf("look %d: %v", look, got)
		}
		if peek := ages(a, false); peek[still] != want {
			t.Fatalf("a look without age: %v", peek)
		}
		ensure(t, a, moving).Take(1)
		if peek := ages(a, false); peek[moving] != 0 {
			t.Fatalf("a look without age at a key that moved: %v", peek)
		}
	}
}

// A shelf that was listed before its page went to other keys shows none.
func TestAShelfOfAPageThatHasGoneIsEmpty(t *testing.T) {
	a := heapArena(t)
	for _, k := range []ids.Key{uid(1), name(t, "room")} {
		ensure(t, a, k).Extend(0, 10)
		shelves := a.Shelves(k.Section(testSections))
		if len(shelves) != 1 {
			t.Fatalf("%d shelves", len(shelves))
		}
		a.Free(k)
		ensure(t, a, uid(1<<20)).Extend(0, 10)
		tok := a.Guard().Enter()
		shelves[0].Look(true, func(h Held) { t.Errorf("key %v on a shelf that has gone", h.Key) })
		tok.Exit()
		a.Free(uid(1 << 20))
	}
}
