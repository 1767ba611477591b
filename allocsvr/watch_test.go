package allocsvr

import (
	"context"
	"testing"
	"time"

	"github.com/cloudwego/kitex/pkg/streaming"

	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// keyWatcher is a WatchKeys stream whose consumer takes when it is told to.
type keyWatcher struct {
	streaming.Stream
	t    *testing.T
	ctx  context.Context
	sent chan *seqpb.KeyValues
	done chan error
	// What was taken so far.
	values map[uint32]uint64
	failed map[uint32]*seqpb.Failure
	missed uint32
	taken  int
}

func (w *keyWatcher) Context() context.Context { return w.ctx }
func (w *keyWatcher) Send(m *seqpb.KeyValues) error {
	select {
	case w.sent <- m:
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

func (n *node) watch(t *testing.T, keys ...ids.Key) *keyWatcher {
	ctx, cancel := context.WithCancel(context.Background())
	n.closing = append(n.closing, cancel)
	w := &keyWatcher{
		t: t, ctx: ctx, sent: make(chan *seqpb.KeyValues), done: make(chan error, 1),
		values: map[uint32]uint64{}, failed: map[uint32]*seqpb.Failure{},
	}
	req := &seqpb.WatchKeysRequest{Space: "uid"}
	for _, k := range keys {
		req.Uids = append(req.Uids, k.Hi)
	}
	go func() { w.done <- n.WatchKeys(req, w) }()
	return w
}

// take takes one message.
func (w *keyWatcher) take() *seqpb.KeyValues {
	w.t.Helper()
	select {
	case m := <-w.sent:
		w.taken++
		for i, idx := range m.Index {
			if m.Current[i] < w.values[idx] {
				w.t.Errorf("key %d went back from %d to %d", idx, w.values[idx], m.Current[i])
			}
			w.values[idx] = m.Current[i]
		}
		for _, f := range m.Failures {
			w.failed[f.Index] = f
		}
		w.missed += m.Missed
		return m
	case <-time.After(10 * time.Second):
		w.t.Fatal("nothing was sent for long")
		return nil
	}
}

// until takes messages until the condition holds.
func (w *keyWatcher) until(what string, ok func() bool) {
	w.t.Helper()
	for n := 0; !ok(); n++ {
		if n == 1000 {
			w.t.Fatalf("%s: values %v, failed %v", what, w.values, w.failed)
		}
		w.take()
	}
}

func TestAWatchedKeyComesOnceAndThenWhenItHasMoved(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		a.take(t, uid(1), 7)
		records := r.store.Record(uid(300))
		w := a.watch(t, uid(1), uid(300))
		w.until("first values", func() bool { return len(w.values) == 2 })
		if w.values[0] != 7 || w.values[1] != 0 {
			t.Errorf("first values %v", w.values)
		}
		if got := r.store.Record(uid(300)); got != records {
			t.Errorf("watching acquired a key: %+v", got)
		}
		a.take(t, uid(1), 5)
		if m := w.take(); len(m.Index) != 1 || w.values[0] != 12 {
			t.Errorf("news %+v", m)
		}
		a.take(t, uid(300), 2) // cold until now
		if m := w.take(); len(m.Index) != 1 || w.values[1] != 2 {
			t.Errorf("news %+v", m)
		}
		start := time.Now()
		if m := w.take(); len(m.Index) != 0 || time.Since(start) > 2*watchAlive {
			t.Errorf("no sign of life but %+v after %v", m, time.Since(start))
		}
	})
}

func TestASlowConsumerIsToldAndGetsTheNewest(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		w := a.watch(t, uid(1))
		w.until("first value", func() bool { return len(w.values) == 1 })
		for range 100 { // nobody takes
			start := time.Now()
			a.take(t, uid(1), 1)
			if time.Since(start) > 20*time.Millisecond {
				t.Fatal("a slow consumer holds up the owner")
			}
			time.Sleep(watchInterval)
		}
		before := w.taken
		w.until("newest", func() bool { return w.values[0] == 100 })
		if w.taken-before > 2 {
			t.Errorf("%d messages were kept for a slow consumer", w.taken-before)
		}
		if w.missed < 90 || w.missed > 110 {
			t.Errorf("told of %d missed, of about 100", w.missed)
		}
	})
}

func TestAMovedKeyLeavesWithAHintAndItsLastValueIsAtTheNewOwner(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b := two(r)
		keys := spread()
		for _, k := range keys {
			a.take(t, k, 3)
		}
		w := a.watch(t, keys...)
		w.until("first values", func() bool { return len(w.values) == len(keys) })
		a.take(t, keys[5], 4)
		r.store.Move("b1", keys[5].Section(8))
		w.until("the move", func() bool { return len(w.failed) == 1 })
		if f := w.failed[5]; f == nil || f.Code != seqpb.Code_CODE_NOT_OWNER || f.OwnerAddr != "b1:1" || f.Epoch != 2 {
			t.Errorf("hint %+v", f)
		}
		at := b.watch(t, keys[5])
		at.until("value at the new owner", func() bool { return len(at.values) == 1 })
		if at.values[0] != 7 {
			t.Errorf("the new owner says %d, want 7", at.values[0])
		}
		a.take(t, keys[4], 1) // the others are watched on
		w.until("another key", func() bool { return w.values[4] == 4 })
		r.store.Move("b1", allSections...)
		w.until("all", func() bool { return len(w.failed) == len(keys) })
		if err := <-w.done; err != nil {
			t.Errorf("a stream without keys ended with %v", err)
		}
		if n := a.Stats().Watched; n != 0 {
			t.Errorf("%d keys are still watched", n)
		}
	})
}

func TestWatchedKeysLeaveWithTheLease(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		a.take(t, uid(1), 1)
		w := a.watch(t, uid(1), uid(300))
		w.until("first values", func() bool { return len(w.values) == 2 })
		a.net.Cut(true)
		w.until("the end of the lease", func() bool { return len(w.failed) == 2 })
		if c := w.failed[0].Code; c != seqpb.Code_CODE_LEASE_EXPIRED {
			t.Errorf("left with %v", c)
		}
	})
}

func TestWatchedKeysAreBoundedInAllAndSlowDownBeforeThat(t *testing.T) {
	if watchPause(watchInterval, 1000) != watchInterval {
		t.Error("few keys stretch the interval")
	}
	if d := watchPause(watchInterval, 1<<20); d < time.Second || d > 2*time.Second {
		t.Errorf("a million keys are looked at every %v", d)
	}
	inRig(t, storetest.Config{}, func(r *rig) {
		a := r.boot("a1", func(c *Config) { c.MaxWatchedKeys = 3 })
		r.store.Assign("a1")
		settle()
		w := a.watch(t, uid(1), uid(2))
		w.until("first values", func() bool { return len(w.values) == 2 })
		if err := <-a.watch(t, uid(3), uid(4)).done; wire.CodeOf(err) != seqpb.Code_CODE_BUSY {
			t.Errorf("over the bound: %v", err)
		}
		one := a.watch(t, uid(3))
		one.until("within it", func() bool { return len(one.values) == 1 })
	})
}

func TestWatchRefusesWrongKeys(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		for _, req := range []*seqpb.WatchKeysRequest{
			{Space: "uid"}, {Space: "none", Uids: []uint64{1}}, {Space: "uid", Uids: []uint64{1 << 40}},
			{Space: "conv", Names: []string{""}}, {Space: "conv", Names: []string{"\xff"}}, {Space: "conv", Uids: []uint64{1}},
		} {
			if err := a.WatchKeys(req, &keyWatcher{ctx: context.Background()}); wire.CodeOf(err) != seqpb.Code_CODE_INVALID_ARGUMENT {
				t.Errorf("%+v: %v", req, err)
			}
		}
	})
}

// A range may leave for another Set, get numbers there, and be back before a
// subscription looks again: its consumer may be slow. The number that a key got
// there is told, though nothing of the key was ever held here.
func TestNumbersOfARangeThatLeftAndIsBackAreTold(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		held, cold, other := uid(1), uid(2), uid(5<<8)
		a.take(t, held, 57)
		w := a.watch(t, held, cold, other)
		w.until("first values", func() bool { return len(w.values) == 3 })
		a.take(t, other, 1)
		settle() // that is on its way to a consumer who does not take
		p := r.store.Freeze(leaving)
		settle()
		p.Seal()
		p.Commit(false)
		settle()
		var recs []state.KeyedRecord
		for _, k := range []ids.Key{held, cold} {
			rec := r.store.Export(k)
			rec.Key = k
			rec.Floor += 10
			rec.Bound = rec.Floor
			recs = append(recs, rec)
		}
		r.store.Back(leaving, false, recs...)
		settle()
		w.until("the held key's number", func() bool { return w.values[0] == 67 })
		w.until("the cold key's number", func() bool { return w.values[1] == 10 })
		if len(w.failed) != 0 {
			t.Errorf("this test wants the range to leave unseen: %v", w.failed)
		}
		a.wantNext(t, cold, 11)
		w.until("a number here", func() bool { return w.values[1] == 11 })
	})
}

// Watched keys that cannot be read at once neither leave nor hold up anybody, and
// reading many takes from the node and its store no more than reading few does.
func TestWatchedKeysAreReadInTurn(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		cold := make([]ids.Key, 2*watchReadKeys+1)
		for i := range cold {
			cold[i] = uid(uint64(i))
		}
		a.take(t, uid(7), 3)
		a.watchReads <- struct{}{} // another subscription has the turn
		ws := make([]*keyWatcher, 3)
		for i := range ws {
			ws[i] = a.watch(t, cold...)
			ws[i].until("what is held", func() bool { return ws[i].values[7] == 3 })
		}
		for range 5 {
			a.take(t, uid(7), 1)
			a.wantCurrent(t, uid(9), 0) // who asks by himself needs no turn
			for _, w := range ws {
				w.take()
			}
			time.Sleep(time.Second)
		}
		for _, w := range ws {
			if len(w.values) != 1 || len(w.failed) != 0 {
				t.Errorf("%d keys were read out of turn, %d left: %v", len(w.values)-1, len(w.failed), w.failed)
			}
		}
		// Of those that are unread the newest number comes all the same, and some move meanwhile.
		a.take(t, uid(8), 2)
		r.store.Move("b1", uid(256).Section(8))
		settle()
		<-a.watchReads
		moved := 0
		for _, k := range cold {
			if k.Section(8) == uid(256).Section(8) {
				moved++
			}
		}
		for _, w := range ws {
			w.until("all", func() bool { return len(w.values) == len(cold)-moved && len(w.failed) == moved })
			if w.values[7] != 8 || w.values[8] != 2 {
				t.Errorf("told %d and %d", w.values[7], w.values[8])
			}
		}
		a.take(t, uid(1), 4)
		for _, w := range ws {
			w.until("news", func() bool { return w.values[1] == 4 })
		}
	})
}

func TestUnreadWatchedKeysLeaveWithTheLease(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		a.take(t, uid(1), 1)
		a.watchReads <- struct{}{}
		w := a.watch(t, uid(1), uid(2), uid(300))
		w.until("what is held", func() bool { return len(w.values) == 1 })
		time.Sleep(2 * watchAlive) // two are unread
		a.net.Cut(true)
		w.until("the end of the lease", func() bool { return len(w.failed) == 3 })
		select {
		case err := <-w.done:
			if err != nil {
				t.Errorf("a stream without keys ended with %v", err)
			}
		case <-time.After(5 * time.Second):
			t.Error("a stream without keys goes on")
		}
	})
}
