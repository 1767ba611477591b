package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/ids"
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
