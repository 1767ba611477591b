package client_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAllocCountsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, newFake("a:1", "b:1"))
		for want := int64(1); want <= 3; want++ {
			r, err := c.Alloc(t.Context(), client.UID(42))
			if err != nil || r.First != want || r.Count != 1 || r.Prev != want-1 || r.Discontinuity != nil || r.Replayed || r.Key != client.UID(42) {
				t.Fatalf("%+v, %v, want number %d", r, err, want)
			}
		}
		r, err := c.AllocN(t.Context(), client.UID(42), 100)
		if err != nil || r.First != 4 || r.Count != 100 || r.Prev != 3 || r.Last() != 103 {
			t.Fatalf("%+v, %v", r, err)
		}
		if n, err := c.Current(t.Context(), client.UID(42)); err != nil || n != 103 {
			t.Fatalf("current %d, %v", n, err)
		}
		if n, err := c.Current(t.Context(), client.UID(43)); err != nil || n != 0 {
			t.Fatalf("current of an untouched key %d, %v", n, err)
		}
		if r, err := c.Alloc(t.Context(), client.UID(math.MaxUint32)); err != nil || r.First != 1 {
			t.Fatalf("the largest uid: %+v, %v", r, err)
		}
		for range 2 {
			if _, err := c.Alloc(t.Context(), client.Name("conv", "room 7")); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := c.Current(t.Context(), client.In("conv", "room 7")); err != nil || n != 2 {
			t.Fatalf("a name by its text: %d, %v", n, err)
		}
		if n, err := c.Current(t.Context(), client.In("uid", "42")); err != nil || n != 103 {
			t.Fatalf("a uid by its text: %d, %v", n, err)
		}
	})
}

func TestWrongCallsAreRefusedBeforeTheyAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f)
		calls := map[string]func() error{
			"n 0":           func() error { _, err := c.AllocN(t.Context(), client.UID(1), 0); return err },
			"n -5":          func() error { _, err := c.AllocN(t.Context(), client.UID(1), -5); return err },
			"n 2^32":        func() error { _, err := c.AllocN(t.Context(), client.UID(1), 1<<32); return err },
			"uid 2^32":      func() error { _, err := c.Alloc(t.Context(), client.UID(1<<32)); return err },
			"text -1":       func() error { _, err := c.Alloc(t.Context(), client.In("uid", "-1")); return err },
			"text abc":      func() error { _, err := c.Alloc(t.Context(), client.In("uid", "abc")); return err },
			"no text":       func() error { _, err := c.Alloc(t.Context(), client.In("uid", "")); return err },
			"unknown space": func() error { _, err := c.Alloc(t.Context(), client.Name("room", "x")); return err },
			"uid as name":   func() error { _, err := c.Alloc(t.Context(), client.Name("uid", "5")); return err },
			"empty name":    func() error { _, err := c.Alloc(t.Context(), client.Name("conv", "")); return err },
			"long name": func() error {
				_, err := c.Alloc(t.Context(), client.Name("conv", strings.Repeat("x", 129)))
				return err
			},
			"zero key": func() error { _, err := c.Alloc(t.Context(), client.Key{}); return err },
			"zero request id": func() error {
				_, err := c.Alloc(t.Context(), client.UID(1), client.WithRequestID([16]byte{}))
				return err
			},
			"one of many": func() error {
				_, err := c.AllocMany(t.Context(), []client.Request{{Key: client.UID(1), N: 1}, {Key: client.UID(2)}})
				return err
			},
			"current": func() error { _, err := c.Current(t.Context(), client.UID(1<<32)); return err },
			"gaps":    func() error { _, err := c.Gaps(t.Context(), client.UID(1<<32)); return err },
			"route":   func() error { _, err := c.Route(t.Context(), client.UID(1<<32)); return err },
		}
		for name, call := range calls {
			err := call()
			var e *client.Error
			if !errors.Is(err, client.ErrInvalidArgument) || !errors.As(err, &e) || e.Kind != client.KindInvalidArgument {
				t.Errorf("%s: got %v, want InvalidArgument", name, err)
			}
		}
		if n := f.nodes["a:1"].rpcs(); n != 0 {
			t.Errorf("%d RPCs were made", n)
		}
	})
}

func TestAllocManyGroupsByOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial(t, f)
		var reqs []client.Request
		for i := range 100 {
			reqs = append(reqs, client.Request{Key: client.UID(inSection(0) + uint64(i)*256), N: int64(1 + i%3)})
		}
		results, err := c.AllocMany(t.Context(), reqs)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			if r.Key != reqs[i].Key || r.First != 1 || r.Count != reqs[i].N || r.Err != nil {
				t.Errorf("%d: %+v", i, r)
			}
		}
		for addr, n := range f.nodes {
			if len(n.batches) != 1 || n.batches[0] != 50 {
				t.Errorf("%s got batches of %v keys, want one of 50", addr, n.batches)
			}
		}
		keys := make([]client.Key, len(reqs))
		for i := range reqs {
			keys[i] = reqs[i].Key
		}
		readings, err := c.CurrentMany(t.Context(), keys)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range readings {
			if r.Key != keys[i] || r.Current != reqs[i].N || r.Err != nil {
				t.Errorf("%d: %+v, want %d", i, r, reqs[i].N)
			}
		}
		if results, err := c.AllocMany(t.Context(), nil); err != nil || len(results) != 0 {
			t.Errorf("no keys: %v, %v", results, err)
		}
	})
}

func TestALargeAllocManyIsSplitIntoBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f, client.WithMaxBatch(10))
		reqs := make([]client.Request, 333)
		for i := range reqs {
			reqs[i] = client.Request{Key: client.UID(uint64(i)), N: 1}
		}
		results, err := c.AllocMany(t.Context(), reqs)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			if r.First != 1 || r.Key != reqs[i].Key {
				t.Fatalf("%d: %+v", i, r)
			}
		}
		for _, keys := range f.nodes["a:1"].batches {
			if keys > 10 {
				t.Fatalf("a batch of %d keys", keys)
			}
		}
	})
}

func TestKeysThatFailAreRetriedAloneAndReportedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		attempts := map[string]int{}
		f.nodes["a:1"].fail = func(key string) seqpb.Code {
			attempts[key]++
			switch {
			case key == "3":
				return seqpb.Code_CODE_EXHAUSTED
			case key == "5" && attempts[key] <= 4:
				return seqpb.Code_CODE_BUSY
			case key == "7":
				return seqpb.Code_CODE_NOT_READY
			}
			return seqpb.Code_CODE_OK
		}
		c := dial(t, f, client.WithBudget(2*time.Second))
		var reqs []client.Request
		for i := range 10 {
			reqs = append(reqs, client.Request{Key: client.UID(uint64(i)), N: 1})
		}
		start := time.Now()
		results, err := c.AllocMany(t.Context(), reqs)
		var partial *client.PartialError
		if !errors.As(err, &partial) || partial.Failed != 2 || partial.Total != 10 || !errors.Is(err, client.ErrExhausted) {
			t.Fatalf("got %v", err)
		}
		for i, r := range results {
			switch i {
			case 3:
				if !errors.Is(r.Err, client.ErrExhausted) || r.First != 0 {
					t.Errorf("3: %+v", r)
				}
			case 7:
				if !errors.Is(r.Err, client.ErrNotReady) {
					t.Errorf("7: %+v", r)
				}
			default:
				if r.Err != nil || r.First != 1 {
					t.Errorf("%d: %+v: repeated though it had succeeded?", i, r)
				}
			}
		}
		if attempts["3"] != 1 || attempts["5"] != 5 || attempts["7"] < 5 || attempts["0"] != 1 {
			t.Errorf("attempts: %v", attempts)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("took %v, over the budget", took)
		}
	})
}

func TestADiscontinuityIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		f.holes["uid/7"] = &seqpb.Discontinuity{From: 58, To: 10000}
		f.gaps["uid/7"] = []*seqpb.Gap{{From: 58, To: 10000, Cause: "machine loss"}}
		f.gaps["conv/x"] = []*seqpb.Gap{{From: 1, To: 2, Cause: "advance"}}
		c := dial(t, f)
		r, err := c.AllocN(t.Context(), client.UID(7), 5)
		if err != nil || r.First != 10001 || r.Prev != 10000 || !reflect.DeepEqual(r.Discontinuity, &client.Hole{From: 58, To: 10000}) {
			t.Fatalf("%+v, %v", r, err)
		}
		if r, err := c.Alloc(t.Context(), client.UID(7)); err != nil || r.Discontinuity != nil || r.Prev != 10005 {
			t.Fatalf("%+v, %v", r, err)
		}
		gaps, err := c.Gaps(t.Context(), client.UID(7))
		if err != nil || !reflect.DeepEqual(gaps, []client.Gap{{From: 58, To: 10000, Cause: "machine loss"}}) {
			t.Fatalf("%+v, %v", gaps, err)
		}
		if gaps, err := c.Gaps(t.Context(), client.Name("conv", "x")); err != nil || len(gaps) != 1 {
			t.Fatalf("%+v, %v", gaps, err)
		}
		if gaps, err := c.Gaps(t.Context(), client.UID(8)); err != nil || len(gaps) != 0 {
			t.Fatalf("%+v, %v", gaps, err)
		}
	})
}

func TestRepliesThatCannotBeTrueAreNotBelieved(t *testing.T) {
	for name, rep := range map[string]*seqpb.AllocReply{
		"too few":                 {},
		"too many":                {First: []uint64{1, 2}},
		"number 0":                {First: []uint64{0}},
		"past int64":              {First: []uint64{1 << 63}},
		"ends past int64":         {First: []uint64{math.MaxInt64 - 1}},
		"failure of no key":       {First: []uint64{1}, Failures: []*seqpb.Failure{{Index: 1, Code: seqpb.Code_CODE_BUSY}}},
		"failure that is none":    {First: []uint64{1}, Failures: []*seqpb.Failure{{}}},
		"nil failure":             {First: []uint64{1}, Failures: []*seqpb.Failure{nil}},
		"hole of no key":          {First: []uint64{5}, Discontinuities: []*seqpb.Discontinuity{{Index: 1, From: 1, To: 4}}},
		"hole not before":         {First: []uint64{5}, Discontinuities: []*seqpb.Discontinuity{{From: 1, To: 3}}},
		"hole that is none":       {First: []uint64{5}, Discontinuities: []*seqpb.Discontinuity{{From: 5, To: 4}}},
		"replayed without an id":  {First: []uint64{5}, Replayed: []uint32{0}},
		"replayed of no key":      {First: []uint64{5}, Replayed: []uint32{9}},
		"failure index past 2^31": {First: []uint64{5}, Failures: []*seqpb.Failure{{Index: math.MaxUint32, Code: seqpb.Code_CODE_BUSY}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake("a:1")
				c := dial(t, f, client.WithTransport(liar{f, rep}))
				_, err := c.AllocN(t.Context(), client.UID(1), 10)
				if !errors.Is(err, client.ErrUnknownResult) {
					t.Fatalf("got %v, want UnknownResult", err)
				}
			})
		})
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	e := &client.Error{Kind: client.KindBusy, Key: client.UID(42), Owner: "a:1", Err: errors.New("1000 wait already")}
	want := "key uid/42: busy at a:1: 1000 wait already: nothing was allocated; try again later, or with fewer calls at once"
	if e.Error() != want {
		t.Errorf("got  %q\nwant %q", e.Error(), want)
	}
	for _, c := range []struct {
		kind client.Kind
		want string
	}{
		{client.KindUnknownResult, "it may or may not have been allocated; use a request id to be able to repeat such a call"},
		{client.Kind(77), "this client does not know the error; a newer one might"},
	} {
		if text := (&client.Error{Kind: c.kind}).Error(); !strings.HasSuffix(text, ": "+c.want) || strings.Contains(text, "nothing") {
			t.Errorf("got %q, want it to end with %q", text, c.want)
		}
	}
	for _, kind := range []client.Kind{1, 2, 3, 4, 5, 6, 7, 8, 9, 10} {
		err := fmt.Errorf("calling: %w", &client.Error{Kind: kind, Err: errors.New("cause")})
		for _, other := range []client.Kind{1, 2, 3, 4, 5, 6, 7, 8, 9, 10} {
			if errors.Is(err, other) != (kind == other) {
				t.Errorf("errors.Is of %v and %v", kind, other)
			}
		}
	}
}
