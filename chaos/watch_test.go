package chaos

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// watcher is a sync gateway: it knows the newest number of each key, as told.
type watcher struct {
	t      *testing.T
	mu     sync.Mutex
	told   map[client.Key]int64
	calls  int
	missed int
	// hold, while it is not nil, is what f waits for.
	hold chan struct{}
}

// watch subscribes until the test is over.
func (b *backend) watch(t *testing.T, keys []client.Key) *watcher {
	w := &watcher{t: t, told: map[client.Key]int64{}}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := b.client.WatchKeys(ctx, keys, w.news); !errors.Is(err, context.Canceled) {
			t.Errorf("a watch ended with %v", err)
		}
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return w
}

func (w *watcher) news(n client.KeyNews) {
	w.mu.Lock()
	for _, r := range n.Readings {
		if old, ok := w.told[r.Key]; ok && r.Current <= old {
			w.t.Errorf("%s: told %d after %d", r.Key, r.Current, old)
		}
		w.told[r.Key] = r.Current
	}
	w.calls++
	if n.Missed {
		w.missed++
	}
	hold := w.hold
	w.mu.Unlock()
	if hold != nil {
		<-hold
	}
}

func (w *watcher) see(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// reaches waits until what the cluster has issued by now was told, or more.
func (b *backend) reaches(t *testing.T, w *watcher, keys []client.Key) (now []client.Reading) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	now, err := b.client.CurrentMany(ctx, keys)
	must(t, err)
	behind := -1
	for behind != 0 {
		behind = 0
		w.see(func() {
			for _, r := range now {
				if told, ok := w.told[r.Key]; !ok || told < r.Current {
					behind++
				}
			}
		})
		if ctx.Err() != nil {
			t.Fatalf("of %d keys the newest number was not told in 30 s", behind)
		}
		pause(t, 5*time.Millisecond)
	}
	return now
}

// newest waits until exactly what the cluster has issued was told; nobody calls.
func (b *backend) newest(t *testing.T, w *watcher, keys []client.Key) {
	t.Helper()
	now := b.reaches(t, w, keys)
	w.see(func() {
		for _, r := range now {
			if w.told[r.Key] != r.Current {
				t.Errorf("%s: told %d, and it is at %d", r.Key, w.told[r.Key], r.Current)
			}
		}
	})
}

func keysOf(uids []uint64) []client.Key {
	keys := make([]client.Key, len(uids))
	for i, uid := range uids {
		keys[i] = client.UID(uid)
	}
	return keys
}

// watchSlowly: consumers take nothing at all until every call is answered, so no
// call can have waited for them.
func (b *backend) watchSlowly(t *testing.T) (stayed bool) {
	uids := b.uidsOf(t, "a1", 5000)
	keys := keysOf(uids)
	reqs := make([]client.Request, len(keys))
	for i, k := range keys {
		reqs[i] = client.Request{Key: k, N: 1}
	}
	all := func() {
		if _, err := b.client.AllocMany(t.Context(), reqs); err != nil {
			t.Fatal(err)
		}
	}
	all()
	sdk := b.watch(t, keys)
	b.newest(t, sdk, keys)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	plain, err := b.conn(t, b.lines["a1"].addr()).WatchKeys(ctx, &seqpb.WatchKeysRequest{Space: "uid", Uids: uids})
	must(t, err)
	defer func() { _ = plain.Close() }()
	told, moved := make([]uint64, len(uids)), 0
	take := func() *seqpb.KeyValues {
		m, err := plain.Recv()
		must(t, err)
		for _, f := range m.Failures { // moved for balance: a plain client would follow
			gone := f.Code == seqpb.Code_CODE_NOT_OWNER && f.OwnerAddr != "" || f.Code == seqpb.Code_CODE_LEASE_EXPIRED
			if !gone {
				t.Fatalf("%v", f)
			}
			told[f.Index] = math.MaxUint64
			moved++
		}
		for j, i := range m.Index {
			if m.Current[j] <= told[i] {
				t.Errorf("uid %d: told %d after %d", uids[i], m.Current[j], told[i])
			}
			told[i] = m.Current[j]
		}
		return m
	}
	take()

	hold := make(chan struct{})
	sdk.see(func() { sdk.hold = hold })
	rounds, messages := 0, 0
	for began := time.Now(); time.Since(began) < 700*time.Millisecond || rounds < 50; rounds++ {
		all()
	}
	want := uint64(1 + rounds)
	before := 0
	sdk.see(func() { before, sdk.hold = sdk.calls, nil })
	close(hold)
	b.newest(t, sdk, keys)
	missed := uint32(0)
	for behind := true; behind; {
		missed += take().Missed
		messages++
		behind = false
		for _, n := range told {
			behind = behind || n < want
		}
	}
	stayed = moved <= len(uids)/2
	sdk.see(func() {
		t.Logf("%d rounds of %d keys while nobody took; then the SDK's consumer was told in %d calls, the plain one in %d messages, %d looks missed",
			rounds, len(keys), sdk.calls-before, messages, missed)
		if !stayed {
			t.Logf("%d of %d keys moved away meanwhile", moved, len(uids))
			return
		}
		if sdk.missed == 0 || missed == 0 {
			t.Errorf("told of missed news: the SDK's consumer %d times, the plain one of %d", sdk.missed, missed)
		}
		if most := rounds * 3 / 4; sdk.calls-before > most || messages > most {
			t.Errorf("%d rounds were queued: %d calls, %d messages", rounds, sdk.calls-before, messages)
		}
	})
	return stayed
}

// watchThroughTrouble: whatever becomes of the owners, a watch comes to the newest
// number of each key, and never goes back.
func (b *backend) watchThroughTrouble(t *testing.T) {
	keys := keysOf(b.uids(1600))
	for i := range keys {
		if i%2 == 0 {
			keys[i] = client.Name("conv", "watched_"+keys[i].String())
		}
	}
	w := b.watch(t, keys)
	var writing sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for i := range 2 {
		writing.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 11))
			for ctx.Err() == nil {
				reqs := make([]client.Request, 50)
				for j := range reqs {
					reqs[j] = client.Request{Key: keys[rng.IntN(len(keys))], N: 1, RequestID: newID()}
				}
				call, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				_, err := b.client.AllocMany(call, reqs)
				cancel()
				if err != nil {
					t.Errorf("while owners come and go: %v", err)
					return
				}
			}
		})
	}
	calls := func() (n int) {
		w.see(func() { n = w.calls })
		return n
	}
	act := func(what string, do func()) {
		before, began := calls(), time.Now()
		do()
		b.reaches(t, w, keys)
		t.Logf("%-28s %v, told in %d calls", what, time.Since(began).Round(time.Millisecond), calls()-before)
	}
	act("at first", func() {})
	for _, node := range b.Allocs() {
		act("drain of "+node, func() {
			must(t, b.Drain(t.Context(), node))
			must(t, b.Undrain(t.Context(), node))
		})
		act("kill and restart of "+node, func() {
			must(t, b.Kill(node))
			must(t, b.process(node).StartReady(t.Context()))
		})
	}
	act("loss of the machine of a1", func() {
		must(t, b.Kill("a1"))
		must(t, b.LoseMemory("a1"))
		pause(t, b.LeaseTTL()+500*time.Millisecond)
		must(t, b.process("a1").StartReady(t.Context()))
	})
	stop()
	writing.Wait()
	b.newest(t, w, keys)
}
