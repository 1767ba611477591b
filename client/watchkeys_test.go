package client_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// watched is what a consumer of WatchKeys has seen.
type watched struct {
	t      *testing.T
	mu     sync.Mutex // a test looks between two calls, and the next one comes
	values map[client.Key]int64
	calls  int
	missed bool
	// unwatched is why keys are not watched now, and refusals all that was told of that.
	unwatched map[client.Key]error
	refusals  int
	ctx       context.Context
	end       context.CancelFunc
	done      chan error
	// slow is how long each call takes.
	slow time.Duration
}

// watchKeys runs in a bubble, so what it sees may be read after synctest.Wait.
func watchKeys(t *testing.T, c *client.Client, keys ...client.Key) *watched {
	w := &watched{t: t, values: map[client.Key]int64{}, unwatched: map[client.Key]error{}, done: make(chan error, 1)}
	w.ctx, w.end = context.WithCancel(t.Context())
	go func() {
		w.done <- c.WatchKeys(w.ctx, keys, func(n client.KeyNews) {
			defer time.Sleep(w.slow)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.calls++
			w.missed = w.missed || n.Missed
			for _, r := range n.Readings {
				old, ok := w.values[r.Key]
				if again := w.unwatched[r.Key] != nil; ok && (r.Current < old || r.Current == old && !again) {
					t.Errorf("%v: told %d after %d", r.Key, r.Current, old)
				}
				w.values[r.Key] = r.Current
				delete(w.unwatched, r.Key)
			}
			for _, u := range n.Unwatched {
				if w.unwatched[u.Key] != nil {
					t.Errorf("%v: told twice: %v", u.Key, u.Err)
				}
				w.unwatched[u.Key] = u.Err
				w.refusals++
			}
		})
	}()
	return w
}

func (w *watched) stop() {
	w.t.Helper()
	w.end()
	if err := <-w.done; !errors.Is(err, context.Canceled) {
		w.t.Errorf("ended with %v", err)
	}
}

// refused is how often something was told of keys that are not watched, and what of those that are not now.
func (w *watched) refused() (int, map[client.Key]error) {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refusals, maps.Clone(w.unwatched)
}

func (w *watched) want(key client.Key, n int64) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if got, ok := w.values[key]; !ok || got != n {
		w.t.Errorf("%v: told %d (%v), want %d", key, got, ok, n)
	}
}

func TestWatchedKeysAreFollowedOverMovesToTheirLastNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1", "c:1")
		c := dial(t, f)
		var keys []client.Key
		for s := range fakeSections {
			keys = append(keys, client.UID(inSection(ids.Section(s))))
		}
		keys = append(keys, client.Name("conv", "x"))
		w := watchKeys(t, c, keys...)
		time.Sleep(50 * time.Millisecond)
		for _, k := range keys {
			w.want(k, 0)
		}
		for round := range 20 {
			for _, k := range keys {
				if _, err := c.Alloc(t.Context(), k); err != nil {
					t.Fatal(err)
				}
			}
			f.change(func() { f.moveAll([]string{"a:1", "b:1", "c:1"}[round%3]) })
			if round%2 == 0 {
				f.push()
			}
			time.Sleep(100 * time.Millisecond)
			for _, k := range keys {
				w.want(k, int64(round+1))
			}
		}
		w.stop()
	})
}

func TestAWatchSurvivesANodeThatDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial(t, f)
		key := client.UID(inSection(0))
		w := watchKeys(t, c, key)
		time.Sleep(50 * time.Millisecond)
		f.change(func() { f.nodes["a:1"].down = true; f.counters["uid/0"] = 5 })
		time.Sleep(time.Second)
		f.change(func() { f.nodes["a:1"].down = false })
		time.Sleep(time.Second)
		w.want(key, 5)
		// Now without a sign, as when its machine loses power; the routes are silent too.
		f.change(func() { f.nodes["a:1"].stuck = make(chan struct{}); f.counters["uid/0"] = 9; f.moveAll("b:1") })
		time.Sleep(6 * time.Second)
		w.want(key, 9)
		w.stop()
		f.change(func() { f.nodes["a:1"].stuck = nil })
	})
}

func TestASlowConsumerOfAWatchGetsTheNewestAndIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f)
		key := client.UID(1)
		w := watchKeys(t, c, key)
		w.slow = 200 * time.Millisecond
		for range 100 {
			if _, err := c.Alloc(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(time.Second)
		w.want(key, 100)
		if w.calls > 15 || !w.missed {
			t.Errorf("%d calls, missed %v", w.calls, w.missed)
		}
		w.stop()
	})
}

func TestAWatchEndsWithItsClientAndRefusesWhatIsNoKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f)
		for _, k := range []client.Key{{}, client.UID(1 << 40), client.Name("conv", ""), client.Name("none", "x")} {
			if err := c.WatchKeys(t.Context(), []client.Key{k}, nil); !errors.Is(err, client.ErrInvalidArgument) {
				t.Errorf("%v: %v", k, err)
			}
		}
		f.change(func() {
			f.nodes["a:1"].refuse = func([]string) error { return wire.Refusef(seqpb.Code_CODE_UNAUTHORIZED, "no") }
		})
		if err := c.WatchKeys(t.Context(), []client.Key{client.UID(1)}, nil); !errors.Is(err, client.ErrUnauthorized) {
			t.Errorf("a refusal for good: %v", err)
		}
		f.change(func() { f.nodes["a:1"].refuse = nil })
		w := watchKeys(t, c, client.UID(1))
		time.Sleep(50 * time.Millisecond)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := <-w.done; !errors.Is(err, client.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := c.WatchKeys(t.Context(), []client.Key{client.UID(1)}, nil); !errors.Is(err, client.ErrClosed) {
			t.Errorf("on a closed client: %v", err)
		}
	})
}

func TestManyKeysShareFewStreamsAlsoAfterMovingOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		f.change(func() { f.moveAll("a:1") })
		f.push()
		c := dial(t, f)
		var keys []client.Key
		for s := range fakeSections {
			for i := range uint64(10) {
				keys = append(keys, client.UID(inSection(ids.Section(s))+i))
			}
		}
		w := watchKeys(t, c, keys...)
		time.Sleep(50 * time.Millisecond)
		if n := f.watches("a:1"); n != 1 {
			t.Errorf("%d streams for the keys of one node", n)
		}
		for s := range fakeSections {
			f.change(func() { f.assign(ids.Section(s), "b:1") })
			f.push()
			time.Sleep(50 * time.Millisecond)
		}
		for _, k := range keys {
			if _, err := c.Alloc(t.Context(), k); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(50 * time.Millisecond)
		for _, k := range keys {
			w.want(k, 1)
		}
		f.change(func() {
			// One a section that came, and one for every few of those.
			if n := f.nodes["b:1"].keyWatches; n > 2*fakeSections {
				t.Errorf("%d streams were opened for %d moves", n, fakeSections)
			}
			if n := f.nodes["b:1"].keysOpen; n > 4 {
				t.Errorf("%d streams are open for the keys of one node", n)
			}
		})
		w.stop()
	})
}

func TestAWatchTellsOfKeysThatAFullNodeDoesNotTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial(t, f)
		// The one on a:1 is watched by itself, the others ask in vain.
		well, full, node := client.UID(inSection(1)), client.UID(inSection(0)), "b:1"
		f.change(func() { f.assign(1, "a:1"); f.assign(0, node) })
		f.push()
		limit := func(on bool) {
			f.change(func() {
				f.nodes[node].refuse = nil
				if on {
					f.nodes[node].refuse = func([]string) error {
						return wire.Refusef(seqpb.Code_CODE_BUSY, "3 keys are watched here at most: watch fewer, or add nodes")
					}
				}
			})
		}
		limit(true)
		w := watchKeys(t, c, well, full)
		time.Sleep(client.DefaultBudget - time.Second)
		if n, why := w.refused(); n != 0 {
			t.Errorf("told before it had lasted: %v", why)
		}
		w.want(well, 0)
		time.Sleep(2 * time.Second)
		_, why := w.refused()
		err := why[full]
		want := "key " + full.String() + ": busy at " + node + ": 3 keys are watched here at most: watch fewer, or add nodes: it goes on being tried"
		if !errors.Is(err, client.ErrBusy) || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		asked := f.watches(node)
		for n := range 10 { // and the other key's watch goes on
			if _, err := c.Alloc(t.Context(), well); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			w.want(well, int64(n+1))
		}
		told, _ := w.refused()
		if n := f.watches(node) - asked; n < 5 || n > 10 || told != 1 {
			t.Errorf("a full node was asked %d times in 10 s, the caller told %d times", n, told)
		}
		limit(false)
		time.Sleep(3 * time.Second)
		w.want(full, 0)
		if _, why := w.refused(); len(why) != 0 {
			t.Errorf("still unwatched: %v", why)
		}
		w.stop()
	})
}

func TestAWatchTellsOfKeysThatNobodyServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f)
		key := client.UID(inSection(0))
		f.change(func() { f.counters[key.String()] = 7 })
		w := watchKeys(t, c, key)
		time.Sleep(50 * time.Millisecond)
		for range 2 {
			f.change(func() { f.nodes["a:1"].down = true })
			time.Sleep(client.DefaultBudget + time.Second)
			if _, why := w.refused(); !errors.Is(why[key], client.ErrUnavailable) {
				t.Errorf("it is down, told %v", why)
			}
			f.change(func() { f.nodes["a:1"].down = false })
			time.Sleep(time.Second)
			w.want(key, 7)
			if _, why := w.refused(); len(why) != 0 {
				t.Errorf("still unwatched: %v", why)
			}
		}
		w.stop()
	})
}

// Streams of few keys become one as more come, but not if that could cost them their place.
func TestKeysThatAreWatchedStaySoWhenTheirNodeIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		f.change(func() { f.moveAll("a:1") })
		f.push()
		c := dial(t, f)
		var keys []client.Key
		for s := range 5 {
			keys = append(keys, client.UID(inSection(ids.Section(s))))
		}
		w := watchKeys(t, c, keys...)
		for s := range 4 {
			f.change(func() { f.assign(ids.Section(s), "b:1") })
			f.push()
			time.Sleep(50 * time.Millisecond)
		}
		mixed := false
		f.change(func() {
			f.nodes["b:1"].refuse = func(asked []string) error {
				if slices.Contains(asked, keys[4].Text()) {
					mixed = mixed || len(asked) > 1
					return wire.Refusef(seqpb.Code_CODE_BUSY, "full")
				}
				return nil
			}
			f.assign(4, "b:1")
		})
		f.push()
		time.Sleep(time.Minute)
		f.change(func() {
			if mixed {
				t.Error("keys that were watched ask together with one that the node refuses")
			}
		})
		if _, why := w.refused(); len(why) != 1 || why[keys[4]] == nil {
			t.Errorf("unwatched: %v", why)
		}
		w.stop()
	})
}
