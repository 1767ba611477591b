package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// A read allocates nothing whether it fails or not, so its errors do not speak of it.
func TestErrorsOfReadsDoNotSpeakOfAllocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a:1")
		c := dial(t, f)
		check := func(why string, key client.Key, calls ...string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for name, read := range map[string]func() error{
				"Current":     func() error { _, err := c.Current(ctx, key); return err },
				"CurrentMany": func() error { _, err := c.CurrentMany(ctx, []client.Key{key, key}); return err },
				"Diff":        func() error { _, err := c.Diff(ctx, []client.Mark{{Key: key}}); return err },
				"Gaps":        func() error { _, err := c.Gaps(ctx, key); return err },
				"Route":       func() error { _, err := c.Route(ctx, key); return err },
				"WatchKeys":   func() error { return c.WatchKeys(ctx, []client.Key{key}, func(client.KeyNews) {}) },
				"Watch":       func() error { return c.Watch(ctx, func(*client.Table) {}) },
			} {
				if len(calls) > 0 && !strings.Contains(strings.Join(calls, " ")+" ", name+" ") {
					continue
				}
				if err := read(); err == nil || strings.Contains(err.Error(), "allocated") {
					t.Errorf("%s, %s: %v", why, name, err)
				}
			}
		}
		check("no key", client.UID(1<<40), "Current", "CurrentMany", "Diff", "Gaps", "Route", "WatchKeys")
		refuse := func(code seqpb.Code) {
			f.change(func() {
				f.nodes["a:1"].refuse = func([]string) error { return wire.Refusef(code, "no") }
			})
		}
		refuse(seqpb.Code_CODE_UNAUTHORIZED)
		check("refused", client.UID(1), "Current", "CurrentMany", "Diff", "WatchKeys")
		refuse(seqpb.Code_CODE_UNAVAILABLE)
		check("not to be reached", client.UID(1), "Current", "CurrentMany", "Diff")
		if _, err := c.Diff(t.Context(), []client.Mark{{Key: client.UID(1), Last: -1}}); !errors.Is(err, client.ErrInvalidArgument) || strings.Contains(err.Error(), "allocated") {
			t.Errorf("a negative mark: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		check("closed", client.UID(1))
	})
}
