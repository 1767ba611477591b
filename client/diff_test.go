package client_test

import (
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func TestDiffSaysWhatEachReaderLacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1", "b:1")
		c := dial(t, f)
		f.change(func() { f.counters["uid/1"] = 10; f.counters["conv/x"] = math.MaxInt64 })
		x := client.Name("conv", "x")
		got, err := c.Diff(t.Context(), []client.Mark{
			{client.UID(1), 4}, {client.UID(1), 10}, {client.UID(1), 12}, {client.UID(2), 0}, {x, 0}, {x, math.MaxInt64},
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []struct{ current, missing, ahead int64 }{
			{10, 6, 0}, {10, 0, 0}, {10, 0, 2}, {0, 0, 0}, {math.MaxInt64, math.MaxInt64, 0}, {math.MaxInt64, 0, 0},
		} {
			if d := got[i]; d.Current != want.current || d.Missing != want.missing || d.Ahead != want.ahead || d.Err != nil {
				t.Errorf("%d: %+v, want %+v", i, d, want)
			}
		}
		if got, err := c.Diff(t.Context(), []client.Mark{{client.UID(1), -1}}); got != nil || !errors.Is(err, client.ErrInvalidArgument) {
			t.Errorf("a negative mark: %v, %v", got, err)
		}
		if got, err := c.Diff(t.Context(), nil); len(got) != 0 || err != nil {
			t.Errorf("no marks: %v, %v", got, err)
		}
	})
}

func TestDiffReportsFailuresPerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f)
		f.change(func() {
			f.counters["uid/1"] = 3
			f.nodes["a:1"].refuse = func(keys []string) error {
				if slices.Contains(keys, "x") || slices.Contains(keys, "conv/x") {
					return wire.Refusef(seqpb.Code_CODE_UNAUTHORIZED, "no")
				}
				return nil
			}
		})
		got, err := c.Diff(t.Context(), []client.Mark{{client.UID(1), 1}, {client.Name("conv", "x"), 7}})
		var partial *client.PartialError
		if !errors.As(err, &partial) || partial.Failed != 1 {
			t.Fatalf("%v", err)
		}
		if d := got[0]; d.Missing != 2 || d.Err != nil {
			t.Errorf("the good key: %+v", d)
		}
		if d := got[1]; d.Missing != 0 || d.Ahead != 0 || d.Last != 7 || !errors.Is(d.Err, client.ErrUnauthorized) {
			t.Errorf("the failed key says something: %+v", d)
		}
	})
}
