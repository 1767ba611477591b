package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
	"github.com/seqsvr/seqsvr/sets"
)

// twoSets are s1, with the uids below 4096 and all names, and s2. Each knows of the
// other only the map and its store.
type twoSets map[string]*fakeCluster

func (s twoSets) Dial(addr string) (client.Conn, error) {
	for _, f := range s {
		f.mu.Lock()
		n := f.nodes[addr]
		f.mu.Unlock()
		if n != nil {
			return f.Dial(addr)
		}
	}
	return nil, context.DeadlineExceeded
}

const inS2 = 4096

func newTwoSets(t *testing.T) twoSets {
	spaces := ids.DefaultSpaces()
	m, err := sets.Assemble(2, map[string][]sets.Range{
		"s1": {{Space: 1, Last: inS2 - 1}, sets.Whole(spaces[1])},
		"s2": {{Space: 1, Lo: inS2, Last: ids.DefaultMaxUID}},
	}, spaces)
	if err != nil {
		t.Fatal(err)
	}
	s := twoSets{"s1": newFake("a:1"), "s2": newFake("b:1")}
	for name, f := range s {
		other := map[string]string{"s1": "s2", "s2": "s1"}[name]
		f.change(func() {
			f.set, f.world = name, m
			f.add("store-" + name + ":1").session = 0
			f.others = []*router.SetRoutes{{Name: other, Stores: []string{"store-" + other + ":1"}}}
			f.push()
		})
	}
	return s
}

func TestAClientFindsASetsOwnersByItsStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTwoSets(t)
		c, err := client.Dial(t.Context(), []string{"a:1"}, client.WithTransport(s), client.WithSeed(1))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		start := time.Now()
		if r, err := c.Alloc(t.Context(), client.UID(inS2)); err != nil || r.First != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		if took := time.Since(start); took > 10*time.Millisecond {
			t.Errorf("found after %v", took)
		}
		if got := len(s["s2"].nodes["store-s2:1"].fetches); got != 1 {
			t.Errorf("the store was asked %d times", got)
		}
	})
}

func TestASetThatHangsDelaysNoCallToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTwoSets(t)
		c, err := client.Dial(t.Context(), []string{"a:1"}, client.WithTransport(s), client.WithSeed(1))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Alloc(t.Context(), client.UID(inS2)); err != nil {
			t.Fatal(err)
		}
		s["s2"].change(func() {
			for _, n := range s["s2"].nodes {
				n.stuck = make(chan struct{})
			}
		})
		for range 20 {
			go func() { _, _ = c.Alloc(t.Context(), client.UID(inS2)) }()
		}
		for range 100 {
			start := time.Now()
			if _, err := c.Alloc(t.Context(), client.UID(1)); err != nil || time.Since(start) != 0 {
				t.Fatalf("%v after %v", err, time.Since(start))
			}
			time.Sleep(10 * time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		rs, err := c.AllocMany(ctx, []client.Request{{Key: client.UID(1), N: 1}, {Key: client.UID(inS2), N: 1}})
		if err == nil || rs[0].Err != nil || rs[0].First == 0 || rs[1].Err == nil || time.Since(start) > time.Second {
			t.Errorf("%+v, %v after %v", rs, err, time.Since(start))
		}
	})
}

// More keys of a Set that hangs than may be away at a time, all before the one of
// another Set: it is served at once, and each of the others fails by itself.
func TestAHangingSetHoldsBackNoKeyOfAnotherInOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTwoSets(t)
		c, err := client.Dial(t.Context(), []string{"a:1"}, client.WithTransport(s), client.WithSeed(1))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Alloc(t.Context(), client.UID(inS2)); err != nil {
			t.Fatal(err)
		}
		s["s2"].change(func() {
			for _, n := range s["s2"].nodes {
				n.stuck = make(chan struct{})
			}
		})
		const dead, healthy = 9000, 100
		var reqs []client.Request
		for i := range uint64(dead + healthy) {
			key := client.UID(inS2 + i)
			if i >= dead {
				key = client.UID(i - dead)
			}
			reqs = append(reqs, client.Request{Key: key, N: 1})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		begun := time.Now()
		served := time.Duration(0)
		go func() {
			for served == 0 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
				s["s1"].change(func() {
					if s["s1"].counters["uid/99"] == 1 {
						served = time.Since(begun)
					}
				})
			}
		}()
		rs, err := c.AllocMany(ctx, reqs)
		if took := time.Since(begun); err == nil || took > 2*time.Second {
			t.Fatalf("%v after %v", err, took)
		}
		if served == 0 || served > 10*time.Millisecond {
			t.Errorf("the other set's keys were served after %v", served)
		}
		sent := 0
		for i, r := range rs {
			switch {
			case i >= dead:
				if r.Err != nil || r.First != 1 {
					t.Fatalf("%+v", r)
				}
			case errors.Is(r.Err, client.ErrUnknownResult):
				sent++
			case !errors.Is(r.Err, client.ErrUnavailable) || !errors.Is(r.Err, context.DeadlineExceeded):
				t.Fatalf("key %d: %v", i, r.Err)
			}
		}
		if sent == 0 || sent > 4000 {
			t.Errorf("%d keys were sent to the Set that hangs", sent)
		}
		// And so for reads.
		keys := make([]client.Key, len(reqs))
		for i := range reqs {
			keys[i] = reqs[i].Key
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		readings, err := c.CurrentMany(ctx, keys)
		if err == nil || readings[0].Err == nil || readings[dead].Err != nil || readings[dead+99].Current != 1 {
			t.Errorf("%v: %+v, %+v", err, readings[0], readings[dead+99])
		}
	})
}

// What is held back goes out as answers come.
func TestALargeCallOverTwoSetsIsCarriedOutWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTwoSets(t)
		c, err := client.Dial(t.Context(), []string{"a:1"}, client.WithTransport(s), client.WithSeed(1), client.WithMaxBatch(10))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Current(t.Context(), client.UID(inS2)); err != nil {
			t.Fatal(err)
		}
		s["s2"].change(func() { s["s2"].nodes["b:1"].latency = 5 * time.Millisecond })
		var reqs []client.Request
		for i := range uint64(1000) {
			reqs = append(reqs, client.Request{Key: client.UID(inS2 + i%100), N: 1}, client.Request{Key: client.UID(i % 100), N: 1})
		}
		type number struct {
			key client.Key
			n   int64
		}
		given := map[number]bool{}
		for range 3 {
			rs, err := c.AllocMany(t.Context(), reqs)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rs {
				if n := (number{r.Key, r.First}); given[n] {
					t.Fatalf("%v was given twice", n)
				} else {
					given[n] = true
				}
			}
		}
	})
}

// A key's ledger is in its own Set, also while nobody is known there.
func TestGapsAreAskedOfTheKeysOwnSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTwoSets(t)
		for name, f := range s {
			f.change(func() {
				for _, n := range f.nodes {
					if n.session == 0 || name == "s1" {
						n.noGaps = true
					}
				}
				f.gaps[fmt.Sprintf("uid/%d", inS2)] = []*seqpb.Gap{{From: 3, To: 9}}
			})
		}
		// Nobody owns the key's section just now, so any node of its Set is to be asked.
		s["s2"].change(func() {
			s["s2"].assign(0, "")
			s["s2"].push()
		})
		c, err := client.Dial(t.Context(), []string{"a:1"}, client.WithTransport(s), client.WithSeed(1))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		begun := time.Now()
		g, err := c.Gaps(t.Context(), client.UID(inS2))
		if err != nil || len(g) != 1 || g[0].To != 9 || time.Since(begun) > 100*time.Millisecond {
			t.Errorf("%v, %v after %v", g, err, time.Since(begun))
		}
		if n := s["s1"].nodes["a:1"].gapsAsked; n != 0 {
			t.Errorf("a node of another set was asked %d times", n)
		}
	})
}
