package im

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/client"
)

// screen is a device and what is on it.
type screen struct {
	*Device
	mu    sync.Mutex
	shown map[string][]int64
	lost  []Span
}

func newScreen(n Numbers, s Store) *screen {
	d := &screen{shown: map[string][]int64{}}
	d.Device = &Device{
		Numbers: n, Store: s,
		Show: func(m Message) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.shown[m.Conv] = append(d.shown[m.Conv], m.Seq)
		},
		Lost: func(_ string, s Span) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.lost = append(d.lost, s)
		},
	}
	return d
}

func (d *screen) want(t *testing.T, conv string, shown ...int64) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	got := slices.Clone(d.shown[conv])
	slices.Sort(got)
	if !slices.Equal(got, shown) {
		t.Errorf("shown %v, want %v", got, shown)
	}
}

func (d *screen) losses() []Span {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lost)
}

func draft(conv string, n int) Draft {
	return Draft{ID: ID{byte(n), byte(n >> 8), 2, 3}, Conv: conv, From: "ann", Body: fmt.Sprint("message ", n)}
}

func send(t *testing.T, s *Sender, d Draft) Message {
	t.Helper()
	m, err := s.Send(context.WithValue(t.Context(), idKey{}, d.ID), d)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestAMessageWhoseAnswersAreLostIsStoredOnceUnderOneNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, store := newNumbers(), NewMemory()
		lost := 0
		n.loseReply = func() bool { lost++; return lost%3 != 0 }
		s := &Sender{Numbers: n, Store: store}
		for i := range 20 {
			if m := send(t, s, draft("a", i)); m.Seq != int64(i+1) {
				t.Errorf("message %d has number %d", i, m.Seq)
			}
			if m := send(t, s, draft("a", i/2)); m.Seq != int64(i/2+1) {
				t.Errorf("sent again, message %d has number %d", i/2, m.Seq)
			}
		}
		d := newScreen(n, store)
		if err := d.Sync(t.Context(), "a", "b"); err != nil {
			t.Fatal(err)
		}
		if d.Done("a") != 20 || d.Unread("a", 15) != 5 || d.Unread("b", 0) != 0 || len(d.losses()) != 0 {
			t.Errorf("done %d, unread %d, lost %v", d.Done("a"), d.Unread("a", 15), d.losses())
		}
	})
}

func TestADraftOfAProcessThatDiedIsFinishedByAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, store := newNumbers(), NewMemory()
		s := &Sender{Numbers: n, Store: store}
		send(t, s, draft("a", 1))
		n.loseReply = func() bool { return true }
		d2 := draft("a", 2)
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), idKey{}, d2.ID), 3*time.Second)
		defer cancel()
		if _, err := s.Send(ctx, d2); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, client.ErrUnknownResult) {
			t.Fatal(err)
		}
		n.loseReply = func() bool { return false }
		send(t, s, draft("a", 3))
		// 2 was issued and has no message; it may still come.
		dev := newScreen(n, store)
		for range 3 {
			if err := dev.Sync(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
		}
		dev.want(t, "a", 1, 3)
		if dev.Behind("a") != 1 || len(dev.losses()) != 0 {
			t.Errorf("behind %d, lost %v", dev.Behind("a"), dev.losses())
		}
		resumed := &Sender{Numbers: n, Store: store}
		if err := resumed.Resume(context.WithValue(t.Context(), idKey{}, d2.ID)); err != nil {
			t.Fatal(err)
		}
		if err := dev.Sync(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		dev.want(t, "a", 1, 2, 3)
		if dev.Behind("a") != 0 || len(dev.losses()) != 0 {
			t.Errorf("behind %d, lost %v", dev.Behind("a"), dev.losses())
		}
	})
}

// The first attempt's answer is lost, and then the machine that would remember it.
func TestANumberThatNobodyGotIsNoMissingMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, store := newNumbers(), NewMemory()
		s := &Sender{Numbers: n, Store: store}
		time.Sleep(time.Hour)
		send(t, s, draft("a", 1))
		send(t, s, draft("a", 2))
		n.loseReply = func() bool { return true }
		sent := make(chan Message)
		go func() {
			m, err := s.Send(context.WithValue(t.Context(), idKey{}, draft("a", 3).ID), draft("a", 3))
			if err != nil {
				t.Error(err)
			}
			sent <- m
		}()
		synctest.Wait() // it has number 3, does not know that, and pauses
		n.loseReply = func() bool { return false }
		send(t, s, draft("a", 4))
		send(t, s, draft("a", 5))
		n.loseMachine(Key("a"), 6, 90)
		if m := <-sent; m.Seq != 96 || m.Hole == nil || m.Stray == nil || *m.Stray != (Span{3, 95}) {
			t.Fatalf("%+v", m)
		}
		dev := newScreen(n, store)
		if err := dev.Sync(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		dev.want(t, "a", 1, 2, 4, 5, 96)
		if got := dev.Blanks("a"); len(dev.losses()) > 0 || !slices.Equal(got, []Blank{{Span{3, 3}, Stray}, {Span{6, 95}, Declared}}) {
			t.Errorf("lost %v, blanks %v", dev.losses(), got)
		}
	})
}

func msgOf(conv string, seq int64) Message {
	m := msg(seq)
	m.Conv, m.ID[5] = conv, 9
	return m
}

func TestALostMessageIsFoundAndAHoleIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, store := newNumbers(), NewMemory()
		store.Lose = func(m Message) bool { return m.Seq == 3 }
		s := &Sender{Numbers: n, Store: store}
		time.Sleep(time.Hour)
		for i := 1; i <= 4; i++ {
			send(t, s, draft("a", i))
		}
		n.loseMachine(Key("a"), 5, 96)
		send(t, s, draft("a", 5))
		dev := newScreen(n, store)
		if err := dev.Sync(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		dev.want(t, "a", 1, 2, 4, 101)
		if got := dev.losses(); !slices.Equal(got, []Span{{3, 3}}) {
			t.Errorf("lost %v", got)
		}
		if got := dev.Unread("a", 2); got != 2 {
			t.Errorf("%d unread after 2", got)
		}
		// It turns up in a backup.
		found := msgOf("a", 3)
		dev.Push(found)
		dev.Push(found)
		dev.want(t, "a", 1, 2, 3, 4, 101)
		if got := dev.Unread("a", 2); got != 3 || len(dev.Blanks("a")) != 1 {
			t.Errorf("%d unread after 2, blanks %v", got, dev.Blanks("a"))
		}
	})
}

func TestAFollowerIsToldAndAsksForNothingWhileNothingHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, store := newNumbers(), NewMemory()
		dev := newScreen(n, store)
		rng := rand.New(rand.NewPCG(1, 1))
		s := &Sender{Numbers: n, Store: store, Push: func(m Message) {
			if rng.IntN(3) > 0 { // pushes are lost, and come twice
				dev.Push(m)
				dev.Push(m)
			}
		}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- dev.Follow(ctx, "a", "b") }()
		var all []int64
		for i := range 100 {
			send(t, s, draft("a", i))
			all = append(all, int64(i+1))
			time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
		}
		time.Sleep(time.Second)
		dev.want(t, "a", all...)
		before := n.called("gaps") + n.called("diff")
		time.Sleep(time.Hour)
		if after := n.called("gaps") + n.called("diff"); after != before {
			t.Errorf("%d calls in an hour in which nothing happened", after-before)
		}
		n.mu.Lock()
		n.fail = &client.Error{Kind: client.KindUnavailable}
		n.mu.Unlock()
		time.Sleep(time.Second)
		n.mu.Lock()
		n.fail = nil
		n.mu.Unlock()
		send(t, s, draft("b", 1000))
		time.Sleep(time.Second)
		dev.want(t, "b", 1)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestWhatCannotBeSentIsRefusedBeforeItBegins(t *testing.T) {
	n, store := newNumbers(), NewMemory()
	s := &Sender{Numbers: n, Store: store}
	for _, d := range []Draft{{Conv: "a"}, draft("", 1), draft(strings.Repeat("a", 129), 1), draft("\xff", 1)} {
		if _, err := s.Send(t.Context(), d); err == nil {
			t.Errorf("%+v was sent", d)
		}
	}
	n.fail = &client.Error{Kind: client.KindUnauthorized}
	if _, err := s.Send(t.Context(), draft("a", 1)); !errors.Is(err, client.ErrUnauthorized) {
		t.Error(err)
	}
	if left, _ := store.Pending(t.Context(), ""); len(left) != 1 || n.called("alloc") != 1 {
		t.Errorf("%d pending, %d calls", len(left), n.called("alloc"))
	}
}

func TestAStoreKeepsOneMessageAnIDAndOneANumber(t *testing.T) {
	s, ctx := NewMemory(), t.Context()
	m := Message{Draft: draft("a", 1), Seq: 5, Prev: 4}
	for range 2 {
		if got, err := s.Put(ctx, m); err != nil || got.Seq != 5 || got.Void {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	again := m
	again.Seq, again.Prev = 9, 8
	for range 2 {
		if got, err := s.Put(ctx, again); err != nil || got.Seq != 5 {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	all, _ := s.Range(ctx, "a", 0, 10)
	if len(all) != 2 || all[0].Void || !all[1].Void || all[1].Body != "" {
		t.Errorf("%+v", all)
	}
	other := Message{Draft: draft("a", 2), Seq: 5, Prev: 4}
	var taken *TakenError
	if _, err := s.Put(ctx, other); !errors.As(err, &taken) {
		t.Errorf("two messages under one number: %v", err)
	}
}
