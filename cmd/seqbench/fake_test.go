package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"
)

// fake is a target of correct counters, but for what bend does to each call's numbers.
type fake struct {
	ks   *keyset
	mu   sync.Mutex
	last map[int]uint64
	// start is what every key had before the run.
	start uint64
	calls int
	// bend sees the calls one by one.
	bend func(call int, keys []int, got []number)
	// delay is how long a call takes.
	delay func(call int) time.Duration
}

func (f *fake) open(_ context.Context, c *config) (target, error) {
	f.ks, f.last = newKeyset(c), map[int]uint64{}
	return f, nil
}

func (f *fake) keys() *keyset  { return f.ks }
func (f *fake) caller() caller { return f }
func (f *fake) bulk() caller   { return f }
func (f *fake) close() error   { return nil }

func (f *fake) current(_ context.Context, keys []int, into []uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, k := range keys {
		into[i] = f.start + f.last[k]
	}
	return nil
}

func (f *fake) alloc(keys []int, into []number) {
	f.mu.Lock()
	f.calls++
	call := f.calls
	for i, k := range keys {
		f.last[k]++
		into[i] = number{seq: f.start + f.last[k]}
	}
	if f.bend != nil {
		f.bend(call, keys, into)
	}
	f.mu.Unlock()
	d := 50 * time.Microsecond
	if f.delay != nil {
		d = f.delay(call)
	}
	time.Sleep(d)
}

// skip issues the next number of a key to nobody.
func (f *fake) skip(key int) { f.last[key]++ }

// benched runs a fake target by the program's own path, and answers what it printed.
func benched(t *testing.T, f *fake, c config) (*reportJSON, string, error) {
	t.Helper()
	c.target, c.mode = targetNative, modeSingle
	c.dist, c.space, c.output = distUniform, "uid", "json"
	c.timeout = time.Second
	c.batch = 1
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	err := bench(t.Context(), &c, f.open, &out, &errs)
	var r reportJSON
	if jerr := json.Unmarshal(out.Bytes(), &r); jerr != nil {
		t.Fatalf("%v: %s (%v)", jerr, out.String(), err)
	}
	return &r, errs.String(), err
}

var errFake = errors.New("no answer")
