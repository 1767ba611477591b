package client_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func TestACallEndsWithinItsBudget(t *testing.T) {
	for _, code := range []seqpb.Code{
		seqpb.Code_CODE_NOT_OWNER, seqpb.Code_CODE_STALE_EPOCH, seqpb.Code_CODE_LEASE_EXPIRED,
		seqpb.Code_CODE_BUSY, seqpb.Code_CODE_NOT_READY, seqpb.Code_CODE_UNAVAILABLE,
	} {
		t.Run(wire.CodeText(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake("a:1")
				f.nodes["a:1"].fail = func(string) seqpb.Code { return code }
				c := dial(t, f, client.WithBudget(2*time.Second))
				start := time.Now()
				_, err := c.Alloc(t.Context(), client.UID(1))
				if !errors.Is(err, client.Kind(code)) || !errors.Is(err, errDeadline) {
					t.Errorf("got %v", err)
				}
				if took := time.Since(start); took > 2*time.Second || took < 1500*time.Millisecond {
					t.Errorf("the budget of 2 s became %v", took)
				}
				rpcs := f.nodes["a:1"].rpcs()
				if rpcs < 5 || rpcs > 200 {
					t.Errorf("%d attempts", rpcs)
				}

				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				start = time.Now()
				if _, err := c.Alloc(ctx, client.UID(1)); !errors.Is(err, client.Kind(code)) {
					t.Errorf("got %v", err)
				}
				if took := time.Since(start); took > 300*time.Millisecond {
					t.Errorf("the context's 300 ms became %v", took)
				}
			})
		})
	}
}

func TestTroubleThatPassesIsNotNoticed(t *testing.T) {
	for _, code := range []seqpb.Code{
		seqpb.Code_CODE_NOT_OWNER, seqpb.Code_CODE_STALE_EPOCH, seqpb.Code_CODE_LEASE_EXPIRED,
		seqpb.Code_CODE_BUSY, seqpb.Code_CODE_NOT_READY, seqpb.Code_CODE_UNAVAILABLE,
	} {
		t.Run(wire.CodeText(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake("a:1")
				f.nodes["a:1"].fail = func(string) seqpb.Code { return code }
				c := dial(t, f)
				time.AfterFunc(time.Second, func() { f.change(func() { f.nodes["a:1"].fail = nil }) })
				if r, err := c.Alloc(t.Context(), client.UID(1)); err != nil || r.First != 1 {
					t.Errorf("%+v, %v", r, err)
				}
			})
		})
	}
}

func TestDefiniteRefusalsAreNotRetried(t *testing.T) {
	for _, code := range []seqpb.Code{
		seqpb.Code_CODE_INVALID_ARGUMENT, seqpb.Code_CODE_EXHAUSTED, seqpb.Code_CODE_UNAUTHORIZED, seqpb.Code_CODE_UNKNOWN_RESULT, 77,
	} {
		t.Run(wire.CodeText(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake("a:1")
				n := f.nodes["a:1"]
				n.fail = func(string) seqpb.Code { return code }
				c := dial(t, f)
				if _, err := c.Alloc(t.Context(), client.UID(1)); !errors.Is(err, client.Kind(code)) || n.rpcs() != 1 {
					t.Errorf("a key's: %v after %d attempts", err, n.rpcs())
				}
				n.fail = nil
				n.refuse = func([]string) error { return &wire.Refused{Code: code, Message: "no"} }
				if _, err := c.Alloc(t.Context(), client.UID(1)); !errors.Is(err, client.Kind(code)) || n.rpcs() != 2 {
					t.Errorf("a request's: %v after %d attempts", err, n.rpcs())
				}
			})
		})
	}
}

func TestALostReplyIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		f.nodes["a:1"].mute = true
		c := dial(t, f)
		start := time.Now()
		_, err := c.Alloc(t.Context(), client.UID(1))
		var e *client.Error
		if !errors.As(err, &e) || e.Kind != client.KindUnknownResult || e.Owner != "a:1" || e.Key != client.UID(1) {
			t.Fatalf("got %v", err)
		}
		if n := f.nodes["a:1"].rpcs(); n != 1 || time.Since(start) != 0 {
			t.Errorf("%d attempts in %v", n, time.Since(start))
		}
		if f.counters["uid/1"] != 1 {
			t.Fatalf("the fake did not execute the call")
		}
	})
}

func TestALostReplyIsRetriedWithItsRequestID(t *testing.T) {
	id := [16]byte{1, 2, 3}
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		f.nodes["a:1"].mute = true
		c := dial(t, f)
		time.AfterFunc(500*time.Millisecond, func() { f.change(func() { f.nodes["a:1"].mute = false }) })
		r, err := c.AllocN(t.Context(), client.UID(1), 3, client.WithRequestID(id))
		if err != nil || r.First != 1 || r.Count != 3 || !r.Replayed || !r.Repeated || !r.WindowSince.Equal(time.UnixMilli(1000)) {
			t.Fatalf("%+v, %v", r, err)
		}
		if f.counters["uid/1"] != 3 {
			t.Errorf("%d numbers were issued, want 3", f.counters["uid/1"])
		}
		results, err := c.AllocMany(t.Context(), []client.Request{
			{Key: client.UID(1), N: 1},
			{Key: client.UID(1), N: 3, RequestID: id},
		})
		if err != nil || results[0].Replayed || results[0].Repeated || results[1].Repeated || results[0].First != 4 || !results[1].Replayed || results[1].First != 1 {
			t.Errorf("%+v, %v", results, err)
		}
	})
}

func TestAnUnknownOutcomeStaysUnknownWhateverFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		n := f.nodes["a:1"]
		n.mute = true
		c := dial(t, f)
		time.AfterFunc(time.Millisecond, func() {
			f.change(func() { n.mute, n.fail = false, func(string) seqpb.Code { return seqpb.Code_CODE_EXHAUSTED } })
		})
		_, err := c.Alloc(t.Context(), client.UID(1), client.WithRequestID([16]byte{9}))
		if !errors.Is(err, client.ErrUnknownResult) {
			t.Fatalf("the first attempt may have been executed, but: %v", err)
		}
	})
}

func TestAReadIsRepeatedAndNeverUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		f.nodes["a:1"].mute = true
		f.counters["uid/1"] = 7
		c := dial(t, f)
		time.AfterFunc(500*time.Millisecond, func() { f.change(func() { f.nodes["a:1"].mute = false }) })
		if n, err := c.Current(t.Context(), client.UID(1)); err != nil || n != 7 {
			t.Fatalf("%d, %v", n, err)
		}
		f.change(func() { f.nodes["a:1"].mute = true })
		if _, err := c.Current(t.Context(), client.UID(1)); !errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrUnknownResult) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestACallThatWasNotSentIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f)
		f.change(func() { f.nodes["a:1"].down = true })
		time.AfterFunc(time.Second, func() { f.change(func() { f.nodes["a:1"].down = false }) })
		if r, err := c.Alloc(t.Context(), client.UID(1)); err != nil || r.First != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		gaps, err := c.Gaps(t.Context(), client.UID(1))
		if err != nil || len(gaps) != 0 {
			t.Fatalf("%v, %v", gaps, err)
		}
	})
}

func TestGapsIsRetriedWithinItsBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f)
		f.change(func() { f.nodes["a:1"].down = true })
		start := time.Now()
		if _, err := c.Gaps(t.Context(), client.UID(1)); !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, errDeadline) {
			t.Fatalf("got %v", err)
		}
		if took := time.Since(start); took != client.DefaultBudget {
			t.Errorf("gave up after %v", took)
		}
		f.change(func() { f.nodes["a:1"].down = false; f.gaps["uid/1"] = []*seqpb.Gap{{From: 3, To: 1}} })
		if _, err := c.Gaps(t.Context(), client.UID(1)); !errors.Is(err, client.ErrUnavailable) {
			t.Fatalf("a malformed reply: %v", err)
		}
	})
}

func TestTheServerIsToldHowLongTheFirstCallerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f)
		if _, err := c.Alloc(t.Context(), client.UID(1)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := c.Alloc(ctx, client.UID(1)); err != nil {
			t.Fatal(err)
		}
		// A little less than the caller's own, so that a definite answer is back in
		// time; and not much, for those who ride along.
		if got := f.nodes["a:1"].timeouts; len(got) != 2 || got[0] != 90 || got[1] != 45 {
			t.Errorf("timeouts %v ms, want 90 and 45", got)
		}

		// In a shared batch it is the first deadline that counts.
		synctest.Wait()
		stuck := make(chan struct{})
		f.change(func() { f.nodes["a:1"].stuck, f.nodes["a:1"].timeouts = stuck, nil })
		var wg sync.WaitGroup
		for _, timeout := range []time.Duration{40, 40, 30, 10, 20} { // the first two are under way alone
			ctx, cancel := context.WithTimeout(t.Context(), timeout*time.Millisecond)
			defer cancel()
			wg.Go(func() {
				if _, err := c.Alloc(ctx, client.UID(1)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
			if timeout == 40 {
				time.Sleep(late)
			}
		}
		close(stuck)
		wg.Wait()
		if got := f.nodes["a:1"].timeouts; len(got) != 3 || !slices.Contains(got, 9) {
			t.Errorf("timeouts %v ms, want 9 for the batch of three", got)
		}
	})
}
