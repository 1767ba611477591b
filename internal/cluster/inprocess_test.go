package cluster

import (
	"context"
	"errors"
	"maps"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, rpctest.IgnoreKitex()...) }

func start(t *testing.T, o Options) *Cluster {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.RaftTimeout == 0 {
		o.RaftTimeout = 200 * time.Millisecond
	}
	o.StopLinger = time.Millisecond
	o.Logger = zaptest.NewLogger(t)
	begin := time.Now()
	c, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %v", time.Since(begin))
	return c
}

func stop(t *testing.T, c *Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

func dial(t *testing.T, c *Cluster) *client.Client {
	t.Helper()
	cl, err := client.Dial(context.Background(), c.Addrs())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

func alloc(t *testing.T, cl *client.Client, uid uint64) client.Result {
	t.Helper()
	r, err := cl.Alloc(context.Background(), client.UID(uid))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestACleanRestartLosesNoNumber(t *testing.T) {
	dir := t.TempDir()
	var want int64
	for range 3 {
		c := start(t, Options{Dir: dir})
		cl := dial(t, c)
		for range 5 {
			want++
			if r := alloc(t, cl, 7); r.First != want || r.Discontinuity != nil {
				t.Fatalf("got %+v, want %d", r, want)
			}
		}
		cl.Close()
		stop(t, c)
	}
}

func TestARestartAfterAKillContinuesFromTheArena(t *testing.T) {
	dir := t.TempDir()
	var want int64
	for range 3 {
		c := start(t, Options{Dir: dir})
		cl := dial(t, c)
		for range 5 {
			want++
			if r := alloc(t, cl, 7); r.First != want || r.Discontinuity != nil {
				t.Fatalf("got %+v, want %d", r, want)
			}
		}
		c.Kill()
		cl.Close()
	}
}

func TestARestartOnOtherPortsContinues(t *testing.T) {
	dir := t.TempDir()
	c := start(t, Options{Dir: dir})
	for want := int64(1); want <= 3; want++ {
		if r := alloc(t, dial(t, c), 7); r.First != want {
			t.Fatalf("got %+v, want %d", r, want)
		}
	}
	stop(t, c)
	for name, addr := range c.info.data.Addrs {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer ln.Close()
	}
	before := maps.Clone(c.info.data.Addrs)
	c = start(t, Options{Dir: dir})
	for name, addr := range c.info.data.Addrs {
		if addr == before[name] {
			t.Errorf("%s is on %s still", name, addr)
		}
	}
	if r := alloc(t, dial(t, c), 7); r.First != 4 || r.Discontinuity != nil {
		t.Fatalf("got %+v, want 4", r)
	}
	stop(t, c)
}

func TestADirectoryIsForOneClusterAtATime(t *testing.T) {
	dir := t.TempDir()
	c := start(t, Options{Dir: dir})
	_, err := Start(Options{Dir: dir})
	var inUse *InUseError
	if !errors.As(err, &inUse) || inUse.PID == "" {
		t.Fatalf("%v", err)
	}
	stop(t, c)
	if _, err := Start(Options{Dir: dir, Stores: 5}); err == nil {
		t.Fatal("another number of stores was accepted")
	}
}
