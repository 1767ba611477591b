package chaos

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/client"
)

// conversation is what the callers of one key were given.
type conversation struct {
	key  client.Key
	mu   sync.Mutex
	got  []client.Result
	many atomic.Int64
}

// crowd has callers allocate from the key until the stage is over: each is a member
// of the conversation who sends one message after the other, with a UUID.
func (c *conversation) crowd(t *testing.T, clients []*client.Client, callers int, play func()) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			var mine []client.Result
			for n := int64(1); ctx.Err() == nil; n = n%3 + 1 {
				var id [16]byte
				_, _ = rand.Read(id[:])
				call, cancel := context.WithTimeout(t.Context(), 30*time.Second) // beyond the stage's end: no message is given up
				r, err := clients[i%len(clients)].AllocN(call, c.key, n, client.WithRequestID(id))
				cancel()
				if err != nil {
					t.Errorf("caller %d: %v", i, err)
					break
				}
				mine = append(mine, r)
				c.many.Add(1)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.got = append(c.got, mine...)
		})
	}
	play()
	stop()
	wg.Wait()
}

// more waits until the crowd was given so many answers more.
func (c *conversation) more(t *testing.T, n int64) {
	t.Helper()
	until := c.many.Load() + n
	for deadline := time.Now().Add(30 * time.Second); c.many.Load() < until; pause(t, 10*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d answers in 30 s, want %d", c.many.Load()-until+n, n)
		}
	}
}

// chain checks that all that was given is one chain: each answer is the last one's
// successor. What is missing between two is declared by the second, or stray: it was
// given to callers who never heard.
func (c *conversation) chain(t *testing.T) (last, missing int64, declared, stray []client.Hole) {
	t.Helper()
	got := slices.Clone(c.got)
	slices.SortFunc(got, func(a, b client.Result) int { return int(a.First - b.First) })
	for _, r := range got {
		if r.Prev != r.First-1 || r.Count < 1 || r.Count > 3 {
			t.Fatalf("%+v is no link", r)
		}
		if h := r.Discontinuity; h != nil {
			if h.To != r.Prev || h.From < 1 || h.From > h.To {
				t.Fatalf("%+v declares %+v", r, *h)
			}
			declared = append(declared, *h)
		}
		switch gap := r.Prev - last; {
		case gap < 0:
			t.Fatalf("%+v follows %d: a number came twice", r, last)
		case gap > 0 && r.Discontinuity == nil:
			stray = append(stray, client.Hole{From: last + 1, To: r.Prev})
		case gap > 0 && r.Discontinuity.From > last+1:
			stray = append(stray, client.Hole{From: last + 1, To: r.Discontinuity.From - 1})
		}
		missing += r.Prev - last
		last = r.Last()
	}
	return last, missing, declared, stray
}

// Thousands of callers on one conversation, while the process that serves it is
// killed and comes back, and then its machine is lost.
func TestAHotConversationIsOneChain(t *testing.T) {
	const callers, step = 2000, 5000
	settings := func(node string) map[string]string {
		if node[0] != 'a' {
			return nil
		}
		return map[string]string{"spaces": "['conv:step_policy=adaptive:step_max=5000:step_target=1s']"}
	}
	f := startFleet(t, fleetOptions{stores: 3, allocs: 2, settings: settings})
	var clients []*client.Client
	for range 4 {
		clients = append(clients, dialClient(t, f.p.Addrs()...))
	}
	c := &conversation{key: client.Name("conv", "si_hot")}
	owner := func() string {
		r, err := f.client.Route(t.Context(), c.key)
		must(t, err)
		return r.Owner
	}
	answers := int64(5000 * (1 + 9*long()))

	begin := time.Now()
	c.crowd(t, clients, callers, func() {
		c.more(t, answers)
		node := owner()
		must(t, f.Kill(node))
		must(t, f.process(node).StartReady(t.Context()))
		c.more(t, answers)
		if now := owner(); now != node {
			t.Errorf("killed and started again, %s lost the conversation to %s", node, now)
		}
	})
	last, missing, declared, stray := c.chain(t)
	t.Logf("%d answers to %d callers through a kill, up to %d, in %v", len(c.got), callers, last, time.Since(begin).Round(time.Millisecond))
	if missing != 0 || len(declared) != 0 || len(stray) != 0 {
		t.Fatalf("%d numbers are missing, declared %v, stray %v: a process that comes back loses none", missing, declared, stray)
	}

	before := last
	c.crowd(t, clients, callers, func() {
		c.more(t, answers)
		node := owner()
		must(t, f.Kill(node))
		must(t, f.LoseMemory(node))
		c.more(t, answers)
		must(t, f.process(node).StartReady(t.Context()))
	})
	last, missing, declared, stray = c.chain(t)
	t.Logf("%d answers in all, up to %d; %d numbers missing, declared %v, stray %v", len(c.got), last, missing, declared, stray)
	// A call in flight may have been carried out and its answer lost with the machine.
	if most := int64(step + 3*callers); len(declared) != 1 || declared[0].From <= before || missing > most {
		t.Fatalf("%d numbers are missing of at most %d, declared %v", missing, most, declared)
	}
	// So may all answers of a client's batch, while another client still gets those of a later one.
	lost := int64(0)
	for _, h := range stray {
		lost += h.To - h.From + 1
		if h.From <= before || h.To > declared[0].To {
			t.Errorf("%v is missing, and no answer to it was lost: the machine was lost between %d and %v", h, before, declared[0])
		}
	}
	if most := int64(3 * callers); lost > most {
		t.Errorf("%d numbers are stray, %d calls in flight can have had no more than %d", lost, callers, most)
	}
	now, err := f.client.Current(t.Context(), c.key)
	must(t, err)
	if now != last {
		t.Errorf("current is %d, the last link ends at %d", now, last)
	}
}
