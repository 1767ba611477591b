package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are kept in nanoseconds to three digits, up to a minute.
const (
	latencyMax    = time.Minute
	latencyDigits = 3
	// stripesMax bounds memory: a histogram takes some 200 KB.
	stripesMax = 16
)

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(latencyMax), latencyDigits)
}

// latencies of all callers. Stripes keep the callers out of each other's way.
type latencies struct {
	stripes []*stripe
	// total is what was taken out of the stripes; for one goroutine.
	total *hdrhistogram.Histogram
}

type stripe struct {
	mu sync.Mutex
	h  *hdrhistogram.Histogram
}

func newLatencies(callers int) *latencies {
	l := &latencies{total: newHistogram()}
	for range min(callers, stripesMax) {
		l.stripes = append(l.stripes, &stripe{h: newHistogram()})
	}
	return l
}

func (l *latencies) stripe(caller int) *stripe { return l.stripes[caller%len(l.stripes)] }

func (s *stripe) record(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.h.RecordValue(int64(min(max(d, 0), latencyMax))) // within the range
}

// take moves what was recorded since the last time into total, and answers it.
func (l *latencies) take() *hdrhistogram.Histogram {
	recent := newHistogram()
	for _, s := range l.stripes {
		s.mu.Lock()
		recent.Merge(s.h)
		s.h.Reset()
		s.mu.Unlock()
	}
	l.total.Merge(recent)
	return recent
}

func micros(ns int64) float64 { return float64(ns) / 1e3 }

// percentileTicks is how many lines the file has for each halving of the distance to 100 %.
const percentileTicks = 5

// writeHistogram writes percentiles in µs as HdrHistogram's plotters read them.
func writeHistogram(f *os.File, h *hdrhistogram.Histogram) error {
	_, err := h.PercentilesPrint(f, percentileTicks, 1e3)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("--histogram: %w: the figures are good, the file is not", err)
	}
	return nil
}
