package im

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/seqsvr/seqsvr/client"
)

// Numbers is what is needed of the SDK: *client.Client.
type Numbers interface {
	Alloc(ctx context.Context, key client.Key, opts ...client.CallOption) (client.Result, error)
	Diff(ctx context.Context, marks []client.Mark) ([]client.Difference, error)
	Gaps(ctx context.Context, key client.Key) ([]client.Gap, error)
	WatchKeys(ctx context.Context, keys []client.Key, f func(client.KeyNews)) error
}

// Sender numbers and stores messages. Any number of goroutines may use one.
type Sender struct {
	Numbers Numbers
	Store   Store
	// Push, if not nil, is told of each message once it is stored, to bring it to
	// the devices that are online. It may fail or be forgotten: they find out.
	Push func(Message)
	// Skew is by how much the clocks of the store, or whoever sets Begun.At, and of
	// the allocsvrs may differ; 0 means 1 s. More makes for more strays after a
	// machine was lost, less for numbers that are taken for messages.
	Skew time.Duration
}

const (
	// convBytesMax is the longest name that a space of names takes.
	convBytesMax = 128
	defaultSkew  = time.Second
	// The pauses between attempts double from the first to the longest.
	againFirst   = 20 * time.Millisecond
	againLongest = time.Second
)

// Send sees a draft to its end: it has a number and is stored. It goes on over
// failures until the context ends or what failed cannot be mended by trying; then
// the draft stays pending, and Send or Resume may take it up again, here or in
// another process, also after this one has died.
func (s *Sender) Send(ctx context.Context, d Draft) (Message, error) {
	if d.ID == (ID{}) {
		return Message{}, errors.New("a message without an id cannot be sent again: give it a UUID on the device that wrote it")
	}
	if len(d.Conv) == 0 || len(d.Conv) > convBytesMax || !utf8.ValidString(d.Conv) {
		return Message{}, fmt.Errorf("conversation %q: want a name of 1 to %d bytes in UTF-8", d.Conv, convBytesMax)
	}
	var m Message
	err := again(ctx, func() error {
		begun, err := s.Store.Begin(ctx, d)
		if err != nil {
			return err
		}
		if begun.Stored != nil {
			m = *begun.Stored
			return nil
		}
		if m, err = s.number(ctx, d, begun); err != nil {
			return err
		}
		m, err = s.Store.Put(ctx, m)
		return err
	})
	if err != nil {
		return Message{}, fmt.Errorf("message %s of conversation %q: %w", d.ID, d.Conv, err)
	}
	if s.Push != nil {
		s.Push(m)
	}
	return m, nil
}

// number gives a draft its number. The id makes that repeatable: within the window
// the same number comes again, whatever became of the answer.
func (s *Sender) number(ctx context.Context, d Draft, begun Begun) (Message, error) {
	r, err := s.Numbers.Alloc(ctx, Key(d.Conv), client.WithRequestID(d.ID))
	if err != nil {
		return Message{}, err
	}
	m := Message{Draft: d, Seq: r.First, Prev: r.Prev, Hole: r.Discontinuity}
	skew := s.Skew
	if skew == 0 {
		skew = defaultSkew
	}
	// This draft was tried before, and the owner does not remember all requests
	// since it began. If it answered one of them, that number is nobody's now.
	tried := begun.Again || r.Repeated
	if tried && !r.Replayed && r.WindowSince.After(begun.At.Add(-skew)) && begun.Last < m.Prev {
		m.Stray = &Span{begun.Last + 1, m.Prev}
	}
	return m, nil
}

// Resume finishes the drafts of processes that died. Nobody else may be sending
// them. It tries all, and answers the first failure.
func (s *Sender) Resume(ctx context.Context) error {
	drafts, err := s.Store.Pending(ctx, "")
	if err != nil {
		return err
	}
	for _, d := range drafts {
		if _, e := s.Send(ctx, d); err == nil {
			err = e
		}
	}
	return err
}

// again repeats what fails until the context ends, unless that is of no use.
func again(ctx context.Context, try func() error) error {
	pause := againFirst
	for {
		err := try()
		var taken *TakenError
		if err == nil || errors.As(err, &taken) || errors.Is(err, client.ErrInvalidArgument) ||
			errors.Is(err, client.ErrExhausted) || errors.Is(err, client.ErrUnauthorized) {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%w; the last failure: %w", ctx.Err(), err)
		}
		pause = min(2*pause, againLongest)
	}
}
