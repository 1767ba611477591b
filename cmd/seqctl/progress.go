package main

import (
	"fmt"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progressEvery is how often progress is told where it cannot be drawn in place.
const progressEvery = time.Second

// progress tells on stderr how far a drain is: a bar on a terminal, else a line a second.
type progress struct {
	*app
	node             string
	began            time.Time
	tick             *time.Ticker
	bar              *progressbar.ProgressBar
	moved, remaining uint32
}

func newProgress(a *app, node string) *progress {
	return &progress{app: a, node: node, began: time.Now(), tick: time.NewTicker(progressEvery)}
}

func (p *progress) set(moved, remaining uint32) {
	p.moved, p.remaining = moved, remaining
	if !p.bars || moved+remaining == 0 {
		return
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(int64(moved+remaining),
			progressbar.OptionSetWriter(p.err), progressbar.OptionSetDescription("drain "+p.node),
			progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(), progressbar.OptionUseANSICodes(true))
	}
	_ = p.bar.Set64(int64(moved))
}

func (p *progress) line() {
	if !p.bars {
		fmt.Fprintf(p.err, "drain %s: %d of %d sections moved after %v\n", p.node, p.moved, p.moved+p.remaining, time.Since(p.began).Round(time.Second))
	}
}

func (p *progress) end() {
	p.tick.Stop()
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
