package check

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// Options of a check. The zero value is the default.
type Options struct {
	// Step is the largest by which bounds were raised; 0 takes the history's, else 10 000.
	Step int64
	// Settle is how long after a fault is lifted its effects are still put
	// down to it; 0 means 3 s.
	Settle time.Duration
	// Limits is the longest time that a key may go unserved, by fault name; no
	// entry, no limit.
	Limits map[string]time.Duration
	// Keep is how many violations the report shows; 0 means 20. All are counted.
	Keep int
}

const (
	defaultStep   = 10_000
	defaultSettle = 3 * time.Second
	defaultKeep   = 20
	forever       = math.MaxInt64
)

// Check judges a history.
func Check(h *history.History, o Options) *Report {
	o.Step = cmp.Or(o.Step, h.Step, defaultStep)
	o.Settle = cmp.Or(o.Settle, defaultSettle)
	o.Keep = cmp.Or(o.Keep, defaultKeep)
	c := &checker{h: h, o: o, r: &Report{
		Seed: h.Seed, Operations: len(h.Ops),
		Faults: map[string]int{}, Skipped: append([]string{}, h.Skipped...),
		MaxUnavailableMS: map[string]int64{},
	}}
	for _, f := range h.Faults {
		c.r.Faults[f.Name]++
		c.end = max(c.end, f.End)
	}
	for i := range h.Ops {
		c.end = max(c.end, h.Ops[i].Call, h.Ops[i].Return)
	}
	for _, k := range byKey(h) {
		c.checkKey(k)
	}
	r := c.r
	r.OK = r.Duplicates+r.OrderViolations+r.UndeclaredGaps+r.Excess+r.Outages+r.MalformedAnswers == 0
	return r
}

// keyOps is all that concerns one key.
type keyOps struct {
	key  string
	ops  []int // indices into History.Ops
	gaps []history.Gap
}

// byKey splits the history, keys in order so that reports are stable.
func byKey(h *history.History) []*keyOps {
	m := map[string]*keyOps{}
	var all []*keyOps
	at := func(key string) *keyOps {
		k := m[key]
		if k == nil {
			k = &keyOps{key: key}
			m[key] = k
			all = append(all, k)
		}
		return k
	}
	for i := range h.Ops {
		k := at(h.Ops[i].Key)
		k.ops = append(k.ops, i)
	}
	for _, g := range h.Ledger {
		k := at(g.Key)
		k.gaps = append(k.gaps, g)
	}
	slices.SortFunc(all, func(a, b *keyOps) int { return cmp.Compare(a.key, b.key) })
	return all
}

type checker struct {
	h   *history.History
	o   Options
	r   *Report
	end int64 // the last stamp of the history
}

func (c *checker) fail(k Kind, weight int, key, detail string, ops ...int) {
	v := Violation{Kind: k, Key: key, Detail: detail}
	for _, i := range ops {
		v.Ops = append(v.Ops, c.h.Ops[i])
	}
	c.r.add(c.o.Keep, weight, v)
}

func (c *checker) checkKey(k *keyOps) {
	c.r.Keys++
	l := c.line(k)
	c.checkDuplicates(l)
	c.checkOrder(l)
	c.checkHoles(l)
	c.checkLoss(l)
	c.checkAvailable(k)
}

// lossesBetween counts the owners' memories that faults may have cost in a
// stretch of time: those that began before `to` and were not over before `from`.
func (c *checker) lossesBetween(from, to int64) int {
	n := 0
	for i := range c.h.Faults {
		if f := &c.h.Faults[i]; c.mayHaveCost(f, from, to) {
			n += f.Losses
		}
	}
	return n
}

// mayHaveCost: the fault began before `to` and its effects were not over before `from`.
func (c *checker) mayHaveCost(f *history.Fault, from, to int64) bool {
	return f.Start < to && f.End+int64(c.o.Settle) >= from
}
