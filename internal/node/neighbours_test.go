package node_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cluster"
	"github.com/seqsvr/seqsvr/storesvr"
)

// What a neighbour has ready does not go over the network; the rest still does.
func TestTheRedisPortServesItsNeighboursWarmKeys(t *testing.T) {
	c, err := cluster.Start(cluster.Options{Dir: t.TempDir(), Redis: "127.0.0.1:0", StopLinger: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	// Until the sections are shared out, keys change hands, and then calls of them may be forwarded.
	for was, since := -1, time.Now(); was < 0 || time.Since(since) < 500*time.Millisecond; {
		a, b := c.Alloc(0).Stats().Serving, c.Alloc(1).Stats().Serving
		switch {
		case a+b != storesvr.DefaultSections || max(a, b)-min(a, b) >= 100:
			was = -1
		case a != was:
			was, since = a, time.Now()
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%d and %d sections", a, b)
		}
	}
	sdk, err := client.Dial(ctx, c.Addrs())
	if err != nil {
		t.Fatal(err)
	}
	defer sdk.Close()
	r := goredis.NewClient(&goredis.Options{Addr: c.Endpoints().Redis, MaxRetries: -1, Protocol: 2})
	defer r.Close()
	const keys = 64
	uid := func(i int) uint64 { return uint64(i*16) << 8 } // a section each, from all over
	var reqs []client.Request
	for i := range keys {
		reqs = append(reqs, client.Request{Key: client.UID(uid(i)), N: 1})
	}
	if _, err := sdk.AllocMany(ctx, reqs); err != nil {
		t.Fatal(err)
	}
	for round := range int64(3) {
		p := r.Pipeline()
		var incr []*goredis.IntCmd
		var get []*goredis.StringCmd
		for i := range keys {
			incr = append(incr, p.Incr(ctx, fmt.Sprint(uid(i))))
		}
		for i := range keys {
			get = append(get, p.Get(ctx, fmt.Sprint(uid(i))))
		}
		if _, err := p.Exec(ctx); err != nil {
			t.Fatal(err)
		}
		for i := range keys {
			if want := 2 + round; incr[i].Val() != want || get[i].Val() != fmt.Sprint(want) {
				t.Fatalf("uid %d: INCR %d, GET %s, want %d", uid(i), incr[i].Val(), get[i].Val(), want)
			}
		}
	}
	if c.Alloc(0).Forwards() {
		t.Error("warm keys were forwarded")
	}
	for i := range keys {
		if v, err := r.Incr(ctx, fmt.Sprint(uid(i)+1)).Result(); v != 1 || err != nil {
			t.Fatalf("cold uid %d: %d %v", uid(i)+1, v, err)
		}
	}
	if !c.Alloc(0).Forwards() {
		t.Error("cold keys of the neighbour were not forwarded")
	}
}
