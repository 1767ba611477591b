package chaos

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seqsvr/seqsvr/chaos/check"
	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/chaos/load"
	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cluster"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// Redis clients that know one node use the keys of every Set through it: before, while and
// after their keys move to another Set, right and in order. When that Set is dead, its
// keys are refused in time and by name of the reason, and all others go on.
func TestRedisClientsUseTheKeysOfEverySetThroughAnyNode(t *testing.T) {
	f := startSets(t, cluster.ProcessOptions{Sets: 2, Allocs: 2, Redis: true}, map[string]string{"part_keys": "500"})
	const warm = 2000
	allocAll(t, f.client, warm, 1)
	one, two := f.p.AllocsOf("s1")[0], f.p.AllocsOf("s2")[0]
	c := clients{keys: 100, rate: 100, timeout: 10 * time.Second}
	for _, p := range []*cluster.Process{one, one, two, two} {
		c.targets = append(c.targets, f.redisTarget(t, p))
	}
	var uid uint64
	h := f.underLoad(t, c, func(s *stage) {
		uid = s.no<<20 + 2
		stopped := make(chan struct{})
		tool := make(chan []int64, 1)
		go func() { tool <- countByTool(t, one, uid, stopped) }()
		pause(t, calm)
		for range 1 + 4*long() {
			for _, way := range [][2]string{{"s1", "s2"}, {"s2", "s1"}} {
				s.planned("migrate", way[0], func() { f.move(t, way[0], way[1], halfOf(s.no)) })
				pause(t, calm)
			}
		}
		s.planned("migrate", "s1", func() { f.move(t, "s1", "s2", halfOf(s.no)) })
		pause(t, calm)
		close(stopped)
		for i, n := range <-tool {
			if n != int64(i+1) {
				t.Fatalf("the %d. INCR of redis-cli answered %d", i+1, n)
			}
		}
	})
	lossless(t, judge(t, h, check.Options{}))
	logLatencies(t, h)
	t.Run("a dead set", func(t *testing.T) { f.redisWithoutSet(t, one, "s2", uid+1) })
}

// redisWithoutSet has a Set die under clients of a node of another. Of the keys that are
// kept this node has some, and another node of its Set the others.
func (f *fleet) redisWithoutSet(t *testing.T, at *cluster.Process, set string, lost uint64) {
	kept := map[string]uint64{}
	for uid := uint64(1 << 30); len(kept) < 2; uid += ids.BlockSize {
		route, err := f.client.Route(t.Context(), client.UID(uid))
		must(t, err)
		kept[route.Owner] = uid
	}
	own := kept[at.ID]
	incr := func(r *goredis.Client, uid uint64) (int64, error) {
		return r.Incr(t.Context(), fmt.Sprint(uid)).Result()
	}
	r := redisClient(t, at, 0)
	for want := int64(1); want <= 3; want++ {
		for _, uid := range append(slices.Collect(maps.Values(kept)), lost) {
			if n, err := incr(r, uid); n != want || err != nil {
				t.Fatalf("INCR %d: %d, %v, want %d", uid, n, err, want)
			}
		}
	}
	dead := append(f.p.AllocsOf(set), f.p.StoresOf(set)...)
	for _, p := range dead {
		must(t, p.Kill())
	}
	var asking sync.WaitGroup
	asking.Go(func() {
		other := redisClient(t, at, 0)
		for range 1 + 2*long() {
			begin := time.Now()
			_, err := incr(other, lost)
			took := time.Since(begin)
			if err == nil || !strings.HasPrefix(err.Error(), "TRYAGAIN ") || took > 7*time.Second {
				t.Errorf("a key of a dead set is answered %v after %v", err, took)
			}
			t.Logf("a key of a dead set, after %v: %v", took.Round(time.Millisecond), err)
		}
	})
	const calls = 200
	for owner, uid := range kept {
		asking.Go(func() {
			var slowest time.Duration
			other := redisClient(t, at, 0)
			for i := range int64(calls) {
				begin := time.Now()
				if n, err := incr(other, uid); n != 4+i || err != nil {
					t.Errorf("INCR of a key of a set that lives: %d, %v, want %d", n, err, 4+i)
					return
				}
				slowest = max(slowest, time.Since(begin))
				pause(t, 10*time.Millisecond)
			}
			t.Logf("%d numbers of a key of %s, the slowest after %v", calls, owner, slowest.Round(100*time.Microsecond))
		})
	}
	asking.Wait()

	// On one connection the answers keep their order, and each is its key's.
	pipe := r.Pipeline()
	var cmds []*goredis.IntCmd
	for _, uid := range []uint64{own, lost, own} {
		cmds = append(cmds, pipe.Incr(t.Context(), fmt.Sprint(uid)))
	}
	_, _ = pipe.Exec(t.Context())
	if cmds[0].Val() != 4+calls || cmds[1].Err() == nil || cmds[2].Val() != 5+calls {
		t.Errorf("a pipeline over both sets: %v", cmds)
	}
	if v, err := r.MGet(t.Context(), fmt.Sprint(own), fmt.Sprint(lost)).Result(); err == nil {
		t.Errorf("an MGET over both sets answers %v", v)
	} else {
		t.Logf("an MGET over both sets: %v", err)
	}

	for _, p := range dead {
		must(t, p.Start())
	}
	must(t, f.p.WaitReady(t.Context()))
	for deadline := time.Now().Add(30 * time.Second); ; pause(t, 50*time.Millisecond) {
		n, err := incr(r, lost)
		if err == nil && n > 3 {
			return
		}
		if err == nil || time.Now().After(deadline) {
			t.Fatalf("when its set is back, the key goes on with %d, %v", n, err)
		}
	}
}

// countByTool takes numbers by one redis-cli after another.
func countByTool(t *testing.T, at *cluster.Process, uid uint64, stopped <-chan struct{}) (numbers []int64) {
	path, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Log("skipped: redis-cli is not on the PATH")
		return nil
	}
	host, port, err := net.SplitHostPort(at.RedisAddr)
	if err != nil {
		t.Error(err)
		return nil
	}
	for {
		select {
		case <-stopped:
			t.Logf("%d numbers by redis-cli", len(numbers))
			return numbers
		default:
		}
		out, err := exec.CommandContext(t.Context(), path, "-h", host, "-p", port, "INCR", fmt.Sprint(uid)).CombinedOutput()
		n, wrong := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
		if err != nil || wrong != nil {
			t.Errorf("redis-cli: %s %v", out, err)
			return numbers
		}
		numbers = append(numbers, n)
	}
}

func redisClient(t *testing.T, at *cluster.Process, db int) *goredis.Client {
	r := goredis.NewClient(&goredis.Options{Addr: at.RedisAddr, DB: db, MaxRetries: -1, PoolSize: 1, ReadTimeout: 15 * time.Second, Protocol: 2})
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// redisTarget is a client of a node's Redis port.
type redisTarget struct {
	of  map[string]*goredis.Client
	sdk *client.Client
}

// redisTarget has a connection for each space. Ledgers are nothing that Redis has.
func (f *fleet) redisTarget(t *testing.T, at *cluster.Process) load.Target {
	return redisTarget{of: map[string]*goredis.Client{"uid": redisClient(t, at, 0), "conv": redisClient(t, at, 1)}, sdk: f.client}
}

func (r redisTarget) Alloc(ctx context.Context, q load.Request) history.Op {
	return r.AllocMany(ctx, []load.Request{q})[0]
}

// AllocMany sends one pipeline for each space.
func (r redisTarget) AllocMany(ctx context.Context, qs []load.Request) []history.Op {
	cmds := make([]*goredis.IntCmd, len(qs))
	for space, c := range r.of {
		pipe := c.Pipeline()
		for i, q := range qs {
			if of, key, _ := strings.Cut(q.Key, "/"); of == space {
				cmds[i] = pipe.IncrBy(ctx, key, int64(q.N))
			}
		}
		if pipe.Len() > 0 {
			_, _ = pipe.Exec(ctx) // each command has its own error
		}
	}
	out := make([]history.Op, len(qs))
	for i, q := range qs {
		last, err := cmds[i].Result()
		if err != nil {
			out[i] = redisFailure(err)
			continue
		}
		out[i] = history.Op{Outcome: history.OK, First: last - int64(q.N) + 1, Count: q.N}
	}
	return out
}

// redisFailure: what is to be tried again was surely not carried out.
func redisFailure(err error) history.Op {
	o := history.Op{Outcome: history.Unknown, Err: strings.ReplaceAll(err.Error(), " ", "_")}
	if strings.HasPrefix(err.Error(), "TRYAGAIN ") {
		o.Outcome = history.Failed
	}
	return o
}

func (r redisTarget) Current(ctx context.Context, keys []string) []history.Op {
	out := make([]history.Op, len(keys))
	for space, c := range r.of {
		var names []string
		var at []int
		for i, k := range keys {
			if of, key, _ := strings.Cut(k, "/"); of == space {
				names, at = append(names, key), append(at, i)
			}
		}
		if len(names) == 0 {
			continue
		}
		values, err := c.MGet(ctx, names...).Result()
		for i := range names {
			if err != nil {
				out[at[i]] = redisFailure(err)
				continue
			}
			out[at[i]] = history.Op{Outcome: history.OK}
			if text, some := values[i].(string); some {
				if out[at[i]].Value, err = strconv.ParseInt(text, 10, 64); err != nil {
					out[at[i]] = redisFailure(err)
				}
			}
		}
	}
	return out
}

func (r redisTarget) Gaps(ctx context.Context, key string) ([]history.Gap, error) {
	return load.SDK(r.sdk).Gaps(ctx, key)
}
