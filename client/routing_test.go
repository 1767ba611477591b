package client_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/router"
)

func TestAMovedSectionIsFollowedAtOnceByItsHint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		f.piggyback = false
		c := dial(t, f)
		if _, err := c.Alloc(t.Context(), client.UID(0)); err != nil {
			t.Fatal(err)
		}
		f.change(func() { f.assign(0, "b:1") }) // and no watcher is told
		start := time.Now()
		r, err := c.Alloc(t.Context(), client.UID(0))
		if err != nil || r.First != 2 {
			t.Fatalf("%+v, %v", r, err)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("the redirect waited for %v", took)
		}
		if a, b := f.nodes["a:1"].rpcs(), f.nodes["b:1"].rpcs(); a != 2 || b != 1 {
			t.Errorf("%d and %d RPCs, want 2 and 1", a, b)
		}
	})
}

func TestARedirectTeachesTheRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial(t, f)
		f.change(func() { f.moveAll("b:1") })
		for range 5 {
			if _, err := c.Alloc(t.Context(), client.UID(0)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Alloc(t.Context(), client.UID(2*256)); err != nil { // another section that moved too
			t.Fatal(err)
		}
		if a := f.nodes["a:1"].rpcs(); a != 1 {
			t.Errorf("%d RPCs to the old owner, want 1: its answer says where all sections went", a)
		}
	})
}

func TestAtMostThreeRedirectsInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		f.piggyback = false
		c := dial(t, f, client.WithBudget(time.Second))
		f.change(func() { // the nodes send callers to each other
			a, b := "a:1", "b:1"
			f.nodes["a:1"].deny, f.nodes["b:1"].deny = true, true
			f.nodes["a:1"].hint, f.nodes["b:1"].hint = &b, &a
		})
		start := time.Now()
		done := make(chan error, 1)
		go func() {
			_, err := c.Alloc(t.Context(), client.UID(0))
			done <- err
		}()
		synctest.Wait()
		if time.Since(start) != 0 {
			t.Fatal("time passed")
		}
		if n := f.nodes["a:1"].rpcs() + f.nodes["b:1"].rpcs(); n != 4 {
			t.Errorf("%d RPCs before the first back-off, want 4", n)
		}
		err := <-done
		if !errors.Is(err, client.ErrNotOwner) {
			t.Fatalf("got %v", err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %v, over the budget", took)
		}
		if n := f.nodes["a:1"].rpcs() + f.nodes["b:1"].rpcs(); n > 100 {
			t.Errorf("%d RPCs in a second", n)
		}
	})
}

func TestRefreshesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f, client.WithBudget(3*time.Second))
		f.change(func() {
			f.assign(0, "")
			f.nodes["a:1"].fetches = nil
		})
		errs := make(chan error, 50)
		for range 50 {
			go func() {
				_, err := c.Alloc(t.Context(), client.UID(0))
				errs <- err
			}()
		}
		for range 50 {
			if err := <-errs; err == nil {
				t.Error("a number without an owner")
			}
		}
		var fetches []time.Time
		f.change(func() { fetches = slices.Clone(f.nodes["a:1"].fetches) })
		if len(fetches) < 3 {
			t.Errorf("only %d refreshes while nobody owned the section", len(fetches))
		}
		for i := 1; i < len(fetches); i++ {
			if d := fetches[i].Sub(fetches[i-1]); d < 200*time.Millisecond {
				t.Fatalf("refreshes %v apart", d)
			}
		}
	})
}

func TestFailoverIsSeenThroughTheSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial(t, f)
		f.change(func() {
			f.nodes["a:1"].down = true
			for i := range f.sections {
				if f.sections[i].Owner == f.nodes["a:1"].session {
					f.assign(ids.Section(i), "")
				}
			}
			f.push()
		})
		start := time.Now()
		go func() { // the lease runs out, and the sections are assigned
			time.Sleep(2 * time.Second)
			f.change(func() {
				f.moveAll("b:1")
				f.remove("a:1")
				f.push()
			})
		}()
		if _, err := c.Alloc(t.Context(), client.UID(0)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 2*time.Second+50*time.Millisecond {
			t.Errorf("noticed after %v", took)
		}
	})
}

func TestADrainIsNotNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1", "c:1")
		for _, n := range f.nodes {
			n.latency = time.Millisecond
		}
		c := dial(t, f)
		stop := make(chan struct{})
		type tally struct {
			n     int
			worst time.Duration
			err   error
		}
		tallies := make(chan tally)
		for caller := range 20 {
			go func() {
				var done tally
				last := int64(0)
				for {
					select {
					case <-stop:
						tallies <- done
						return
					default:
					}
					start := time.Now()
					r, err := c.Alloc(t.Context(), client.UID(uint64(caller)*256))
					if err != nil {
						done.err = err
					} else if r.First <= last {
						done.err = errors.New("not increasing")
					}
					last = r.First
					done.worst = max(done.worst, time.Since(start))
					done.n++
				}
			}()
		}
		// Every node in turn gives its sections away one by one, leaves, and comes back.
		for _, addr := range []string{"a:1", "b:1", "c:1"} {
			time.Sleep(20 * time.Millisecond)
			other := map[string]string{"a:1": "b:1", "b:1": "c:1", "c:1": "a:1"}[addr]
			for s := range f.sections {
				f.change(func() {
					if f.sections[s].Owner == f.nodes[addr].session {
						f.assign(ids.Section(s), other)
						f.push()
					}
				})
				time.Sleep(time.Millisecond)
			}
			f.change(func() { f.remove(addr); f.push() })
			time.Sleep(200 * time.Millisecond) // it lingers
			f.change(func() { f.nodes[addr].down = true })
			time.Sleep(100 * time.Millisecond)
			f.change(func() {
				f.nodes[addr].down = false
				f.sessions++
				f.version++
				f.nodes[addr].session = f.sessions
				f.push()
			})
		}
		close(stop)
		for range 20 {
			done := <-tallies
			if done.err != nil {
				t.Error(done.err)
			}
			if done.n < 100 || done.worst > 10*time.Millisecond {
				t.Errorf("%d calls, the worst %v", done.n, done.worst)
			}
		}
	})
}

// noticed is how soon a client knows of a change of routes, even if its
// subscription is with a node that has died without a word.
const noticed = 200 * time.Millisecond

func TestQueuedCallsFollowTheirSection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		stuck := make(chan struct{})
		f.nodes["a:1"].stuck = stuck
		c := dial2(t, f, "b:1")
		defer close(stuck)
		results := make(chan error, 10)
		for range 10 {
			go func() {
				_, err := c.Alloc(t.Context(), client.UID(0))
				results <- err
			}()
			time.Sleep(late)
		}
		// Two batches hang in the dead node; the others were never sent.
		start := time.Now()
		f.change(func() { f.moveAll("b:1"); f.remove("a:1"); f.push() })
		for range 8 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(start); took > noticed {
			t.Errorf("took %v", took)
		}
		for range 2 {
			if err := <-results; !errors.Is(err, client.ErrUnknownResult) {
				t.Errorf("a call that hung: %v", err)
			}
		}
		if took := time.Since(start); took > noticed+500*time.Millisecond {
			t.Errorf("the calls that hung ended after %v", took)
		}
	})
}

func TestADeadNodeIsNoticedWhoeverIsAskedNext(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			f := newFake("a:1", "b:1")
			c := dial(t, f, client.WithSeed(seed))
			synctest.Wait()
			stuck := make(chan struct{})
			defer close(stuck)
			f.change(func() {
				f.nodes["a:1"].stuck, f.nodes["a:1"].silent = stuck, true
				f.nodes["b:1"].silent = true // even if its subscription says nothing
				f.moveAll("b:1")
				f.remove("a:1")
				f.push()
			})
			start := time.Now()
			if _, err := c.Current(t.Context(), client.UID(0)); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took > noticed {
				t.Errorf("seed %d: after %v", seed, took)
			}
		})
	}
}

func TestAHungAllocOutlivesAChangeThatIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial2(t, f, "b:1")
		synctest.Wait()
		stuck := make(chan struct{})
		f.change(func() { f.nodes["a:1"].stuck = stuck })
		time.AfterFunc(100*time.Millisecond, func() { f.change(func() { f.assign(0, "b:1"); f.push() }) })
		time.AfterFunc(400*time.Millisecond, func() { f.change(func() { f.assign(0, "a:1"); f.push() }) })
		time.AfterFunc(3*time.Second, func() { close(stuck) })
		if r, err := c.Alloc(t.Context(), client.UID(0)); err != nil || r.First != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestAReadStuckInADeadNodeIsRepeatedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial2(t, f, "b:1")
		stuck := make(chan struct{})
		defer close(stuck)
		f.change(func() { f.nodes["a:1"].stuck = stuck; f.counters["uid/0"] = 5 })
		got := make(chan int64)
		go func() {
			n, err := c.Current(t.Context(), client.UID(0))
			if err != nil {
				t.Error(err)
			}
			got <- n
		}()
		synctest.Wait()
		start := time.Now()
		f.change(func() { f.moveAll("b:1"); f.push() })
		if n := <-got; n != 5 || time.Since(start) > noticed {
			t.Errorf("current %d after %v", n, time.Since(start))
		}
	})
}

func TestANumberOnItsWayIsWaitedForWhenItsKeyMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		f.windows = true // one may not travel with its section
		held := make(chan struct{})
		f.nodes["a:1"].held = held
		c := dial2(t, f, "b:1")
		synctest.Wait()
		got := make(chan client.Result)
		go func() {
			r, err := c.Alloc(t.Context(), client.UID(0), client.WithRequestID([16]byte{1}))
			if err != nil {
				t.Error(err)
			}
			got <- r
		}()
		synctest.Wait() // the number is issued, its reply is held up
		f.change(func() { f.moveAll("b:1"); f.push() })
		time.Sleep(100 * time.Millisecond)
		close(held)
		if r := <-got; r.First != 1 || f.counters["uid/0"] != 1 {
			t.Errorf("got %d, with %d issued: the others went to nobody", r.First, f.counters["uid/0"])
		}
	})
}

func TestAnIdentifiedCallStuckInADeadNodeIsRepeatedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial2(t, f, "b:1")
		synctest.Wait()
		stuck := make(chan struct{})
		defer close(stuck)
		f.change(func() { f.nodes["a:1"].stuck = stuck })
		time.AfterFunc(100*time.Millisecond, func() { f.change(func() { f.moveAll("b:1"); f.push() }) })
		start := time.Now()
		r, err := c.Alloc(t.Context(), client.UID(0), client.WithRequestID([16]byte{1}))
		if took := time.Since(start); err != nil || r.First != 1 || took > time.Second {
			t.Errorf("%+v, %v after %v", r, err, took)
		}
	})
}

func TestNodesThatLeaveAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial2(t, f, "b:1")
		if _, err := c.Alloc(t.Context(), client.UID(0)); err != nil {
			t.Fatal(err)
		}
		open := func(addr string) (n int) { f.change(func() { n = f.nodes[addr].open }); return n }
		if open("a:1") != 1 {
			t.Fatalf("%d connections", open("a:1"))
		}
		f.change(func() { f.moveAll("b:1"); f.remove("a:1"); f.push() })
		synctest.Wait()
		if open("a:1") != 0 || open("b:1") != 1 {
			t.Fatalf("%d and %d connections, want 0 and 1", open("a:1"), open("b:1"))
		}
		if r, err := c.Alloc(t.Context(), client.UID(0)); err != nil || r.First != 2 {
			t.Fatalf("%+v, %v", r, err)
		}
	})
}

func TestTheSubscriptionFailsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial(t, f)
		synctest.Wait()
		watched := func() string {
			f.mu.Lock()
			defer f.mu.Unlock()
			for addr, n := range f.nodes {
				if n.watches > 0 {
					return addr
				}
			}
			return ""
		}()
		other := map[string]string{"a:1": "b:1", "b:1": "a:1"}[watched]
		f.change(func() { f.nodes[watched].down = true; f.moveAll(other); f.remove(watched); f.push() })
		time.Sleep(5 * time.Second)
		f.change(func() {
			if f.nodes[other].watches == 0 {
				t.Errorf("nobody watches %s", other)
			}
			f.assign(3, "")
			f.push()
		})
		synctest.Wait()
		if v := c.Routes().Sets[0].Version; v != f.version {
			t.Errorf("routes of version %d, want %d", v, f.version)
		}
	})
}

func TestASubscriptionToASilentNodeIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial(t, f)
		synctest.Wait()
		watched, other := "a:1", "b:1"
		if f.nodes[other].watches > 0 {
			watched, other = other, watched
		}
		// The watched node goes silent; a reply of the other says that it has left.
		f.change(func() { f.nodes[watched].silent = true; f.moveAll(other); f.remove(watched); f.push() })
		uid := inSection(0)
		if f.nodes[other].session == 2 {
			uid = inSection(1)
		}
		if _, err := c.Alloc(t.Context(), client.UID(uid)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		f.change(func() {
			if f.nodes[other].watches == 0 {
				t.Error("the subscription was not taken up with the other node")
			}
		})
	})
}

func TestASubscriptionThatDoesNotBeginIsGivenUp(t *testing.T) {
	for hung, other := range map[string]string{"a:1": "b:1", "b:1": "a:1"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake("a:1", "b:1")
			stuck := make(chan struct{})
			defer close(stuck)
			f.nodes[hung].stuck = stuck
			dial2(t, f, other)
			time.Sleep(2 * time.Second)
			f.change(func() {
				if f.nodes[other].watches != 1 {
					t.Errorf("%d subscriptions at %s while %s hangs", f.nodes[other].watches, other, hung)
				}
			})
		})
	}
}

func TestWatchSeesEveryNewestTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f)
		synctest.Wait()
		var seen []uint64
		done := make(chan error)
		go func() {
			done <- c.Watch(t.Context(), func(table *client.Table) { seen = append(seen, table.Sets[0].Version) })
		}()
		var want []uint64
		for range 3 {
			synctest.Wait()
			want = append(want, f.version)
			f.change(func() { f.assign(0, "a:1"); f.push() })
		}
		synctest.Wait()
		want = append(want, f.version)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, client.ErrClosed) {
			t.Errorf("ended with %v", err)
		}
		if !slices.Equal(seen, want) {
			t.Errorf("saw %v, want %v", seen, want)
		}
	})
}

func TestARestoredClusterReplacesTheRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial(t, f)
		f.change(func() {
			f.id, f.version = "id-2", 3 // a lower version, and lower epochs
			for i := range f.sections {
				f.sections[i] = router.Section{Owner: f.nodes["b:1"].session, Epoch: 1, Changed: 3}
			}
			f.push()
		})
		if _, err := c.Alloc(t.Context(), client.UID(0)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // for a new subscription, and the fetch after it
		synctest.Wait()
		if id := c.Routes().ClusterID; id != "id-2" {
			t.Errorf("routes of %s", id)
		}
	})
}

func TestVersionsThatWentBackAreReplacedAfterRepeatedRedirects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		nowhere := ""
		f.nodes["a:1"].hint = &nowhere
		c := dial(t, f)
		f.change(func() {
			f.version = 3
			for i := range f.sections {
				f.sections[i] = router.Section{Owner: f.nodes["b:1"].session, Epoch: 1, Changed: 3}
			}
			f.push()
		})
		start := time.Now()
		if _, err := c.Alloc(t.Context(), client.UID(0)); err != nil {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
		if v := c.Routes().Sets[0].Version; v != 3 {
			t.Errorf("routes of version %d, want 3", v)
		}
	})
}

func TestTheRouteCacheStartsAClientWithoutAServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "routes")
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial(t, f, client.WithRouteCache(path))
		synctest.Wait()
		f.change(func() { f.assign(0, "b:1"); f.push() })
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		saved, err := router.Load(path)
		if err != nil || saved.Sets[0].Version != f.version {
			t.Fatalf("saved %+v, %v", saved, err)
		}
		// The bootstrap address is dead, yet the node of the section is known.
		c, err = client.Dial(t.Context(), []string{"gone:1"}, client.WithTransport(f), client.WithRouteCache(path), client.WithSeed(1))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Alloc(t.Context(), client.UID(0)); err != nil {
			t.Fatal(err)
		}
	})
}

func TestABadRouteCacheIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "routes")
	if err := os.WriteFile(path, []byte("seqroute and then garbage, garbage, garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f, client.WithRouteCache(path))
		if _, err := c.Alloc(t.Context(), client.UID(0)); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := router.Load(path); err != nil {
		t.Fatalf("not replaced: %v", err)
	}
}

func TestAnotherClusterIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		start := time.Now()
		_, err := client.Dial(t.Context(), []string{"a:1"}, client.WithTransport(f), client.WithCluster("prod"), client.WithBudget(time.Second))
		if !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, errDeadline) {
			t.Fatalf("got %v", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("gave up after %v", took)
		}
		if f.nodes["a:1"].open != 0 {
			t.Error("a connection is left open")
		}
	})
}

func TestDialWaitsForAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		f.nodes["a:1"].down = true
		go func() {
			time.Sleep(3 * time.Second)
			f.change(func() { f.nodes["a:1"].down = false })
		}()
		c := dial(t, f)
		if _, err := c.Alloc(t.Context(), client.UID(0)); err != nil {
			t.Fatal(err)
		}
	})
	for _, servers := range [][]string{nil, {"no-port"}} {
		if _, err := client.Dial(t.Context(), servers); !errors.Is(err, client.ErrInvalidArgument) {
			t.Errorf("%v: %v", servers, err)
		}
	}
}

func TestRouteTellsTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial(t, f, client.WithBudget(time.Second))
		r, err := c.Route(t.Context(), client.UID(inSection(3)))
		want := client.Route{Set: "s1", Section: 3, Epoch: 1, Owner: "node-b:1", Addr: "b:1", Version: f.version}
		if err != nil || r != want {
			t.Fatalf("got %+v, %v, want %+v", r, err, want)
		}
		synctest.Wait()
		f.change(func() { f.assign(3, ""); f.push() })
		synctest.Wait()
		go func() {
			time.Sleep(500 * time.Millisecond)
			f.change(func() { f.assign(3, "a:1"); f.push() })
		}()
		if r, err := c.Route(t.Context(), client.UID(inSection(3))); err != nil || r.Owner != "node-a:1" || r.Epoch != 2 {
			t.Fatalf("after a gap: %+v, %v", r, err)
		}
		f.change(func() { f.assign(3, ""); f.push() })
		synctest.Wait()
		if r, err := c.Route(t.Context(), client.UID(inSection(3))); err != nil || r.Owner != "" || r.Section != 3 {
			t.Fatalf("without an owner: %+v, %v", r, err)
		}
	})
}

func TestAnUnreachableOwnerIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial2(t, f, "b:1")
		f.change(func() { f.nodes["a:1"].down = true })
		start := time.Now()
		_, err := c.Alloc(t.Context(), client.UID(0))
		var e *client.Error
		if !errors.As(err, &e) || e.Kind != client.KindUnavailable || e.Owner != "a:1" || !errors.Is(err, errDeadline) {
			t.Fatalf("got %v", err)
		}
		if took := time.Since(start); took > client.DefaultBudget || took < client.DefaultBudget-300*time.Millisecond {
			t.Errorf("gave up after %v", took)
		}
	})
}
