package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/chaos/load"
	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/testdata"
)

// What follows is done to one cluster, which nothing bad happens to.
func TestOneHealthyCluster(t *testing.T) {
	f := startFleet(t, fleetOptions{stores: 3, allocs: 2, redis: true})
	t.Run("100 000 uids touched once read back right", func(t *testing.T) { touchAndRead(t, f) })
	t.Run("a day of chat leaves every conversation without a hole", func(t *testing.T) { replayTrace(t, f) })
	t.Run("bad input is refused at each door", func(t *testing.T) { knock(t, f) })
}

func touchAndRead(t *testing.T, f *fleet) {
	const uids, batch = 100_000, 5000
	c := f.client
	count := func(uid int) int64 { return int64(1 + uid%3) }
	start := time.Now()
	for from := 0; from < uids; from += batch {
		reqs := make([]client.Request, batch)
		for i := range reqs {
			reqs[i] = client.Request{Key: client.UID(uint64(from+i) * 7), N: count(from + i)}
		}
		res, err := c.AllocMany(t.Context(), reqs)
		must(t, err)
		for i, r := range res {
			if r.First != 1 || r.Count != count(from+i) || r.Discontinuity != nil {
				t.Fatalf("first touch of %s: %+v", r.Key, r)
			}
		}
	}
	touched := time.Since(start)
	for from := 0; from < uids; from += batch {
		keys := make([]client.Key, batch)
		for i := range keys {
			keys[i] = client.UID(uint64(from+i) * 7)
		}
		got, err := c.CurrentMany(t.Context(), keys)
		must(t, err)
		for i, r := range got {
			if r.Current != count(from+i) {
				t.Fatalf("%s: current is %d, want %d", r.Key, r.Current, count(from+i))
			}
		}
	}
	t.Logf("%d uids touched in %v, read in %v", uids, touched.Round(time.Millisecond), (time.Since(start) - touched).Round(time.Millisecond))
}

// replayTrace sends a day of chat as fast as the senders can, with its retries.
func replayTrace(t *testing.T, f *fleet) {
	tr, err := testdata.ChatTrace()
	must(t, err)
	const senders = 256
	c := f.client
	var mu sync.Mutex
	numbers := make([][]int64, len(tr.Conversations))
	byMessage := make([]int64, tr.Messages)
	send := func(s testdata.Send) error {
		r, err := c.Alloc(t.Context(), client.Name("conv", tr.Conversations[s.Conversation].Name), client.WithRequestID(tr.RequestID(s.Message)))
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if r.Discontinuity != nil {
			return fmt.Errorf("discontinuity %+v in a cluster where nothing was lost", *r.Discontinuity)
		}
		switch before := byMessage[s.Message]; {
		case before == 0:
			byMessage[s.Message] = r.First
			numbers[s.Conversation] = append(numbers[s.Conversation], r.First)
		case before != r.First || !r.Replayed:
			return fmt.Errorf("message %d got %d and, sent again, %d (replayed: %v)", s.Message, before, r.First, r.Replayed)
		}
		return nil
	}
	// A sender has its own connection and sends its messages in order.
	work := make([]chan testdata.Send, senders)
	errs := make(chan error, senders)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range work {
		work[i] = make(chan testdata.Send, 4096)
		wg.Go(func() {
			var failed error
			for s := range work[i] {
				if failed == nil {
					if failed = send(s); failed != nil {
						errs <- failed
					}
				}
			}
		})
	}
	for _, s := range tr.Sends {
		work[(s.Conversation*31+s.Sender)%senders] <- s
	}
	for _, w := range work {
		close(w)
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	for i, conv := range tr.Conversations {
		if msg := oneToN(numbers[i], conv.Messages); msg != "" {
			t.Errorf("conversation %s: %s", conv.Name, msg)
		}
	}
	t.Logf("%d sends of %d messages in %d conversations in %v", len(tr.Sends), tr.Messages, len(tr.Conversations), time.Since(start).Round(time.Millisecond))
}

// oneToN says what is wrong if the numbers are not 1…n, each once.
func oneToN(numbers []int64, n int) string {
	if len(numbers) != n {
		return fmt.Sprintf("%d numbers for %d messages", len(numbers), n)
	}
	seen := make([]bool, n+1)
	for _, x := range numbers {
		if x < 1 || x > int64(n) || seen[x] {
			return fmt.Sprintf("number %d is out of 1…%d, or came twice", x, n)
		}
		seen[x] = true
	}
	return ""
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pause lets real time pass: these tests are about real processes.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// long is 1 when SEQ_LONG asks for the long form of the tests, else 0.
func long() int {
	if os.Getenv("SEQ_LONG") != "" {
		return 1
	}
	return 0
}

// dial makes n clients of their own.
func dial(t *testing.T, n int, servers ...string) []load.Target {
	t.Helper()
	var out []load.Target
	for range n {
		out = append(out, load.SDK(dialClient(t, servers...)))
	}
	return out
}

func dialClient(t *testing.T, servers ...string) *client.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, servers)
	must(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, client.ErrClosed) {
			t.Errorf("closing a client: %v", err)
		}
	})
	return c
}
