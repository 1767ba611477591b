package dedupe

import "testing"

func TestPagesThatAreGoneAreForgotten(t *testing.T) {
	f := newFixture(t, 0)
	now := uint64(start)
	for i := range uint64(400 * pageEntries) {
		// Each record outlives the window by the time of the next page.
		now += 20 * minute / pageEntries
		if _, _, err := f.alloc(uid(7), reqID(i), 1, now); err != nil {
			t.Fatal(err)
		}
	}
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	if q := f.table.pages[1]; q.live > 5 || len(q.queue) > 2*q.live+pageSlack+1 {
		t.Errorf("%d pages are listed, of which %d live", len(q.queue), q.live)
	}
}
