package chaos

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/chaos/check"
	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cluster"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// A thousand sections with a thousand warm keys each move from one node to
// another while others use some of their keys. In the short form they have twenty.
//
// A section's frozen time is read from the logs of its two owners, which are on
// one machine and so on one clock: from "section shut", when the first caller may
// be turned away, to "section opened" by the next owner. What callers see of it is
// in the latencies of those that used keys meanwhile.
func TestAPlannedMoveFreezesEachSectionShortlyAndLosesNothing(t *testing.T) {
	const sections = 1000
	keys := sections * 1000
	if long() == 0 {
		keys /= 50
	}
	f := startProcesses(t, cluster.ProcessOptions{
		Stores: 3, Allocs: 2, Sections: sections,
		Settings: func(string) map[string]string { return map[string]string{"log_level": "debug"} },
	})
	from, to := f.p.Allocs[0], f.p.Allocs[1]
	f.drain(t, to.ID)
	begin := time.Now()
	allocAll(t, f.client, keys, 1)
	t.Logf("%d keys warmed in %v", keys, time.Since(begin).Round(time.Millisecond))

	var took time.Duration
	c := clients{targets: f.targets(t, 4), keys: 200, rate: 100, timeout: 10 * time.Second}
	h := f.underLoad(t, c, func(s *stage) {
		pause(t, time.Second)
		begin := time.Now()
		s.planned("move", from.ID, func() {
			must(t, f.Undrain(s.ctx, to.ID))
			s.drain(from.ID)
			took = time.Since(begin)
		})
		s.until("it owns them all", func(set *seqpb.SetStatus) bool { return share(set, to.ID) == sections })
	})
	lossless(t, judge(t, h, check.Options{}))
	logLatencies(t, h)

	frozen := frozenTimes(t, from, to)
	n := len(frozen)
	if n != sections {
		t.Errorf("%d sections moved, want %d", n, sections)
	}
	if n == 0 {
		return
	}
	p50, p99, worst := frozen[n/2], frozen[n*99/100], frozen[n-1]
	t.Logf("%d sections with %d keys moved in %v; a section was frozen for p50 %v, p99 %v, longest %v", n, keys, took.Round(time.Millisecond), p50, p99, worst)

	begin = time.Now()
	currentAll(t, f.client, keys, 1)
	allocAll(t, f.client, keys, 2)
	t.Logf("all keys read and continued at exactly the next number, in %v", time.Since(begin).Round(time.Millisecond))
	if limit := 50 * time.Millisecond; long() == 1 && p99 >= limit {
		t.Errorf("a section is frozen for %v (p99), %v are allowed", p99, limit)
	}
}

const moveBatch = 5000

// spread is the uid of the i-th key: 250 or fewer fill a block, so that every
// section has as many.
func spread(i, keys int) client.Key {
	block := min(250, keys/1000)
	return client.UID(uint64(i/block<<8 | i%block))
}

// allocAll takes one number of each key, which must be want.
func allocAll(t *testing.T, c *client.Client, keys int, want int64) {
	t.Helper()
	for from := 0; from < keys; from += moveBatch {
		reqs := make([]client.Request, min(moveBatch, keys-from))
		for i := range reqs {
			reqs[i] = client.Request{Key: spread(from+i, keys), N: 1}
		}
		res, err := c.AllocMany(t.Context(), reqs)
		must(t, err)
		for _, r := range res {
			if r.Err != nil || r.First != want || r.Discontinuity != nil {
				t.Fatalf("key %s: want %d, got %+v", r.Key, want, r)
			}
		}
	}
}

func currentAll(t *testing.T, c *client.Client, keys int, want int64) {
	t.Helper()
	for from := 0; from < keys; from += moveBatch {
		ks := make([]client.Key, min(moveBatch, keys-from))
		for i := range ks {
			ks[i] = spread(from+i, keys)
		}
		res, err := c.CurrentMany(t.Context(), ks)
		must(t, err)
		for _, r := range res {
			if r.Err != nil || r.Current != want {
				t.Fatalf("key %s: current should be %d, got %+v", r.Key, want, r)
			}
		}
	}
}

// frozenTimes are, in order, how long sections that went from one node to another were served by nobody.
func frozenTimes(t *testing.T, from, to *cluster.Process) []time.Duration {
	t.Helper()
	shut, opened := map[uint64]time.Time{}, map[uint64]time.Time{}
	sectionEvents(t, from, "section shut", func(sec uint64, at time.Time) { shut[sec] = at }) // the last one counts
	sectionEvents(t, to, "section opened", func(sec uint64, at time.Time) { opened[sec] = at })
	var out []time.Duration
	for sec, at := range shut {
		if o, ok := opened[sec]; ok && o.After(at.Add(-time.Millisecond)) {
			out = append(out, o.Sub(at))
		}
	}
	slices.Sort(out)
	return out
}

// sectionEvents are the lines of a log about one section each.
func sectionEvents(t *testing.T, p *cluster.Process, message string, f func(sec uint64, at time.Time)) {
	t.Helper()
	logLines(t, p, message, func(at time.Time, b []byte) {
		var fields struct{ Section uint64 }
		must(t, json.Unmarshal(b, &fields))
		f(fields.Section, at)
	})
}

// logLines reads lines TIME<tab>LEVEL<tab>…<tab>MESSAGE<tab>{fields} of a log.
func logLines(t *testing.T, p *cluster.Process, message string, f func(at time.Time, fields []byte)) {
	t.Helper()
	file, err := os.Open(p.LogPath)
	must(t, err)
	defer file.Close()
	sc := bufio.NewScanner(file)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		parts := strings.Split(sc.Text(), "\t")
		n := len(parts)
		if n < 4 || parts[n-2] != message {
			continue
		}
		at, err := time.Parse("2006-01-02T15:04:05.000Z0700", parts[0])
		must(t, err)
		f(at, []byte(parts[n-1]))
	}
	must(t, sc.Err())
}
