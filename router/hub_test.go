package router

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/seqsvr/seqsvr/internal/ids"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// advance is a delta that moves section 0 to the given version and owner.
func advance(table *Table, version uint64, owner ids.SessionID) Delta {
	s := table.Sets[0]
	return Delta{Cluster: table.Cluster, ClusterID: table.ClusterID, MapVersion: 1, Sets: []SetDelta{{
		Name: "s1", Version: version, Since: version - 1, SectionCount: testSections, Nodes: s.Nodes, Stores: s.Stores,
		Changes: []Change{{Section: 0, Owner: owner, Epoch: ids.Epoch(version)}},
	}}}
}

func TestASlowWatcherGetsTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(demo(t))
		first := h.Load()
		got := make(chan *Table)
		go func() {
			table, err := h.Wait(t.Context(), first)
			if err != nil {
				t.Error(err)
			}
			got <- table
			table, err = h.Wait(t.Context(), table)
			if err != nil {
				t.Error(err)
			}
			got <- table
		}()
		synctest.Wait()
		if _, err := h.Merge(advance(first, 8, 1)); err != nil {
			t.Fatal(err)
		}
		if v := (<-got).Sets[0].Version; v != 8 {
			t.Fatalf("woken with version %d, want 8", v)
		}
		for v := uint64(9); v <= 500; v++ {
			if changed, err := h.Merge(advance(first, v, 1)); err != nil || !changed {
				t.Fatal(v, changed, err)
			}
		}
		if v := (<-got).Sets[0].Version; v < 9 {
			t.Fatalf("woken with version %d", v)
		}
		table, err := h.Wait(t.Context(), first)
		if err != nil || table.Sets[0].Version != 500 {
			t.Fatalf("a late watcher gets %v, %v", table, err)
		}
	})
}

func TestWaitEndsWithItsContextAndWithTheHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(demo(t))
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 2)
		go func() { _, err := h.Wait(ctx, h.Load()); errs <- err }()
		synctest.Wait()
		cancel()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		go func() { _, err := h.Wait(t.Context(), h.Load()); errs <- err }()
		synctest.Wait()
		h.Close()
		h.Close()
		if err := <-errs; !errors.Is(err, ErrHubClosed) {
			t.Fatalf("got %v", err)
		}
		if _, err := h.Merge(advance(h.Load(), 8, 1)); err != nil {
			t.Fatalf("a closed hub still holds the newest table: %v", err)
		}
	})
}

func TestTheHubNeverGoesBackUnlessReplaced(t *testing.T) {
	old := demo(t)
	h := NewHub(old)
	if _, err := h.Merge(advance(old, 8, 1)); err != nil {
		t.Fatal(err)
	}
	var back *BackwardsError
	if err := h.Publish(old); !errors.As(err, &back) || back.Held != 8 || back.Got != 7 {
		t.Fatalf("got %v", err)
	}
	if v := h.Load().Sets[0].Version; v != 8 {
		t.Fatalf("version %d", v)
	}
	restored := *old
	restored.ClusterID = "id-2"
	var foreign *ForeignError
	if err := h.Publish(&restored); !errors.As(err, &foreign) {
		t.Fatalf("got %v", err)
	}
	h.Replace(&restored)
	if h.Load() != &restored {
		t.Fatal("not replaced")
	}
	if changed, err := h.Merge(restored.Whole()); changed || err != nil {
		t.Fatalf("what is held counts as a change: %v, %v", changed, err)
	}
}
