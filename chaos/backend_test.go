package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cluster"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// backend is a fleet as a chat back end uses it, over lines that can be cut.
type backend struct {
	*fleet
	lines map[string]*line
	next  uint64 // uid that no test has used
}

// What a chat back end asks for beside single numbers, through each door.
func TestAChatBackEndIsServedThroughEachDoor(t *testing.T) {
	w := lines(t, "a1", "a2")
	f := startBeside(t, cluster.ProcessOptions{Stores: 3, Allocs: 2, Redis: true, Settings: func(node string) map[string]string {
		if w[node] == nil {
			return nil
		}
		return map[string]string{"rpc_advertise": w[node].addr()}
	}})
	for _, a := range f.p.Allocs {
		w[a.ID].connect(a.RPCAddr)
	}
	b := &backend{fleet: f, lines: w}
	// First what wants keys to stay where they are, and connections to have their routes.
	f.until(t, "each node has its share", func(set *seqpb.SetStatus) bool {
		return set.Moving == 0 && set.Unowned == 0 && share(set, "a1") >= set.Sections/3 && share(set, "a2") >= set.Sections/3
	})
	_, err := f.client.AllocMany(t.Context(), fanOut(b.uids(1000)))
	must(t, err)
	t.Run("a fan-out outlives lost answers", b.fanOutOverLostAnswers)
	t.Run("a slow watcher is told and holds nobody up", b.watchSlowly)
	t.Run("a fan-out is answered key by key while an owner is down", b.fanOutToSome)
	t.Run("10 000 keys are read in a call, warm and cold", b.readMany)
	t.Run("a watch follows its keys", b.watchThroughTrouble)
}

const group = 10_000 // what one call may be of

// uidStride: neighbours are of one section, and these are of all.
const uidStride = 101

// uids are n that no test has used.
func (b *backend) uids(n int) []uint64 {
	all := make([]uint64, n)
	for i := range all {
		all[i] = b.next
		b.next += uidStride
	}
	return all
}

// uidsOf are n of an owner.
func (b *backend) uidsOf(t *testing.T, owner string, n int) []uint64 {
	t.Helper()
	var all []uint64
	for ; len(all) < n; b.next += uidStride {
		r, err := b.client.Route(t.Context(), client.UID(b.next))
		must(t, err)
		if r.Owner == owner {
			all = append(all, b.next)
		}
	}
	return all
}

// conn is a connection of a plain gRPC client.
func (b *backend) conn(t *testing.T, addr string) *rpc.SeqConn {
	t.Helper()
	conn, err := rpc.DialSeq(addr)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// moveAll moves each key to the other owner and back, so that none is held that
// nobody asked for since.
func (b *backend) moveAll(t *testing.T) {
	t.Helper()
	for _, node := range b.Allocs() {
		must(t, b.Drain(t.Context(), node))
		must(t, b.Undrain(t.Context(), node))
	}
}

// readMany reads the longest names there may be: a quarter of them held, a quarter
// handed back, and half never used.
func (b *backend) readMany(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	names, want := make([]string, group), make([]int64, group)
	var reqs []client.Request
	for i := range names {
		name := fmt.Sprintf("read_%d_", i)
		names[i] = name + strings.Repeat("x", 128-len(name))
		if i%2 == 0 {
			want[i] = int64(1 + i%7)
			reqs = append(reqs, client.Request{Key: client.Name("conv", names[i]), N: want[i]})
		}
	}
	_, err := b.client.AllocMany(ctx, reqs)
	must(t, err)
	b.moveAll(t)
	reqs = reqs[:0]
	for i := 0; i < group; i += 4 {
		want[i]++
		reqs = append(reqs, client.Request{Key: client.Name("conv", names[i]), N: 1})
	}
	_, err = b.client.AllocMany(ctx, reqs)
	must(t, err)

	compare := func(t *testing.T, began time.Time, got func(i int) int64) {
		t.Helper()
		t.Logf("%d keys in %v", group, time.Since(began).Round(time.Millisecond))
		for i := range want {
			if got(i) != want[i] {
				t.Fatalf("key %d is at %d, want %d", i, got(i), want[i])
			}
		}
	}
	t.Run("sdk", func(t *testing.T) {
		marks := make([]client.Mark, group)
		for i := range marks {
			marks[i] = client.Mark{Key: client.Name("conv", names[i]), Last: want[i] / 2}
		}
		began := time.Now()
		got, err := b.client.Diff(ctx, marks)
		must(t, err)
		compare(t, began, func(i int) int64 { return got[i].Missing + want[i]/2 })
	})
	t.Run("grpc", func(t *testing.T) {
		got, answered := make([]int64, group), 0
		began := time.Now()
		for _, node := range b.Allocs() { // each owner answers for its keys, and says of which not
			rep, err := b.conn(t, b.lines[node].addr()).Current(ctx, &seqpb.CurrentRequest{Space: "conv", Names: names})
			must(t, err)
			elsewhere := map[uint32]bool{}
			for _, f := range rep.Failures {
				if f.Code != seqpb.Code_CODE_NOT_OWNER || f.OwnerAddr == "" {
					t.Fatalf("%s: %v", node, f)
				}
				elsewhere[f.Index] = true
			}
			for i, n := range rep.Current {
				if !elsewhere[uint32(i)] {
					got[i] = int64(n)
					answered++
				}
			}
		}
		if answered != group {
			t.Errorf("%d keys were answered, by one owner each", answered)
		}
		compare(t, began, func(i int) int64 { return got[i] })
	})
	t.Run("redis", func(t *testing.T) {
		redis := goredis.NewClient(&goredis.Options{Addr: b.p.Allocs[0].RedisAddr, DB: 1, Protocol: 2, ReadTimeout: time.Minute})
		defer func() { _ = redis.Close() }()
		began := time.Now()
		got, err := redis.MGet(ctx, names...).Result()
		must(t, err)
		compare(t, began, func(i int) int64 {
			if got[i] == nil {
				return 0
			}
			n, err := strconv.ParseInt(got[i].(string), 10, 64)
			must(t, err)
			return n
		})
	})
}

// fanOut is a message to a group: its UUID is the request id of each member's number.
func fanOut(uids []uint64) []client.Request {
	id := newID()
	reqs := make([]client.Request, len(uids))
	for i, uid := range uids {
		reqs[i] = client.Request{Key: client.UID(uid), N: int64(1 + i%3), RequestID: id}
	}
	return reqs
}

func (b *backend) fanOutOverLostAnswers(t *testing.T) {
	// lose has the next answer of each node get lost, and tells how many did.
	lose := func() (lost func() int) {
		before := int32(0)
		for _, l := range b.lines {
			before += l.lost.Load()
			l.losing.Store(true)
		}
		return func() int {
			now := int32(0)
			for _, l := range b.lines {
				l.losing.Store(false)
				now += l.lost.Load()
			}
			return int(now - before)
		}
	}
	t.Run("sdk", func(t *testing.T) {
		reqs := fanOut(b.uids(group))
		lost := lose()
		res, err := b.client.AllocMany(t.Context(), reqs)
		must(t, err)
		n := lost()
		replayed := 0
		for i, r := range res {
			if r.First != 1 || r.Count != reqs[i].N {
				t.Fatalf("%+v: a first message's number", r)
			}
			if r.Replayed {
				replayed++
			}
		}
		t.Logf("%d answers were lost, %d keys answered again", n, replayed)
		if n == 0 || replayed == 0 {
			t.Errorf("%d answers were lost, and %d of the numbers are repeated", n, replayed)
		}
		b.sameAgain(t, reqs)
	})
	t.Run("grpc", func(t *testing.T) {
		req := &seqpb.AllocRequest{Space: "uid", Uids: b.uidsOf(t, "a1", group)}
		id := newID()
		for range req.Uids {
			req.RequestIds = append(req.RequestIds, id[:])
		}
		conn := b.conn(t, b.lines["a1"].addr())
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, err := conn.Current(ctx, &seqpb.CurrentRequest{Space: "uid", Uids: req.Uids[:1]}) // connects
		must(t, err)
		lost := lose()
		_, err = conn.Alloc(ctx, req)
		if n := lost(); err == nil || n != 1 {
			t.Fatalf("%d answers were lost, and the call ended with %v", n, err)
		}
		t.Log(err)
		for range 2 {
			rep, err := conn.Alloc(ctx, req)
			must(t, err)
			if len(rep.Failures) != 0 || len(rep.Replayed) != group {
				t.Fatalf("%d failures, %d replayed", len(rep.Failures), len(rep.Replayed))
			}
			for i, first := range rep.First {
				if first != 1 {
					t.Fatalf("uid %d: %d", req.Uids[i], first)
				}
			}
		}
	})
}

// sameAgain repeats a fan-out that was answered whole.
func (b *backend) sameAgain(t *testing.T, reqs []client.Request) {
	t.Helper()
	res, err := b.client.AllocMany(t.Context(), reqs)
	must(t, err)
	keys := make([]client.Key, len(reqs))
	for i, r := range res {
		if r.First != 1 || r.Count != reqs[i].N || !r.Replayed {
			t.Fatalf("repeated: %+v", r)
		}
		keys[i] = r.Key
	}
	now, err := b.client.CurrentMany(t.Context(), keys)
	must(t, err)
	for i, r := range now {
		if r.Current != reqs[i].N {
			t.Fatalf("%s is at %d after a message of %d numbers", r.Key, r.Current, reqs[i].N)
		}
	}
}

func (b *backend) fanOutToSome(t *testing.T) {
	reqs := fanOut(b.uids(group))
	down := map[client.Key]bool{}
	for _, r := range reqs {
		route, err := b.client.Route(t.Context(), r.Key)
		must(t, err)
		down[r.Key] = route.Owner == "a2"
	}
	must(t, b.Kill("a2"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	res, err := b.client.AllocMany(ctx, reqs)
	var partial *client.PartialError
	if !errors.As(err, &partial) || partial.Total != group {
		t.Errorf("with an owner down: %v", err)
	}
	failed := 0
	for i, r := range res {
		var e *client.Error
		switch {
		case r.Err == nil && !down[r.Key] && r.First == 1 && r.Count == reqs[i].N:
		case down[r.Key] && errors.As(r.Err, &e) && e.Key == r.Key && e.Kind != client.KindInvalidArgument:
			failed++
		default:
			t.Fatalf("%+v, of an owner that is down: %v", r, down[r.Key])
		}
	}
	t.Logf("%d of %d keys failed: %v", failed, group, err)
	if failed == 0 || failed == group || failed != partial.Failed {
		t.Errorf("%d keys failed, the error speaks of %d", failed, partial.Failed)
	}
	must(t, b.process("a2").StartReady(t.Context()))
	res, err = b.client.AllocMany(t.Context(), reqs)
	must(t, err)
	for i, r := range res {
		if r.First != 1 || r.Count != reqs[i].N || !r.Replayed && !down[r.Key] {
			t.Fatalf("repeated: %+v, of an owner that was down: %v", r, down[r.Key])
		}
	}
	b.sameAgain(t, reqs)

	// A plain client is told where to go with the keys of others.
	req := &seqpb.AllocRequest{Space: "uid", Uids: b.uids(group)}
	cctx, ccancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer ccancel()
	rep, err := b.conn(t, b.lines["a1"].addr()).Alloc(cctx, req)
	must(t, err)
	elsewhere := map[uint32]bool{}
	for _, f := range rep.Failures {
		if f.Code != seqpb.Code_CODE_NOT_OWNER || f.OwnerAddr != b.lines["a2"].addr() {
			t.Fatalf("of another owner: %v", f)
		}
		elsewhere[f.Index] = true
	}
	for i, first := range rep.First {
		if elsewhere[uint32(i)] == (first == 1) {
			t.Fatalf("uid %d: %d", req.Uids[i], first)
		}
	}
	if len(elsewhere) == 0 || len(elsewhere) == group {
		t.Errorf("%d of %d keys are of the other owner", len(elsewhere), group)
	}
}
