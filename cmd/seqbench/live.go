package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

const liveEvery = time.Second

// liveLine redraws one line a second on a terminal; elsewhere it is nil.
func liveLine(w io.Writer) func(*measurement) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return func(m *measurement) { drawLive(w, m) }
}

func drawLive(w io.Writer, m *measurement) {
	t := time.NewTicker(liveEvery)
	defer t.Stop()
	last, lastAt := int64(0), m.began
	for {
		select {
		case <-m.stop:
			fmt.Fprint(w, "\r\x1b[K")
			return
		case now := <-t.C:
			total, errs := m.totals()
			h := m.latency.take()
			fmt.Fprintf(w, "\r\x1b[K%4.0fs  %s/s  p50 %s  p99 %s  errors %d", now.Sub(m.began).Seconds(),
				thousands(float64(total-last)/now.Sub(lastAt).Seconds()),
				duration(h.ValueAtPercentile(50)), duration(h.ValueAtPercentile(99)), errs)
			last, lastAt = total, now
		}
	}
}
