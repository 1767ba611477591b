package chaos

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// custody asks the owners of two Sets for numbers of the same keys all the time,
// each directly, so that nothing leads a call to the Set that should answer it.
type custody struct {
	t    *testing.T
	mu   sync.Mutex
	seen []served
	// total are the answers that were looked at, by Set.
	total map[string]int
}

// served is a number that a Set gave out.
type served struct {
	set         string
	uid, first  uint64
	call, reply time.Time
}

// watchCustody asks until the test is over.
func (f *fleet) watchCustody(t *testing.T, uids []uint64, sets ...string) *custody {
	t.Helper()
	c := &custody{t: t, total: map[string]int{}}
	ctx, stop := context.WithCancel(context.Background())
	var asking sync.WaitGroup
	for _, set := range sets {
		conn, err := rpc.DialSeqGRPC(f.p.AllocsOf(set)[0].RPCAddr)
		must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		for _, uid := range uids {
			asking.Go(func() { c.ask(ctx, conn, set, uid) })
		}
	}
	t.Cleanup(func() {
		stop()
		asking.Wait()
	})
	return c
}

// ask leaves enough time between calls that asking is no load of its own.
func (c *custody) ask(ctx context.Context, conn *rpc.SeqConn, set string, uid uint64) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		cctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		s := served{set: set, uid: uid, call: time.Now()}
		rep, err := conn.Alloc(cctx, &seqpb.AllocRequest{Space: "uid", Uids: []uint64{uid}})
		s.reply = time.Now()
		cancel()
		if err != nil || len(rep.Failures) > 0 || len(rep.First) != 1 {
			continue
		}
		s.first = rep.First[0]
		c.mu.Lock()
		c.seen = append(c.seen, s)
		c.mu.Unlock()
	}
}

// since forgets what was asked before a time, and answers the rest.
func (c *custody) since(begin time.Time) []served {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = slices.DeleteFunc(c.seen, func(s served) bool { return s.call.Before(begin) })
	return slices.Clone(c.seen)
}

// oneOwner: since a time in which keys went from one Set to another at most, no key was
// served by the first again after it had been by the second, and its numbers only grew.
func (c *custody) oneOwner(begin time.Time, from, to string) {
	c.t.Helper()
	all := c.since(begin)
	if err := checkCustody(all, from, to); err != nil {
		c.t.Fatal(err)
	}
	for _, s := range all {
		c.total[s.set]++
	}
}

func checkCustody(all []served, from, to string) error {
	of := map[uint64][]served{}
	for _, s := range all {
		of[s.uid] = append(of[s.uid], s)
	}
	for uid, list := range of {
		for i := range list {
			for j := range list {
				a, b := &list[i], &list[j]
				switch {
				case i != j && a.first == b.first:
					return fmt.Errorf("uid %d: number %d twice: from %s and from %s", uid, a.first, a.set, b.set)
				case a.reply.Before(b.call) && a.first > b.first:
					return fmt.Errorf("uid %d: number %d of %s after number %d of %s", uid, b.first, b.set, a.first, a.set)
				case a.reply.Before(b.call) && a.set == to && b.set == from:
					return fmt.Errorf("uid %d: %s served number %d after %s had served number %d", uid, from, b.first, to, a.first)
				}
			}
		}
	}
	return nil
}

// The watch itself is no good if it cannot tell.
func TestCustodyNoticesTwoOwners(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	call := func(set string, first uint64, from, till int) served {
		return served{set, 7, first, at(from), at(till)}
	}
	for name, tt := range map[string]struct {
		all  []served
		good bool
	}{
		"a move":                {[]served{call("s2", 1, 0, 1), call("s2", 2, 2, 9), call("s3", 3, 8, 10), call("s3", 4, 11, 12)}, true},
		"no move":               {[]served{call("s2", 1, 0, 1), call("s2", 2, 2, 3)}, true},
		"the source goes on":    {[]served{call("s2", 1, 0, 1), call("s3", 2, 2, 3), call("s2", 3, 4, 5)}, false},
		"a number twice":        {[]served{call("s2", 1, 0, 9), call("s3", 1, 2, 8)}, false},
		"a number that is late": {[]served{call("s2", 2, 0, 1), call("s3", 1, 2, 3)}, false},
	} {
		if err := checkCustody(tt.all, "s2", "s3"); (err == nil) != tt.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}
