package raise

import (
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/testdata"
)

// traceResult is what a policy does to the chat trace.
type traceResult struct {
	raises, messages int
	// wasted numbers are lost by a machine that is lost then, on average over the day; most, at the worst moment.
	wasted float64
	most   ids.Seq
}

func (r traceResult) perMillion() float64 { return float64(r.raises) * 1e6 / float64(r.messages) }

// playTrace gives each message of the trace a number, on one machine on which every
// conversation stays: what it costs at the most. A raise that is due comes at once.
func playTrace(tr *testdata.Trace, s Steps) (r traceResult) {
	type counter struct{ cur, bound ids.Seq }
	p, space := NewPolicy(s), ids.DefaultSpaces()[1]
	keys, counters := make([]ids.Key, len(tr.Conversations)), make([]counter, len(tr.Conversations))
	for i, c := range tr.Conversations {
		keys[i], _ = space.NameKey(c.Name)
	}
	begun := time.Now()
	atRisk, sum := ids.Seq(0), 0.0
	for _, m := range tr.Sends {
		if m.Retry {
			continue
		}
		k, c, now := keys[m.Conversation], &counters[m.Conversation], begun.Add(m.At)
		raise := func() {
			step := p.Step(k, c.cur, now)
			p.Granted(k, c.cur, step, now)
			if c.cur+step > c.bound {
				atRisk += c.cur + step - c.bound
				c.bound = c.cur + step
			}
			r.raises++
		}
		if c.cur == c.bound {
			raise()
		}
		c.cur++
		atRisk--
		r.messages++
		if RunsLow(p, k, c.bound-c.cur, 1, s.Largest()/2) {
			raise()
		}
		sum += float64(atRisk)
		r.most = max(r.most, atRisk)
	}
	r.wasted = sum / float64(r.messages)
	return r
}

// The table of docs/steps.md; run with -v.
func TestStepPoliciesOnTheChatTrace(t *testing.T) {
	tr, err := testdata.ChatTrace()
	if err != nil {
		t.Fatal(err)
	}
	adaptive := func(target time.Duration) Steps {
		return Steps{Adaptive: true, Min: DefaultMin, Max: DefaultMax, Target: target}
	}
	t.Logf("%d messages in %d conversations", tr.Messages, len(tr.Conversations))
	t.Logf("| policy | lost per machine crash, mean | at the worst moment | raises per million messages |")
	results := map[string]traceResult{}
	for _, c := range []struct {
		name  string
		steps Steps
	}{
		{"fixed 10", Fixed(10)}, {"fixed 100", Fixed(100)}, {"fixed 1000", Fixed(1000)}, {"fixed 10 000", Fixed(10_000)},
		{"adaptive 10…10 000, 1 min", adaptive(time.Minute)},
		{"adaptive 10…10 000, 10 min", adaptive(10 * time.Minute)},
		{"adaptive 10…10 000, 1 h", adaptive(time.Hour)},
	} {
		r := playTrace(tr, c.steps)
		results[c.name] = r
		t.Logf("| %s | %.0f | %d | %.0f |", c.name, r.wasted, r.most, r.perMillion())
	}
	small, hundred, mid := results["fixed 10"], results["fixed 100"], results["adaptive 10…10 000, 10 min"]
	if mid.raises > small.raises/2 || mid.wasted > hundred.wasted/2 {
		t.Errorf("adaptive: %+v; fixed 10: %+v; fixed 100: %+v", mid, small, hundred)
	}
}
