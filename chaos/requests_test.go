package chaos

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func newID() (id [16]byte) {
	_, _ = rand.Read(id[:])
	return id
}

// asked is an answer, through whichever door.
type asked struct {
	first    int64
	replayed bool
	since    time.Time
}

// idDoor is a way to allocate from a conversation with a request id.
type idDoor struct {
	name  string
	alloc func(t *testing.T, conv string, n int64, id [16]byte) (asked, error)
	// wrong reports an answer that says the call itself is.
	wrong func(error) bool
}

func (f *fleet) idDoors(t *testing.T) []idDoor {
	var clients []*client.Client
	for range 4 {
		clients = append(clients, dialClient(t, f.p.Addrs()...))
	}
	conns := map[string]*rpc.SeqConn{}
	for _, addr := range f.p.Addrs() {
		conn, err := rpc.DialSeqGRPC(addr)
		must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		conns[addr] = conn
	}
	return []idDoor{{
		name: "sdk",
		alloc: func(t *testing.T, conv string, n int64, id [16]byte) (asked, error) {
			r, err := clients[mathrand.IntN(len(clients))].AllocN(t.Context(), client.Name("conv", conv), n, client.WithRequestID(id))
			return asked{r.First, r.Replayed, r.WindowSince}, err
		},
		wrong: func(err error) bool { return errors.Is(err, client.ErrInvalidArgument) },
	}, {
		name: "grpc",
		alloc: func(t *testing.T, conv string, n int64, id [16]byte) (asked, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			r, err := f.client.Route(ctx, client.Name("conv", conv))
			must(t, err)
			rep, err := conns[r.Addr].Alloc(ctx, &seqpb.AllocRequest{Space: "conv", Names: []string{conv}, Counts: []uint32{uint32(n)}, RequestIds: [][]byte{id[:]}})
			if err != nil {
				return asked{}, err
			}
			if len(rep.Failures) > 0 {
				return asked{}, wire.Refusef(rep.Failures[0].Code, "%s", rep.Failures[0].Message)
			}
			return asked{int64(rep.First[0]), len(rep.Replayed) > 0, time.UnixMilli(int64(rep.WindowSinceMs))}, nil
		},
		wrong: func(err error) bool { return wire.CodeOf(err) == seqpb.Code_CODE_INVALID_ARGUMENT },
	}}
}

// Request ids through both doors that have them. The Redis door has none: an INCR
// carries nothing but its key.
func TestRequestIDsAreKeptThroughEachDoor(t *testing.T) {
	f := startFleet(t, fleetOptions{stores: 3, allocs: 2, redis: true, settings: func(node string) map[string]string {
		if node[0] != 'a' {
			return nil
		}
		return map[string]string{"spaces": "['conv:request_entries_max=10000']"}
	}})
	t.Run("names that are none are refused", func(t *testing.T) { nameNothing(t, f) })
	t.Run("seqctl", func(t *testing.T) { repeatByHand(t, f) })
	for _, d := range f.idDoors(t) {
		first := map[string]asked{} // by conversation; its id is its own
		ids := map[string][16]byte{}
		t.Run(d.name+"/the same id", func(t *testing.T) {
			for _, conv := range []string{d.name + "-1", d.name + "-2", d.name + "-3", d.name + "-4"} {
				ids[conv] = newID()
				a, err := d.alloc(t, conv, 5, ids[conv])
				must(t, err)
				if a.first != 1 || a.replayed || a.since.IsZero() {
					t.Errorf("%s: %+v", conv, a)
				}
				first[conv] = a
				if _, err := d.alloc(t, conv, 6, ids[conv]); !d.wrong(err) {
					t.Errorf("%s: the same id for another count: %v", conv, err)
				}
				if other, err := d.alloc(t, conv+"-other", 5, ids[conv]); err != nil || other.replayed || other.first != 1 {
					t.Errorf("%s: the same id for another key: %+v, %v", conv, other, err)
				}
			}
		})
		again := func(t *testing.T) {
			for conv, id := range ids {
				a, err := d.alloc(t, conv, 5, id)
				must(t, err)
				if a.first != first[conv].first || !a.replayed || a.since.After(first[conv].since.Add(time.Millisecond)) {
					t.Errorf("%s: %+v, was %+v", conv, a, first[conv])
				}
			}
		}
		t.Run(d.name+"/again", again)
		t.Run(d.name+"/at once", func(t *testing.T) { race(t, f, d) })
		t.Run(d.name+"/after a kill", func(t *testing.T) {
			for _, node := range f.Allocs() {
				must(t, f.Kill(node))
				must(t, f.process(node).StartReady(t.Context()))
			}
			again(t)
		})
		t.Run(d.name+"/after a planned move", func(t *testing.T) {
			for _, node := range f.Allocs() {
				must(t, f.Drain(t.Context(), node))
				again(t)
				must(t, f.Undrain(t.Context(), node))
			}
		})
	}
	for _, d := range f.idDoors(t) {
		t.Run(d.name+"/when the window is full", func(t *testing.T) { overfill(t, f, d) })
	}
}

// race sends one request many times at once, the first of a cold key.
func race(t *testing.T, f *fleet, d idDoor) {
	const rounds, copies = 5, 500
	for range rounds {
		conv, id := "race-"+rand.Text(), newID()
		var wg sync.WaitGroup
		for range copies {
			wg.Go(func() {
				if a, err := d.alloc(t, conv, 3, id); err != nil || a.first != 1 {
					t.Errorf("%+v, %v", a, err)
				}
			})
		}
		wg.Wait()
		if now, err := f.client.Current(t.Context(), client.Name("conv", conv)); err != nil || now != 3 {
			t.Errorf("one request of 3 took the counter to %d, %v", now, err)
		}
	}
}

// overfill brings one conversation more ids than the space may have on a node. What
// is forgotten is the oldest, and every answer says so.
func overfill(t *testing.T, f *fleet, d idDoor) {
	const sent, batch = 24_000, 1000
	conv := d.name + "-full"
	key := client.Name("conv", conv)
	type message struct {
		id [16]byte
		at time.Time
	}
	msgs := make([]message, sent)
	for from := 0; from < sent; from += batch {
		reqs := make([]client.Request, batch)
		for i := range reqs {
			m := message{newID(), time.Now()}
			msgs[from+i] = m
			reqs[i] = client.Request{Key: key, N: 1, RequestID: m.id}
		}
		res, err := f.client.AllocMany(t.Context(), reqs)
		must(t, err)
		for i, r := range res {
			if r.Err != nil || r.First != int64(from+i+1) {
				t.Fatalf("message %d: %+v", from+i, r)
			}
		}
	}
	// The newest first, since what is forgotten is allocated anew.
	for i := sent - 1; i >= 0; i -= 499 {
		a, err := d.alloc(t, conv, 1, msgs[i].id)
		must(t, err)
		if a.replayed && a.first == int64(i+1) {
			continue
		}
		if a.replayed || msgs[i].at.After(a.since) {
			t.Fatalf("message %d of %v was answered %+v", i, msgs[i].at, a)
		}
		if kept := sent - 1 - i; kept < 4000 || kept > 11_000 {
			t.Errorf("%d of at most 10 000 were remembered", kept)
		}
		return
	}
	t.Error("nothing was forgotten")
}

// nameNothing gives each door names that no key has, and the longest that one may have.
func nameNothing(t *testing.T, f *fleet) {
	const space = "conv"
	seqctl := program(t, "seqctl")
	redis := goredis.NewClient(&goredis.Options{Addr: f.p.Allocs[0].RedisAddr, DB: 1, MaxRetries: -1, Protocol: 2})
	defer func() { _ = redis.Close() }()
	conn, err := rpc.DialSeqGRPC(f.p.Allocs[0].RPCAddr)
	must(t, err)
	defer func() { _ = conn.Close() }()
	longest := strings.Repeat("ä", 64)
	doors := map[string]func(name string) error{
		"sdk": func(name string) error {
			_, err := f.client.Alloc(t.Context(), client.Name(space, name))
			if err != nil && !errors.Is(err, client.ErrInvalidArgument) {
				t.Errorf("sdk: %q: %v", name, err)
			}
			return err
		},
		"grpc": func(name string) error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err := conn.Alloc(ctx, &seqpb.AllocRequest{Space: space, Names: []string{name}})
			if err != nil && wire.CodeOf(err) != seqpb.Code_CODE_INVALID_ARGUMENT {
				t.Errorf("grpc: %q: %v", name, err)
			}
			return err
		},
		"redis": func(name string) error { return redis.Incr(t.Context(), name).Err() },
		"seqctl": func(name string) error {
			out, err := exec.CommandContext(t.Context(), seqctl, "--server", f.p.Addrs()[0], "--space", space, "alloc", "--", name).CombinedOutput()
			if err != nil && (!strings.HasPrefix(string(out), "error: ") || exitCode(err) != 2) {
				t.Errorf("seqctl: %q: %v, %s", name, err, out)
			}
			return err
		},
	}
	for door, alloc := range doors {
		for what, name := range map[string]string{"empty": "", "of 129 bytes": longest + "a", "not UTF-8": "a\xffb"} {
			if alloc(name) == nil {
				t.Errorf("%s takes a name that is %s", door, what)
			}
		}
		if err := alloc(longest); err != nil {
			t.Errorf("%s refuses a name of 128 bytes: %v", door, err)
		}
	}
	if now, err := f.client.Current(t.Context(), client.Name(space, longest)); err != nil || now < int64(len(doors)-1) {
		t.Errorf("the longest name is at %d, %v", now, err)
	}
}

// repeatByHand: seqctl repeats a call by its id, and refuses the id for another count.
func repeatByHand(t *testing.T, f *fleet) {
	seqctl := program(t, "seqctl")
	call := func(n string) (string, error) {
		out, err := exec.CommandContext(t.Context(), seqctl, "--server", f.p.Addrs()[0], "--space", "conv", "--output", "json",
			"alloc", "by-hand", "-n", n, "--request-id", "6f1c1a52-3b0e-4a3c-9d55-0a9b6f2b7c11").CombinedOutput()
		return string(out), err
	}
	for _, replayed := range []string{`"replayed":false`, `"replayed":true`} {
		if out, err := call("5"); err != nil || !strings.Contains(out, `"first":1,`) || !strings.Contains(out, replayed) {
			t.Errorf("want first 1 and %s: %v, %s", replayed, err, out)
		}
	}
	if out, err := call("6"); exitCode(err) < 1 || !strings.HasPrefix(out, "error: ") {
		t.Errorf("the same id for another count: %v, %s", err, out)
	} else {
		t.Log(out)
	}
}

func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}
