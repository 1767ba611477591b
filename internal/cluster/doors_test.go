package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// Redis clients know one address; the keys of the other node come through it.
func TestRedisServesEveryKeyAtAnyNode(t *testing.T) {
	c := start(t, Options{Redis: "127.0.0.1:0", HTTP: "127.0.0.1:0"})
	ctx := within(t, 30*time.Second)
	r := goredis.NewClient(&goredis.Options{Addr: c.Endpoints().Redis, MaxRetries: -1, Protocol: 2})
	defer r.Close()
	cl := dial(t, c)
	owners := map[string]bool{}
	for i := range 40 {
		uid := uint64(i*25) << 8 // a section each, from all over
		route, err := cl.Route(ctx, client.UID(uid))
		if err != nil {
			t.Fatal(err)
		}
		owners[route.Owner] = true
		if v, err := r.IncrBy(ctx, fmt.Sprint(uid), 3).Result(); v != 3 || err != nil {
			t.Fatalf("INCRBY %d: %d %v", uid, v, err)
		}
		if v, err := r.Get(ctx, fmt.Sprint(uid)).Result(); v != "3" || err != nil {
			t.Fatalf("GET %d: %q %v", uid, v, err)
		}
		if a := alloc(t, cl, uid); a.First != 4 {
			t.Fatalf("over gRPC %d: %+v", uid, a)
		}
	}
	if len(owners) != 2 {
		t.Fatalf("the test has keys of %v only", owners)
	}
	names := goredis.NewClient(&goredis.Options{Addr: c.Endpoints().Redis, DB: 1, MaxRetries: -1, Protocol: 2})
	defer names.Close()
	for i := range 20 {
		if v, err := names.Incr(ctx, fmt.Sprintf("si_%d", i)).Result(); v != 1 || err != nil {
			t.Fatalf("%d %v", v, err)
		}
	}
}

func TestAdminHTTP(t *testing.T) {
	c := start(t, Options{HTTP: "127.0.0.1:0"})
	alloc(t, dial(t, c), 1)
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]string{
		"/healthz": "ok", "/readyz": "ok", "/version": `"go":`, "/metrics": "seqsvr_alloc_sections_serving",
	} {
		r, err := hc.Get("http://" + c.Endpoints().HTTP + path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || r.StatusCode != http.StatusOK || !strings.Contains(string(b), want) {
			t.Errorf("%s: %d %v", path, r.StatusCode, err)
		}
	}
}

// An AllocSvr passes administration on to whoever leads, also when that changes.
func TestAdministrationFollowsTheLeader(t *testing.T) {
	c := start(t, Options{})
	conn, err := rpc.DialAdmin(c.Endpoints().RPC)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	leaderOf := func() string {
		t.Helper()
		rep, err := conn.Status(within(t, 10*time.Second), &seqpb.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range rep.Sets[0].Stores {
			if s.Role == "leader" {
				return s.Id
			}
		}
		return ""
	}
	first := leaderOf()
	for _, m := range c.stores {
		if m.id == first {
			m.running = false
			m.node.Kill()
		}
	}
	drainOnce(t, conn, "a2")
	if second := leaderOf(); second == first || second == "" {
		t.Errorf("leader %q after %q was killed", second, first)
	}
}

// unhurried is a cluster that keeps its leader and its leases on a machine that
// its load keeps busy.
func unhurried(allocs int) Options {
	return Options{Allocs: allocs, LeaseTTL: 5 * time.Second, RaftTimeout: time.Second}
}

// Everything goes on while nodes are stopped in order, one after the other.
func TestADrainUnderLoadFailsNoCall(t *testing.T) {
	c := start(t, unhurried(3))
	cl := dial(t, c)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	counts := make([]int64, 8)
	for n := range counts {
		wg.Go(func() {
			for ctx.Err() == nil {
				r, err := cl.Alloc(context.Background(), client.UID(uint64(n)<<8))
				if err != nil || r.First != counts[n]+1 || r.Discontinuity != nil {
					t.Errorf("key %d: %+v after %d: %v", n, r, counts[n], err)
					return
				}
				counts[n] = r.First
			}
		})
	}
	conn, err := rpc.DialAdmin(c.Endpoints().RPC)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, node := range []string{"a1", "a2"} {
		if lost := drainOnce(t, conn, node); lost != 0 {
			t.Errorf("%s: lost %d", node, lost)
		}
	}
	cancel()
	wg.Wait()
	t.Log(counts)
}

// A message's UUID as request id gets the same number again, also when its key
// moved under load between the two calls.
func TestRequestIDsAreRememberedAcrossDrainsUnderLoad(t *testing.T) {
	c := start(t, unhurried(3))
	cl := dial(t, c)
	type request struct {
		uid   uint64
		id    [16]byte
		first int64
		at    time.Time
	}
	var (
		mu    sync.Mutex
		asked []request
		wg    sync.WaitGroup
	)
	ctx, cancel := context.WithCancel(context.Background())
	for n := range uint64(8) {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil && i < 20_000; i++ {
				q := request{uid: n << 8, id: [16]byte{byte(n), byte(i >> 8), byte(i), 15: 1}, at: time.Now()}
				r, err := cl.Alloc(context.Background(), client.UID(q.uid), client.WithRequestID(q.id))
				if err != nil {
					t.Error(err)
					return
				}
				q.first = r.First
				mu.Lock()
				asked = append(asked, q)
				mu.Unlock()
			}
		})
	}
	conn, err := rpc.DialAdmin(c.Endpoints().RPC)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i, node := range []string{"a1", "a2", "a3"} {
		for mu.Lock(); len(asked) < 200*(i+1); mu.Lock() {
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
		}
		mu.Unlock()
		drainOnce(t, conn, node)
	}
	cancel()
	wg.Wait()
	var sent, unsent uint64
	for n := range 3 {
		st := c.Alloc(n).Stats()
		sent, unsent = sent+st.WindowsSent, unsent+st.WindowsUnsent
	}
	if sent+unsent == 0 {
		t.Error("no window was to be sent")
	}
	forgot := 0
	for _, q := range asked {
		r, err := cl.Alloc(context.Background(), client.UID(q.uid), client.WithRequestID(q.id))
		switch {
		case err != nil:
			t.Fatal(err)
		case r.Replayed && r.First == q.first:
		case !r.Replayed && r.WindowSince.After(q.at):
			forgot++
		default:
			t.Fatalf("%+v was answered again with %+v", q, r)
		}
	}
	if forgot > 0 && unsent == 0 { // a machine that is too busy may miss the time that a move has
		t.Errorf("%d of %d requests are forgotten", forgot, len(asked))
	}
	t.Logf("%d requests, %d windows sent, %d not", len(asked), sent, unsent)
}

// drainOnce drains a node, lets it take sections again, and answers how many
// sections were lost. On a busy machine the leader may change meanwhile: whoever
// drains asks again then, as seqctl does.
func drainOnce(t *testing.T, conn *rpc.AdminConn, node string) (lost uint64) {
	t.Helper()
	ctx := within(t, time.Minute)
	for done := false; !done; {
		var last *seqpb.DrainProgress
		w, err := conn.Drain(ctx, &seqpb.DrainRequest{Node: node})
		for err == nil {
			var p *seqpb.DrainProgress
			if p, err = w.Recv(); err == nil {
				last = p
			}
		}
		if w != nil {
			w.Close()
		}
		lost += last.GetLost()
		done = last.GetDone() && last.GetRefusal() == nil
		again(t, ctx, done, "drain of "+node, last.GetRefusal(), err)
	}
	for done := false; !done; {
		rep, err := conn.Undrain(ctx, &seqpb.DrainRequest{Node: node})
		done = err == nil && rep.GetRefusal() == nil
		again(t, ctx, done, "undrain of "+node, rep.GetRefusal(), err)
	}
	return lost
}

// again waits for the next try, or fails when the time is over.
func again(t *testing.T, ctx context.Context, done bool, what string, r *seqpb.Refusal, err error) {
	t.Helper()
	switch {
	case done:
	case ctx.Err() != nil:
		t.Fatalf("%s: %v, %v", what, r, err)
	default:
		t.Logf("%s, again: %v, %v", what, r, err)
		time.Sleep(100 * time.Millisecond)
	}
}
