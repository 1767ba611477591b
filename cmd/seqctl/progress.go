package main

import (
	"fmt"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progressEvery is how often progress is told where it cannot be drawn in place.
const progressEvery = time.Second

// progress tells on stderr how far something is: a bar on a terminal, else a line now and then.
type progress struct {
	*app
	what, unit string
	// line is when it is time for a line.
	line *time.Ticker
	bar  *progressbar.ProgressBar
}

func newProgress(a *app, what, unit string) *progress {
	return &progress{app: a, what: what, unit: unit, line: time.NewTicker(progressEvery)}
}

// draw is for terminals only. There is no bar before it is known what it is of.
func (p *progress) draw(done, total uint64) {
	if !p.bars || total == 0 {
		return
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(int64(total),
			progressbar.OptionSetWriter(p.err), progressbar.OptionSetDescription(p.what),
			progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString(p.unit),
			progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish(), progressbar.OptionUseANSICodes(true))
	}
	_ = p.bar.Set64(int64(min(done, total)))
}

// say is for everything but terminals.
func (p *progress) say(format string, args ...any) {
	if !p.bars {
		fmt.Fprintf(p.err, "%s: %s\n", p.what, fmt.Sprintf(format, args...))
	}
}

func (p *progress) end() {
	p.line.Stop()
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
