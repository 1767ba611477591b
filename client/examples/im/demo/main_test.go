package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/cluster"
)

func TestTheDemoShowsEveryMessageAndFindsWhatIsLost(t *testing.T) {
	c, err := cluster.Start(cluster.Options{Dir: t.TempDir(), StopLinger: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		args string
		want []string
	}{
		{"--messages 200 --pace 1ms", []string{"203 messages sent in ", ", 0 of them were lost", "online has shown 203 and misses 0\n", "came late has read 203 and misses 0\n"}},
		{"--messages 98 --pace 1ms --conversations 2 --lose 40 --push-loss 1", []string{"100 messages sent in ", ", 2 of them were lost", "online has shown 98 and misses 2\n", "came late has read 98 and misses 2\n", "had messages, and the store has them no more"}},
	} {
		var out strings.Builder
		if err := run(ctx, append([]string{"--server", strings.Join(c.Addrs(), ",")}, strings.Fields(x.args)...), &out); err != nil {
			t.Fatalf("%s: %v\n%s", x.args, err, out.String())
		}
		for _, want := range x.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: no %q in\n%s", x.args, want, out.String())
			}
		}
	}
}
