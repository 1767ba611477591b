package im

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/client"
)

// Device follows conversations for one screen. Its methods may be called from any
// goroutine; Show and Lost are called while others wait, and must not call back.
type Device struct {
	Numbers Numbers
	Store   Store
	// Show gets each message once, in the order in which they come. A screen sorts
	// them by Seq.
	Show func(Message)
	// Lost, if not nil, is told of numbers whose messages are lost. If one turns up
	// after all, Show gets it.
	Lost func(conv string, missing Span)
	// Again is how soon Follow looks again for messages that are not there yet; 0
	// means 200 ms. In vain, it doubles up to 5 s.
	Again time.Duration

	mu    sync.Mutex
	convs map[string]*following
}

// following is a conversation of a device, and what it waits for to judge what is absent.
type following struct {
	// syncing is held by who reads the store for it.
	syncing sync.Mutex
	chain   Chain
	// upto: below it, whoever has a number and no message yet is in awaited. 0: no look was taken.
	upto    int64
	awaited []ID
}

const (
	pageMax      = 500
	defaultAgain = 200 * time.Millisecond
	againMax     = 5 * time.Second
)

func (d *Device) conv(name string) *following {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.convs[name]
	if f == nil {
		if d.convs == nil {
			d.convs = map[string]*following{}
		}
		f = &following{}
		d.convs[name] = f
	}
	return f
}

// Push takes a message that was sent to this device.
func (d *Device) Push(m Message) {
	f := d.conv(m.Conv)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.add(f, m)
}

func (d *Device) add(f *following, m Message) {
	if f.chain.Add(m) {
		d.Show(m)
	}
}

// Sync brings conversations up to date: it asks for the last numbers of all at
// once, and reads the store only where something is missing.
func (d *Device) Sync(ctx context.Context, convs ...string) error {
	marks := make([]client.Mark, len(convs))
	for i, conv := range convs {
		f := d.conv(conv)
		d.mu.Lock()
		marks[i] = client.Mark{Key: Key(conv), Last: f.chain.done}
		d.mu.Unlock()
	}
	diffs, err := d.Numbers.Diff(ctx, marks)
	var partial *client.PartialError
	if err != nil && !errors.As(err, &partial) {
		return err
	}
	for i, diff := range diffs {
		if diff.Err == nil && diff.Missing > 0 {
			err = errors.Join(err, d.caughtUp(ctx, convs[i], diff.Current))
		}
	}
	return err
}

// caughtUp notes the last number of a conversation, and reads what is missing up to it.
func (d *Device) caughtUp(ctx context.Context, conv string, current int64) error {
	f := d.conv(conv)
	d.mu.Lock()
	f.chain.Tell(current)
	d.mu.Unlock()
	if err := d.catchUp(ctx, conv, f); err != nil {
		return fmt.Errorf("conversation %q: %w", conv, err)
	}
	return nil
}

// catchUp reads what the store has, and judges what it has not as soon as that can
// be known.
func (d *Device) catchUp(ctx context.Context, conv string, f *following) error {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	if open, err := d.read(ctx, conv, f); !open || err != nil {
		return err
	}
	if f.upto == 0 {
		// Whoever has a number up to here began before it was seen.
		d.mu.Lock()
		upto := max(f.chain.top, f.chain.told)
		d.mu.Unlock()
		pending, err := d.Store.Pending(ctx, conv)
		if err != nil {
			return err
		}
		f.upto, f.awaited = upto, nil
		for _, p := range pending {
			f.awaited = append(f.awaited, p.ID)
		}
	} else if len(f.awaited) > 0 {
		pending, err := d.Store.Pending(ctx, conv)
		if err != nil {
			return err
		}
		f.awaited = slices.DeleteFunc(f.awaited, func(id ID) bool {
			return !slices.ContainsFunc(pending, func(p Draft) bool { return p.ID == id })
		})
	}
	if len(f.awaited) > 0 {
		return nil // they are under way
	}
	if open, err := d.read(ctx, conv, f); !open || err != nil {
		f.upto = 0
		return err
	}
	d.mu.Lock()
	top := f.chain.top
	d.mu.Unlock()
	gaps, err := d.Numbers.Gaps(ctx, Key(conv))
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, missing := range f.chain.Judge(Evidence{f.upto, top, gaps}) {
		if d.Lost != nil {
			d.Lost(conv, missing)
		}
	}
	f.upto = 0
	return nil
}

// read takes in all that the store has after what is accounted for, and tells
// whether numbers are open still.
func (d *Device) read(ctx context.Context, conv string, f *following) (open bool, err error) {
	d.mu.Lock()
	after := f.chain.done
	d.mu.Unlock()
	for {
		page, err := d.Store.Range(ctx, conv, after, pageMax)
		if err != nil {
			return false, err
		}
		d.mu.Lock()
		for _, m := range page {
			d.add(f, m)
			after = m.Seq
		}
		open = len(f.chain.Open()) > 0
		d.mu.Unlock()
		if len(page) < pageMax {
			return open, nil
		}
	}
}

// Follow keeps conversations up to date until the context ends: the numbers are
// pushed, so nothing is asked for while nothing happens. What fails is tried again.
func (d *Device) Follow(ctx context.Context, convs ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	news := make(chan struct{}, 1)
	fresh := newFreshness(convs)
	watched := make(chan error, 1)
	go func() {
		keys := make([]client.Key, len(convs))
		for i, conv := range convs {
			keys[i] = Key(conv)
		}
		watched <- d.Numbers.WatchKeys(ctx, keys, func(n client.KeyNews) {
			// Only the newest numbers count, so it does not matter if some were missed.
			for _, r := range n.Readings {
				fresh.note(r.Key.Text(), r.Current)
			}
			select {
			case news <- struct{}{}:
			default:
			}
		})
		cancel()
	}()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	first := d.Again
	if first == 0 {
		first = defaultAgain
	}
	for pause := first; ; {
		select {
		case <-news:
			pause = first
		case <-timer.C:
			pause = min(2*pause, againMax)
		case <-ctx.Done():
			return <-watched
		}
		for conv, current := range fresh.take() {
			if err := d.caughtUp(ctx, conv, current); err != nil || d.Behind(conv) > 0 {
				fresh.note(conv, current)
			}
		}
		if fresh.any() {
			timer.Reset(pause)
		}
	}
}

// freshness is which conversations are to be read, and their last numbers.
type freshness struct {
	mu sync.Mutex
	of map[string]int64
}

func newFreshness(convs []string) *freshness {
	return &freshness{of: make(map[string]int64, len(convs))}
}

func (f *freshness) note(conv string, current int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.of[conv] = max(f.of[conv], current)
}

func (f *freshness) take() map[string]int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.of
	f.of = make(map[string]int64, len(all))
	return all
}

func (f *freshness) any() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.of) > 0
}

// Behind is how many numbers of a conversation are open: read, and not there yet.
func (d *Device) Behind(conv string) (n int64) {
	f := d.conv(conv)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range f.chain.Open() {
		n += s.Len()
	}
	return n
}

// Done is up to where a conversation is complete.
func (d *Device) Done(conv string) int64 {
	f := d.conv(conv)
	d.mu.Lock()
	defer d.mu.Unlock()
	return f.chain.done
}

// Unread is how many messages came after the number that was read last.
func (d *Device) Unread(conv string, read int64) int64 {
	f := d.conv(conv)
	d.mu.Lock()
	defer d.mu.Unlock()
	return f.chain.Unread(read)
}

// Blanks are the numbers of a conversation without a message, and why.
func (d *Device) Blanks(conv string) []Blank {
	f := d.conv(conv)
	d.mu.Lock()
	defer d.mu.Unlock()
	return f.chain.Blanks()
}
