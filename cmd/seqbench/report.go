package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"text/tabwriter"
	"time"
)

// reportJSON is the contract of --output json: fields may be added, none changes.
type reportJSON struct {
	Target      string  `json:"target"`
	Mode        string  `json:"mode"`
	Callers     int     `json:"callers"`
	Batch       int     `json:"batch"`
	Keys        int     `json:"keys"`
	Seconds     float64 `json:"seconds"`
	Allocations int64   `json:"allocations"`
	PerSecond   float64 `json:"per_second"`
	// Errors is how many keys got nothing.
	Errors int64 `json:"errors"`
	// Latency is that of calls.
	Latency  latencyJSON `json:"latency_us"`
	Verified bool        `json:"verified"`

	Dist string  `json:"dist"`
	Rate float64 `json:"rate,omitempty"`
	Seed uint64  `json:"seed"`
	// LatencySampled: the latency is of one call in so many.
	LatencySampled int  `json:"latency_sampled,omitempty"`
	Interrupted    bool `json:"interrupted,omitempty"`
	// PartlyVerified keys may lack numbers: a hole was declared, or a call's outcome is unknown.
	PartlyVerified int    `json:"partly_verified_keys,omitempty"`
	Violations     int    `json:"violations,omitempty"`
	FirstError     string `json:"first_error,omitempty"`
}

type latencyJSON struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	Max  float64 `json:"max"`
}

func (m *measurement) report(measured time.Duration, interrupted bool) *reportJSON {
	c, h := m.cfg, m.latency.total
	r := &reportJSON{
		Target: c.target, Mode: c.mode, Callers: c.callers, Batch: c.batch, Keys: c.keys,
		Dist: c.dist, Rate: c.rate, Seed: c.seed, Interrupted: interrupted,
		Seconds: math.Round(measured.Seconds()*1e3) / 1e3,
		Latency: latencyJSON{
			P50: micros(h.ValueAtPercentile(50)), P90: micros(h.ValueAtPercentile(90)),
			P99: micros(h.ValueAtPercentile(99)), P999: micros(h.ValueAtPercentile(99.9)), Max: micros(h.Max()),
		},
	}
	r.Allocations, r.Errors = m.totals()
	if s := measured.Seconds(); s > 0 {
		r.PerSecond = math.Round(float64(r.Allocations)/s*10) / 10
	}
	if every := c.sampling(); every > 1 {
		r.LatencySampled = every
	}
	if v := m.verify; v != nil {
		r.Violations, r.PartlyVerified = v.count, len(v.lenient)
		r.Verified = v.count == 0
	}
	if m.firstErr != nil {
		r.FirstError = oneLine(m.firstErr)
	}
	return r
}

func (r *reportJSON) print(w io.Writer, format string) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		return e.Encode(r)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, name+"\t"+format+"\n", args...) }
	row("target", "%s, %s", r.Target, r.Mode)
	load := fmt.Sprintf("%d callers, %s keys, %s", r.Callers, thousands(float64(r.Keys)), r.Dist)
	if r.Batch > 1 {
		load += fmt.Sprintf(", %d keys a call", r.Batch)
	}
	if r.Rate > 0 {
		load += ", at " + thousands(r.Rate) + "/s"
	}
	row("load", "%s", load)
	row("allocations", "%s in %.2f s", thousands(float64(r.Allocations)), r.Seconds)
	row("per second", "%s", thousands(r.PerSecond))
	row("errors", "%s", thousands(float64(r.Errors)))
	l := r.Latency
	note := ""
	if r.LatencySampled > 0 {
		note = fmt.Sprintf(" (of one call in %d)", r.LatencySampled)
	}
	row("latency", "p50 %s  p90 %s  p99 %s  p99.9 %s  max %s%s", inMicros(l.P50), inMicros(l.P90), inMicros(l.P99), inMicros(l.P999), inMicros(l.Max), note)
	row("verified", "%s", r.verdict())
	if r.Interrupted {
		row("interrupted", "yes")
	}
	return t.Flush()
}

func (r *reportJSON) verdict() string {
	switch {
	case r.Violations > 0:
		return fmt.Sprintf("NO: %d violations", r.Violations)
	case !r.Verified:
		return "not asked for"
	case r.PartlyVerified > 0:
		return fmt.Sprintf("yes, but %d keys may lack numbers (declared holes, calls of unknown outcome)", r.PartlyVerified)
	}
	return "yes: no duplicate, no hole, in order for every key"
}

func inMicros(us float64) string { return duration(int64(us * 1e3)) }

// duration to three digits.
func duration(ns int64) string {
	d := time.Duration(ns)
	for unit := time.Duration(1); unit < time.Hour; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit).String()
		}
	}
	return d.String()
}

// thousands writes a whole number with its thousands apart.
func thousands(x float64) string {
	s := strconv.FormatInt(int64(math.Round(x)), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}
