package storesvr

import (
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/router"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// Whoever hears of a Set before it is in the map, when it gets there, while it is,
// and after it is retired can merge everything that it is told, and lacks nothing.
func TestWhatIsToldOfASetFollowsItIntoTheMapAndOutOfIt(t *testing.T) {
	spaces := ids.DefaultSpaces()
	published := func(version uint64, names ...string) sets.Published {
		p := sets.Published{Map: sets.Single("s1", spaces), Home: "s1"}
		p.Map.Version, p.Map.Sets = version, names
		for _, n := range names {
			p.Sets = append(p.Sets, sets.SetInfo{Name: n, Stores: []string{n + ":1"}})
		}
		return p
	}
	m := &state.Meta{
		Genesis:      state.Genesis{Cluster: "c", ClusterID: "id", Set: "s2", Sections: 4, Spaces: spaces},
		Sections:     make([]state.SectionState, 4),
		Sessions:     map[ids.SessionID]*state.SessionState{1: {ID: 1, Node: "a1", Addr: "a1:1"}},
		RouteVersion: 5,
	}
	hub := router.NewHub(nil)
	var known routesKnown
	for _, step := range []struct {
		name   string
		change func()
		owner  ids.SessionID // of section 1 as is to be known then; 0: the Set is not
	}{
		{"before it is in the map", func() { m.Published = published(1, "s1") }, 0},
		{"it changes unseen", func() { m.RouteVersion = 9 }, 0},
		{"in the map", func() { m.Published = published(2, "s1", "s2") }, 0},
		{"assigned", func() { m.RouteVersion = 11; m.Sections[1] = state.SectionState{Owner: 1, Epoch: 1, Changed: 11} }, 1},
		{"retired", func() { m.Published = published(3, "s1") }, 0},
		{"it changes unseen again", func() { m.RouteVersion = 12; m.Sections[2] = state.SectionState{Owner: 1, Epoch: 1, Changed: 12} }, 0},
		{"in the map again", func() { m.Published = published(4, "s1", "s2") }, 1},
	} {
		step.change()
		for n := 0; ; n++ {
			pb, now := routesSince(m, known)
			if pb == nil {
				break
			}
			if n > 0 {
				t.Fatalf("%s: told again and again", step.name)
			}
			d, err := wire.ParseRoutes(pb)
			if err == nil {
				_, err = hub.Merge(d)
			}
			if err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
			known = now
		}
		var owner ids.SessionID
		if set := hub.Load().Set("s2"); set != nil && len(set.Sections) > 0 {
			owner = set.Sections[1].Owner
		}
		if owner != step.owner {
			t.Errorf("%s: section 1 is known as of session %d, want %d", step.name, owner, step.owner)
		}
	}
}
