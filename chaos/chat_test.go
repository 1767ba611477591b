package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/client/examples/im"
	"github.com/seqsvr/seqsvr/internal/cluster"
)

// startBeside starts a fleet for a test whose short form holds no bound on time, so
// that it may run beside others.
func startBeside(t *testing.T, o cluster.ProcessOptions) *fleet {
	t.Helper()
	if long() == 0 {
		t.Parallel()
	}
	return startProcesses(t, o)
}

// What a chat service does goes on while its owners are killed, and then while
// three machines are lost: the reference loop of client/examples/im, and beside it
// the trace of a chat service.
func TestAChatGoesOnWhileItsOwnersDie(t *testing.T) {
	f := startBeside(t, cluster.ProcessOptions{Stores: 3, Allocs: 3})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	tr := newTraceRun(t, f)
	c := newChat(t, f)
	var running sync.WaitGroup
	running.Go(func() { tr.replay(ctx) })
	running.Go(func() { c.write(ctx) })
	c.follow(ctx)
	for i := range 3 * (1 + 3*long()) {
		node := f.Allocs()[i%3]
		pause(t, 300*time.Millisecond)
		tr.kill(node)
	}
	for i := range 3 {
		node := f.Allocs()[i]
		pause(t, time.Duration(100+5000*long())*time.Millisecond)
		tr.harm(history.Fault{Name: "lose-alloc", Node: node, Losses: 1}, func() {
			must(t, f.Kill(node))
			must(t, f.LoseMemory(node))
			pause(t, f.LeaseTTL()+500*time.Millisecond)
			must(t, f.Start(t.Context(), node))
		})
	}
	tr.hurry()
	c.enough()
	running.Wait()
	c.judge(ctx)
	tr.judge()
}

// chat is a chat service of which the store and the pushes fail too.
type chat struct {
	t       *testing.T
	f       *fleet
	convs   []string
	store   *im.Memory
	mu      sync.Mutex
	dropped map[string][]int64   // what the store lost, by conversation
	strays  map[string][]im.Span // what the lost messages said of numbers that may be nobody's
	doomed  map[im.ID]bool       // lost by the store
	sent    map[im.ID]string
	lost    bool // the store loses messages
	screens []*chatScreen
	follows sync.WaitGroup
	end     chan struct{}
}

// chatScreen is a device and what it has shown.
type chatScreen struct {
	*im.Device
	name   string
	pushed bool
	mu     sync.Mutex
	shown  map[string]map[int64]im.ID
	lost   map[string][]im.Span
}

func newChat(t *testing.T, f *fleet) *chat {
	c := &chat{t: t, f: f, store: im.NewMemory(), dropped: map[string][]int64{}, strays: map[string][]im.Span{}, doomed: map[im.ID]bool{}, sent: map[im.ID]string{}, lost: true, end: make(chan struct{})}
	for i := range 12 {
		c.convs = append(c.convs, fmt.Sprintf("chat_%d", i))
	}
	rng := rand.New(rand.NewPCG(3, 3))
	c.store.Lose = func(m im.Message) bool { // called with the store's lock
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.doomed[m.ID] && (!c.lost || rng.IntN(50) > 0) {
			return false
		}
		c.doomed[m.ID] = true // also if it is sent again
		if !slices.Contains(c.dropped[m.Conv], m.Seq) {
			c.dropped[m.Conv] = append(c.dropped[m.Conv], m.Seq)
		}
		if m.Stray != nil {
			c.strays[m.Conv] = append(c.strays[m.Conv], *m.Stray)
		}
		return true
	}
	c.screen("a device with pushes", true)
	c.screen("another device with pushes", true)
	c.screen("a device without pushes", false)
	return c
}

func (c *chat) screen(name string, pushed bool) *chatScreen {
	s := &chatScreen{name: name, pushed: pushed, shown: map[string]map[int64]im.ID{}, lost: map[string][]im.Span{}}
	s.Device = &im.Device{
		Numbers: dialClient(c.t, c.f.p.Addrs()...), Store: c.store,
		Show: func(m im.Message) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.shown[m.Conv] == nil {
				s.shown[m.Conv] = map[int64]im.ID{}
			}
			if was, ok := s.shown[m.Conv][m.Seq]; ok {
				c.t.Errorf("%s: %s/%d was shown twice: %s, %s", name, m.Conv, m.Seq, was, m.ID)
			}
			s.shown[m.Conv][m.Seq] = m.ID
		},
		Lost: func(conv string, span im.Span) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lost[conv] = append(s.lost[conv], span)
		},
	}
	c.screens = append(c.screens, s)
	return s
}

func (c *chat) follow(ctx context.Context) {
	for _, s := range c.screens {
		c.follows.Go(func() {
			if err := s.Follow(ctx, c.convs...); !errors.Is(err, context.Canceled) {
				c.t.Errorf("%s: following ended with %v", s.name, err)
			}
		})
	}
}

func (c *chat) enough() { close(c.end) }

// write has people send messages until it is enough: some send one again that was
// sent, some give up half-way, and someone else takes that up later.
func (c *chat) write(ctx context.Context) {
	const people = 8
	var writing sync.WaitGroup
	for p := range people {
		writing.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(p), 7))
			sender := &im.Sender{Numbers: dialClient(c.t, c.f.p.Addrs()...), Store: c.store, Skew: 50 * time.Millisecond, Push: c.push(rng)}
			var given []im.Draft // up
			var last im.Draft
			for {
				select {
				case <-c.end:
					for _, d := range given {
						c.send(ctx, sender, d)
					}
					return
				case <-ctx.Done():
					return
				case <-time.After(time.Duration(1+rng.IntN(8)) * time.Millisecond):
				}
				d := im.Draft{ID: im.ID(uuid.New()), Conv: c.convs[rng.IntN(len(c.convs))], From: fmt.Sprint("person ", p), Body: "hello"}
				switch {
				case rng.IntN(10) < 3 && last.Conv != "":
					d = last
				case rng.IntN(20) == 0:
					// Its process dies before it knows what came of it.
					short, cancel := context.WithTimeout(ctx, time.Duration(rng.IntN(2000))*time.Microsecond)
					if _, err := sender.Send(short, d); err != nil {
						given = append(given, d)
					}
					cancel()
					c.note(d)
					continue
				case rng.IntN(20) == 0 && len(given) > 0:
					d, given = given[0], given[1:]
				}
				c.note(d)
				if !c.send(ctx, sender, d) {
					return
				}
				last = d
			}
		})
	}
	writing.Wait()
}

func (c *chat) note(d im.Draft) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent[d.ID] = d.Conv
}

func (c *chat) send(ctx context.Context, s *im.Sender, d im.Draft) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := s.Send(ctx, d); err != nil {
		c.t.Errorf("a message was not sent in a minute: %v", err)
		return false
	}
	return true
}

// push brings a message to the devices late, twice or not at all.
func (c *chat) push(rng *rand.Rand) func(im.Message) {
	var held []im.Message
	return func(m im.Message) {
		held = append(held, m)
		rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
		for len(held) > 3 {
			for _, s := range c.screens {
				if s.pushed && rng.IntN(10) < 7 {
					s.Push(held[0])
					if rng.IntN(4) == 0 {
						s.Push(held[0])
					}
				}
			}
			held = held[1:]
		}
	}
}

// judge has each conversation end with a message, which decides all before it, and
// compares what the devices say with what was done.
func (c *chat) judge(ctx context.Context) {
	t := c.t
	c.mu.Lock()
	c.lost = false
	c.mu.Unlock()
	last := map[string]int64{}
	sender := &im.Sender{Numbers: c.f.client, Store: c.store}
	for _, conv := range c.convs {
		m, err := sender.Send(ctx, im.Draft{ID: im.ID(uuid.New()), Conv: conv, Body: "bye"})
		must(t, err)
		last[conv] = m.Seq
	}
	if left, _ := c.store.Pending(ctx, ""); len(left) > 0 {
		t.Errorf("%d drafts are pending at the end", len(left))
	}
	late := c.screen("a device that came late", false)
	must(t, late.Sync(ctx, c.convs...))
	whys := map[im.Why]int64{}
	stored := 0
	for _, conv := range c.convs {
		all, err := c.store.Range(ctx, conv, 0, 1<<30)
		must(t, err)
		for _, s := range c.screens {
			for end := time.Now().Add(30 * time.Second); s.Done(conv) < last[conv] && time.Now().Before(end); {
				pause(t, 10*time.Millisecond)
			}
			c.compare(s, conv, last[conv], all)
		}
		for _, b := range late.Blanks(conv) {
			whys[b.Why] += b.Len()
		}
		stored += len(all)
	}
	drops := 0
	for _, d := range c.dropped {
		drops += len(d)
	}
	t.Logf("%d messages sent, %d stored, %d lost by the store; without a message: %d missing, %d declared, %d stray, %d void",
		len(c.sent), stored, drops, whys[im.Missing], whys[im.Declared], whys[im.Stray], whys[im.Void])
	if whys[im.Missing] == 0 || whys[im.Declared] == 0 {
		t.Errorf("this test wants messages that are lost, and holes: %v", whys)
	}
}

func (c *chat) compare(s *chatScreen, conv string, last int64, stored []im.Message) {
	t := c.t
	if done := s.Done(conv); done < last {
		t.Errorf("%s: %s is complete up to %d only, its last message is %d", s.name, conv, done, last)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	shown := s.shown[conv]
	messages := 0
	for _, m := range stored {
		if m.Void {
			continue
		}
		messages++
		if shown[m.Seq] != m.ID {
			t.Errorf("%s: %s/%d is %s, and not message %s", s.name, conv, m.Seq, shown[m.Seq], m.ID)
		}
	}
	dropped := c.dropped[conv]
	for seq := range shown {
		if slices.Contains(dropped, seq) {
			messages++ // a push of what the store lost
		}
	}
	if len(shown) != messages {
		t.Errorf("%s: %s has %d messages, and %d are shown", s.name, conv, messages, len(shown))
	}
	if n := s.Unread(conv, 0); n != int64(messages) {
		t.Errorf("%s: %s has %d unread, want %d", s.name, conv, n, messages)
	}
	for _, span := range s.lost[conv] {
		for n := span.From; n <= span.To; n++ {
			stray := slices.ContainsFunc(c.strays[conv], func(s im.Span) bool { return s.From <= n && n <= s.To })
			if !slices.Contains(dropped, n) && !stray {
				t.Errorf("%s: %s/%d is said to be missing, and was never stored", s.name, conv, n)
			}
		}
	}
	// What is within a hole can be told from what was never issued only by the
	// message after it.
	blanks := s.Blanks(conv)
	for _, n := range dropped {
		_, seen := shown[n]
		i := slices.IndexFunc(blanks, func(b im.Blank) bool { return b.From <= n && n <= b.To })
		if !seen && (i < 0 || blanks[i].Why == im.Void) {
			t.Errorf("%s: %s/%d was lost, and the device says nothing of it", s.name, conv, n)
		}
	}
}
