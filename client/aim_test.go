package client

import (
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/router"
)

func routeTo(set string, epoch ids.Epoch, owner string) router.Route {
	r := router.Route{Set: set, Epoch: epoch}
	if owner != "" {
		r.Owner = router.Node{Session: 1, Addr: owner}
	}
	return r
}

// Epochs of different Sets say nothing about each other.
func TestHintsAreComparedWithinTheirSet(t *testing.T) {
	for name, c := range map[string]struct {
		hint hint
		// table is what is known when the node denies, later what is known then.
		table, later router.Route
		// now and then are where the op goes.
		now, then string
	}{
		"a later epoch of the same set": {
			hint{owner: "a2", set: "s1", epoch: 8}, routeTo("s1", 7, "a1"), routeTo("s1", 7, "a1"), "a2", "a2",
		},
		"an earlier epoch of the same set": {
			hint{owner: "a2", set: "s1", epoch: 6}, routeTo("s1", 7, "a3"), routeTo("s1", 7, "a3"), "a3", "a3",
		},
		"the same epoch, and the table names who denies": {
			hint{owner: "a2", set: "s1", epoch: 7}, routeTo("s1", 7, "a1"), routeTo("s1", 8, "a3"), "a2", "a3",
		},
		"a node that does not say which set": {
			hint{owner: "a2", epoch: 8}, routeTo("s1", 7, "a1"), routeTo("s1", 9, "a1"), "a2", "a1",
		},
		"into a set of lower epochs": {
			hint{owner: "b1", set: "s2", epoch: 2}, routeTo("s1", 7, "a1"), routeTo("s2", 2, "b1"), "b1", "b1",
		},
		"a high epoch of the set that the key has left": {
			hint{owner: "a2", set: "s1", epoch: 90}, routeTo("s1", 7, "a1"), routeTo("s2", 2, "b1"), "a2", "b1",
		},
		"the table knows that the key has moved on": {
			hint{owner: "a2", set: "s1", epoch: 90}, routeTo("s2", 2, "b1"), routeTo("s2", 2, "b1"), "b1", "b1",
		},
		"the table knows the set and no owner": {
			hint{owner: "b1", set: "s2", epoch: 2}, routeTo("s2", 0, ""), routeTo("s2", 3, "b2"), "b1", "b2",
		},
		"into a third set, and from there on": {
			hint{owner: "b1", set: "s2", epoch: 50}, routeTo("s1", 7, "a1"), routeTo("s3", 2, "c1"), "b1", "c1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := &attempt{set: "s1"}
			o.hint = c.hint.taken(&c.table, o.set, "a1")
			if got := o.aim(&c.table); got != c.now {
				t.Errorf("goes to %q now, want %q", got, c.now)
			}
			if got := o.aim(&c.later); got != c.then {
				t.Errorf("goes to %q then, want %q", got, c.then)
			}
		})
	}
}
