package im

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seqsvr/seqsvr/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errLost = &client.Error{Kind: client.KindUnknownResult, Err: errors.New("no answer")}

// numbers is a service of numbers whose answers and memory can be lost.
type numbers struct {
	mu      sync.Mutex
	cur     map[client.Key]int64
	gaps    map[client.Key][]client.Gap
	holes   map[client.Key]*client.Hole // to be declared
	window  map[ID]client.Result
	since   time.Time
	changed chan struct{}
	// loseReply is asked before each answer.
	loseReply func() bool
	fail      error
	calls     map[string]int
}

func newNumbers() *numbers {
	return &numbers{
		cur: map[client.Key]int64{}, gaps: map[client.Key][]client.Gap{}, holes: map[client.Key]*client.Hole{},
		window: map[ID]client.Result{}, since: time.Now(), changed: make(chan struct{}), loseReply: func() bool { return false },
		calls: map[string]int{},
	}
}

// idOf finds the request id in the options, which only the client can read: the
// fake is told of it by the context.
type idKey struct{}

func (s *numbers) Alloc(ctx context.Context, key client.Key, _ ...client.CallOption) (client.Result, error) {
	id, _ := ctx.Value(idKey{}).(ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls["alloc"]++
	if s.fail != nil {
		return client.Result{}, s.fail
	}
	r, replayed := s.window[id]
	if r.Replayed = replayed; !replayed {
		r = client.Result{Key: key, First: s.cur[key] + 1, Count: 1, Prev: s.cur[key], Discontinuity: s.holes[key]}
		delete(s.holes, key)
		s.cur[key]++
		s.window[id] = r
		close(s.changed)
		s.changed = make(chan struct{})
	}
	r.WindowSince = s.since
	if s.loseReply() {
		return client.Result{}, errLost
	}
	return r, nil
}

// loseMachine forgets the window and leaves a hole of n numbers after the last at from.
func (s *numbers) loseMachine(key client.Key, from, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := s.cur[key] + n
	s.cur[key] = to
	s.gaps[key] = append(s.gaps[key], client.Gap{From: from, To: to, Cause: "machine loss"})
	s.holes[key] = &client.Hole{From: from, To: to}
	s.window, s.since = map[ID]client.Result{}, time.Now()
}

func (s *numbers) Diff(_ context.Context, marks []client.Mark) (out []client.Difference, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls["diff"]++
	for _, m := range marks {
		out = append(out, client.Difference{Mark: m, Current: s.cur[m.Key], Missing: max(0, s.cur[m.Key]-m.Last)})
	}
	return out, s.fail
}

func (s *numbers) Gaps(_ context.Context, key client.Key) ([]client.Gap, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls["gaps"]++
	return slices.Clone(s.gaps[key]), s.fail
}

func (s *numbers) WatchKeys(ctx context.Context, keys []client.Key, f func(client.KeyNews)) error {
	told := map[client.Key]int64{}
	for {
		s.mu.Lock()
		var n client.KeyNews
		for _, k := range keys {
			if v, ok := told[k]; !ok || v < s.cur[k] {
				told[k] = s.cur[k]
				n.Readings = append(n.Readings, client.Reading{Key: k, Current: s.cur[k]})
			}
		}
		changed := s.changed
		s.mu.Unlock()
		if len(n.Readings) > 0 {
			f(n)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *numbers) called(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[what]
}
