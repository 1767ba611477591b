package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// One call stalls for a second. Measured from when each call was due, the
// hundred that were held up are late too.
func TestFixedRateChargesAStallToAllCallsThatItHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stall := func(call int) time.Duration {
			if call == 100 {
				return time.Second
			}
			return time.Millisecond
		}
		paced, _, err := benched(t, &fake{delay: stall}, config{callers: 1, keys: 10, duration: 10 * time.Second, rate: 100})
		if err != nil {
			t.Fatal(err)
		}
		if paced.Allocations < 990 || paced.Allocations > 1001 {
			t.Errorf("%d allocations at 100/s for 10 s", paced.Allocations)
		}
		// 100 calls of 1000 were held up, by 0 to 1 s: one in a hundred by 0.9 s.
		if p99 := paced.Latency.P99; p99 < 800_000 || paced.Latency.P50 > 1100 {
			t.Errorf("p50 %v µs, p99 %v µs", paced.Latency.P50, p99)
		}
		free, _, _ := benched(t, &fake{delay: stall}, config{callers: 1, keys: 10, duration: 10 * time.Second})
		if free.Latency.P99 > 1100 || free.Latency.Max < 999_000 {
			t.Errorf("as fast as it goes: p99 %v µs, max %v µs", free.Latency.P99, free.Latency.Max)
		}
	})
}

func TestWarmUpIsCheckedButNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{delay: func(int) time.Duration { return time.Millisecond }}
		r, _, err := benched(t, f, config{callers: 1, keys: 10, warmup: 3 * time.Second, duration: time.Second, touch: true})
		if err != nil || !r.Verified || r.Seconds < 0.99 || r.Seconds > 1.01 || r.Allocations < 990 || r.Allocations > 1001 {
			t.Errorf("%v %+v", err, r)
		}
		if f.calls < 3990 {
			t.Errorf("%d calls in all", f.calls)
		}
	})
}

func TestAnInterruptedRunReportsWhatItHas(t *testing.T) {
	for name, warmup := range map[string]time.Duration{"measuring": 0, "warming up": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, cancel)
				c := config{target: targetNative, mode: modeSingle, dist: distUniform, space: "uid", output: "table", callers: 2, batch: 1, keys: 10, warmup: warmup, duration: time.Hour, timeout: time.Second}
				if err := c.check(); err != nil {
					t.Fatal(err)
				}
				var out, errs bytes.Buffer
				if err := bench(ctx, &c, (&fake{}).open, &out, &errs); err != nil {
					t.Fatal(err)
				}
				seconds := "in 1.00 s"
				if warmup > 0 {
					seconds = "in 0.00 s"
				}
				for _, want := range []string{"interrupted", seconds, "yes: no duplicate"} {
					if !strings.Contains(out.String(), want) {
						t.Errorf("no %q in:\n%s", want, out.String())
					}
				}
			})
		})
	}
}

func TestATargetThatAlwaysFailsIsNotFlooded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{bend: func(_ int, keys []int, got []number) { fail(got[:len(keys)], errFake, false) }, delay: func(int) time.Duration { return 0 }}
		r, _, err := benched(t, f, config{callers: 1, keys: 10, duration: 10 * time.Second, noVerify: true})
		if err == nil || !strings.Contains(err.Error(), "all") || r.FirstError != errFake.Error() || f.calls > 200 {
			t.Errorf("%v, %d calls, %+v", err, f.calls, r)
		}
	})
}

func TestHistogramFileHasEveryCall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h.hgrm")
	synctest.Test(t, func(t *testing.T) {
		f := &fake{delay: func(int) time.Duration { return 2 * time.Millisecond }}
		if _, _, err := benched(t, f, config{callers: 1, keys: 10, duration: time.Second, histogram: path}); err != nil {
			t.Fatal(err)
		}
	})
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(b); !strings.Contains(text, "Percentile") || !regexp.MustCompile(`Total count    = +50[01]]`).MatchString(text) || !strings.Contains(text, "2000.") {
		t.Errorf("%s", text)
	}
}

func TestChoicesRepeatAndStayInRange(t *testing.T) {
	for _, dist := range distNames {
		c := &config{keys: 1000, dist: dist, seed: 7}
		a, b, other := newChooser(c, 1), newChooser(c, 1), newChooser(c, 2)
		seen, differ := map[int]int{}, false
		for range 10_000 {
			k := a.next()
			if k != b.next() || k < 0 || k >= c.keys {
				t.Fatalf("%s: key %d", dist, k)
			}
			differ = differ || k != other.next()
			seen[k]++
		}
		most := 0
		for _, n := range seen {
			most = max(most, n)
		}
		if skewed := most > 1000; skewed != (dist == distZipf) || !differ {
			t.Errorf("%s: the most popular key has %d of 10000 calls, callers differ: %v", dist, most, differ)
		}
	}
}
