package allocsvr

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// issued counts what was issued more than once.
type issued struct {
	mu   sync.Mutex
	seen map[ids.Key]map[ids.Seq]bool
	dups int
}

// one takes a number from whichever of the nodes gives one.
func (l *issued) one(k ids.Key, nodes ...*node) bool {
	for _, n := range nodes {
		res, err := n.AllocOne(context.Background(), k, 1, nil)
		if err != nil {
			continue
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.seen == nil {
			l.seen = map[ids.Key]map[ids.Seq]bool{}
		}
		if l.seen[k] == nil {
			l.seen[k] = map[ids.Seq]bool{}
		}
		if l.seen[k][res.First] {
			l.dups++
		}
		l.seen[k][res.First] = true
		return true
	}
	return false
}

// Each rule that can be switched off is needed: without it, its scenario issues
// a number twice; with it, none.
func TestEachRuleIsNeeded(t *testing.T) {
	scenarios := []struct {
		name string
		bugs Bugs
		play func(t *testing.T, r *rig, a, b *node, l *issued)
	}{
		{"close before the hand-back", Bugs{HandBackBeforeClose: true}, func(t *testing.T, r *rig, a, b *node, l *issued) {
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for _, k := range spread() {
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
							l.one(k, a, b)
							time.Sleep(100 * time.Microsecond)
						}
					}
				})
			}
			for range 10 {
				r.store.Move("b1", allSections...)
				settle()
				r.store.Move("a1", allSections...)
				settle()
			}
			close(stop)
			wg.Wait()
		}},
		{"never reopen a closing section", Bugs{ReopenClosing: true}, func(t *testing.T, r *rig, a, b *node, l *issued) {
			for range 57 {
				l.one(uid(1), a)
			}
			a.net.SetDelay(5 * time.Millisecond)
			r.store.Move("b1", 0)
			time.Sleep(12 * time.Millisecond) // the return is applied, its answer under way
			r.store.Keep(0)
			time.Sleep(6 * time.Millisecond)
			for range 20 {
				l.one(uid(1), a)
			}
			a.Kill()
			r.store.Expire("a1")
			r.store.Assign("b1")
			settle()
			for range 20 {
				l.one(uid(1), b)
			}
		}},
		{"forget a key only after its acknowledged hand-back", Bugs{ForgetBeforeAck: true}, func(t *testing.T, r *rig, a, b *node, l *issued) {
			for range 57 {
				l.one(uid(1), a)
			}
			a.net.Fates(storetest.LoseRequest)
			r.store.Move("b1", 0)
			settle()
			for range 20 {
				l.one(uid(1), b)
			}
		}},
	}
	for _, sc := range scenarios {
		for _, broken := range []bool{false, true} {
			l := &issued{}
			inRig(t, storetest.Config{}, func(r *rig) {
				bugs := Bugs{}
				if broken {
					bugs = sc.bugs
				}
				set := func(c *Config) { c.Bugs = bugs }
				a := r.boot("a1", set)
				r.store.Assign("a1")
				b := r.boot("b1", set)
				settle()
				sc.play(t, r, a, b, l)
			})
			switch {
			case !broken && l.dups > 0:
				t.Errorf("%s: %d numbers issued twice", sc.name, l.dups)
			case broken && l.dups == 0:
				t.Errorf("%s: switched off, and nothing was noticed", sc.name)
			}
		}
	}
}

// Serving past the lease is not a duplicate but a number out of order: the new
// owner's numbers are larger, and were issued before.
func TestTheLeaseIsNeededForOrder(t *testing.T) {
	for _, broken := range []bool{false, true} {
		inRig(t, storetest.Config{Auto: true}, func(r *rig) {
			a := r.boot("a1", func(c *Config) { c.Bugs.IgnoreLease = broken })
			a.take(t, uid(1), 10)
			b := r.boot("b1")
			a.net.Cut(true)
			time.Sleep(3 * time.Second)
			newer := b.take(t, uid(1), 1)
			older, err := a.AllocOne(context.Background(), uid(1), 1, nil)
			if outOfOrder := err == nil && older.First < newer.First; outOfOrder != broken {
				t.Errorf("lease ignored: %v; got %+v, %v after %+v", broken, older, err, newer)
			}
		})
	}
}
