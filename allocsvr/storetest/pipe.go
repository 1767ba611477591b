package storetest

import (
	"context"
	"io"
	"sync"
	"time"
)

// pipe is one direction of a stream: in order, each message at its own time.
type pipe[T any] struct {
	mu     sync.Mutex
	queue  []timed[T]
	err    error // after the queue is drained
	change chan struct{}
}

type timed[T any] struct {
	v  T
	at time.Time
}

func newPipe[T any]() *pipe[T] { return &pipe[T]{change: make(chan struct{})} }

func (p *pipe[T]) wake() {
	close(p.change)
	p.change = make(chan struct{})
}

func (p *pipe[T]) put(v T, delay time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	p.queue = append(p.queue, timed[T]{v, time.Now().Add(delay)})
	p.wake()
	return nil
}

// close ends the pipe: a reader gets what is queued, then err.
func (p *pipe[T]) close(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
		p.wake()
	}
}

func (p *pipe[T]) get(ctx context.Context) (v T, err error) {
	for {
		p.mu.Lock()
		change := p.change
		var due <-chan time.Time
		switch {
		case len(p.queue) > 0:
			wait := time.Until(p.queue[0].at)
			if wait <= 0 {
				v = p.queue[0].v
				p.queue = p.queue[1:]
				p.mu.Unlock()
				return v, nil
			}
			t := time.NewTimer(wait)
			defer t.Stop()
			due = t.C
		case p.err != nil:
			err = p.err
			p.mu.Unlock()
			return v, err
		}
		p.mu.Unlock()
		select {
		case <-ctx.Done():
			return v, ctx.Err()
		case <-change:
		case <-due:
		}
	}
}

var errEOF = io.EOF
