package allocsvr

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// identified asks for one number, and tells since when the answerer remembers.
func (n *node) identified(t *testing.T, k ids.Key, id byte) (first uint64, replayed bool, since uint64) {
	t.Helper()
	rep, err := n.Alloc(context.Background(), &seqpb.AllocRequest{Space: "uid", Uids: []uint64{k.Hi}, RequestIds: [][]byte{rid(id)[:]}})
	if err != nil || len(rep.Failures) > 0 {
		t.Fatalf("%s: key %v: %+v, %v", n.name, k, rep, err)
	}
	return rep.First[0], len(rep.Replayed) > 0, rep.WindowSinceMs
}

// begun has a1 answer request 1 of every section's key, some time ago.
func begun(t *testing.T, r *rig) (a, b *node, since []uint64) {
	t.Helper()
	a, b = two(r)
	for _, k := range spread() {
		a.take(t, k, 10)
		first, _, s := a.identified(t, k, 1)
		if first != 11 {
			t.Fatal(first)
		}
		since = append(since, s)
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Second)
	return a, b, since
}

func wantRemembered(t *testing.T, n *node, since []uint64) {
	t.Helper()
	for i, k := range spread() {
		if first, replayed, s := n.identified(t, k, 1); first != 11 || !replayed || s != since[i] {
			t.Errorf("%s: key %v: %d, replayed %v, since %d; want 11, replayed, since %d", n.name, k, first, replayed, s, since[i])
		}
	}
}

func wantForgotten(t *testing.T, n *node, k ids.Key, moved uint64) {
	t.Helper()
	if first, replayed, since := n.identified(t, k, 1); replayed || first != 12 || since < moved {
		t.Errorf("%s: key %v: %d, replayed %v, since %d; want a new number, and since %d or later", n.name, k, first, replayed, since, moved)
	}
}

func TestRequestIDsTravelWithTheirSections(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b, since := begun(t, r)
		r.store.Move("b1", allSections...)
		settle()
		if n := r.peers.Calls(); n != 1 {
			t.Errorf("%d messages for 8 small windows", n)
		}
		wantRemembered(t, b, since)
		for _, k := range spread() {
			b.wantNext(t, k, 12)
		}
		r.store.Move("a1", allSections...)
		settle()
		wantRemembered(t, a, since)
		if st := b.Stats(); st.WindowsTaken != 8 || st.WindowsSent != 8 || st.WindowsUnsent != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestAStoppedNodeLeavesItsRequestIDsToTheOthers(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b, since := begun(t, r)
		if err := a.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		settle()
		wantRemembered(t, b, since)
	})
}

func TestAHoleIsDeclaredAgainByTheNextOwner(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a := r.boot("a1")
		r.store.Assign("a1")
		settle()
		a.take(t, uid(1), 57)
		a.Kill()
		r.store.Expire("a1")
		b, c := r.boot("b1"), r.boot("c1")
		r.store.Assign("b1")
		settle()
		want, err := b.AllocOne(context.Background(), uid(1), 2, rid(1))
		if err != nil || want.HoleTo != 100 {
			t.Fatal(want, err)
		}
		r.store.Move("c1", allSections...)
		settle()
		want.Replayed = true
		if again, err := c.AllocOne(context.Background(), uid(1), 2, rid(1)); err != nil || again != want {
			t.Errorf("again: %+v, %v; want %+v", again, err, want)
		}
	})
}

func TestSectionsWithoutRequestIDsSendNothing(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b := two(r)
		a.take(t, uid(1), 5)
		r.store.Move("b1", allSections...)
		settle()
		b.wantNext(t, uid(1), 6)
		if n := r.peers.Calls(); n != 0 {
			t.Errorf("%d messages", n)
		}
	})
}

func TestAWindowThatDoesNotArriveWholeIsNotUsed(t *testing.T) {
	for name, hook := range map[string]func(*seqpb.TakeWindowRequest) bool{
		"lost":            func(*seqpb.TakeWindowRequest) bool { return false },
		"one part of two": func(q *seqpb.TakeWindowRequest) bool { return halve(q) },
		"changed":         func(q *seqpb.TakeWindowRequest) bool { q.Parts[0].Window[20] ^= 1; return true },
		"another section": func(q *seqpb.TakeWindowRequest) bool { q.Parts[0].Section ^= 1; return true },
		"another cluster": func(q *seqpb.TakeWindowRequest) bool { q.ClusterId = "other"; return true },
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, storetest.Config{}, func(r *rig) {
				_, b, _ := begun(t, r)
				r.peers.Hook(hook)
				moved := uint64(time.Now().UnixMilli())
				r.store.Move("b1", 0)
				time.Sleep(2700 * time.Millisecond)
				if node, _ := r.store.Owner(0); node != "b1" {
					t.Fatalf("the section is %q's", node)
				}
				wantForgotten(t, b, spread()[0], moved)
			})
		})
	}
}

// A next owner that does not answer holds a section up for as long as the loss of
// its machine would, and others after it not at all.
func TestANextOwnerThatDoesNotAnswerHoldsNothingUp(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		_, b, _ := begun(t, r)
		r.peers.SetDelay(time.Hour)
		moved := uint64(time.Now().UnixMilli())
		r.store.Move("b1", 0)
		time.Sleep(2520 * time.Millisecond)
		// It is left alone for a while: this one does not wait again.
		r.store.Move("b1", 1)
		time.Sleep(20 * time.Millisecond)
		// Then it is tried for a shorter time.
		time.Sleep(time.Second)
		r.store.Move("b1", 2)
		time.Sleep(220 * time.Millisecond)
		for no := range ids.Section(3) {
			if node, _ := r.store.Owner(no); node != "b1" {
				t.Errorf("section %d is %q's", no, node)
			}
			wantForgotten(t, b, spread()[no], moved)
		}
		// It answers again, and what comes after its rest is not lost.
		r.peers.SetDelay(time.Millisecond)
		time.Sleep(2 * time.Second)
		r.store.Move("b1", 3)
		settle()
		if first, replayed, _ := b.identified(t, spread()[3], 1); first != 11 || !replayed {
			t.Errorf("%d, replayed %v", first, replayed)
		}
	})
}

// A next owner may be slow, or stand still for a moment: the windows survive.
func TestRequestIDsWaitForASlowNextOwner(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		_, b, since := begun(t, r)
		r.peers.SetDelay(2400 * time.Millisecond)
		r.store.Move("b1", allSections...)
		time.Sleep(2500 * time.Millisecond)
		wantRemembered(t, b, since)
	})
}

// The plan changes while windows are on their way to a node that does not answer:
// they go with their sections all the same.
func TestRequestIDsGoWhereTheirSectionsGoInTheEnd(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b, since := begun(t, r)
		c := r.boot("c1")
		r.peers.Listen("b1:1", nil)
		r.store.Move("b1", allSections...)
		time.Sleep(500 * time.Millisecond)
		if node, _ := r.store.Owner(0); node != "a1" {
			t.Fatalf("released to %q without its window", node)
		}
		r.store.Move("c1", allSections...)
		settle()
		wantRemembered(t, c, since)
		if st := a.Stats(); st.WindowsSent != 8 || st.WindowsUnsent != 0 || b.world.Load().stage.Bytes() != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// If none of those that are planned one after the other answers, the section goes on without.
func TestNextOwnersThatDoNotAnswerHoldNothingUpForLong(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		_, b, _ := begun(t, r)
		r.boot("c1")
		r.peers.SetDelay(time.Hour)
		moved := uint64(time.Now().UnixMilli())
		r.store.Move("b1", 0)
		time.Sleep(2400 * time.Millisecond)
		r.store.Move("c1", 0)
		time.Sleep(500 * time.Millisecond)
		r.store.Move("b1", 0) // once too often to turn
		time.Sleep(520 * time.Millisecond)
		if node, _ := r.store.Owner(0); node != "b1" {
			t.Fatalf("the section is %q's", node)
		}
		wantForgotten(t, b, spread()[0], moved)
	})
}

func TestAWindowIsForItsEpochAtItsTargetOnly(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b, _ := begun(t, r)
		c := r.boot("c1")
		// The release is held back, and the plan changes under it.
		a.net.SetDelay(30 * time.Millisecond)
		r.store.Move("b1", 0)
		time.Sleep(45 * time.Millisecond)
		if b.world.Load().stage.Bytes() == 0 {
			t.Fatal("nothing was sent to b1")
		}
		moved := uint64(time.Now().UnixMilli())
		r.store.Move("c1", 0)
		time.Sleep(400 * time.Millisecond)
		wantForgotten(t, c, spread()[0], moved)
		c.take(t, spread()[0], 1)
		r.peers.Listen("b1:1", nil)
		r.store.Move("b1", 0)
		time.Sleep(2700 * time.Millisecond)
		if first, replayed, since := b.identified(t, spread()[0], 1); replayed || first != 14 || since < moved {
			t.Errorf("b1 used what was sent for an earlier epoch: %d, %v, %d", first, replayed, since)
		}
	})
}

func TestASourceThatDiesInBetweenSendsItAllAgain(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, b, since := begun(t, r)
		a.net.SetDelay(30 * time.Millisecond)
		r.store.Move("b1", allSections...)
		time.Sleep(45 * time.Millisecond)
		a.Kill()
		r.boot("a1")
		time.Sleep(300 * time.Millisecond)
		wantRemembered(t, b, since)
		if n := r.peers.Calls(); n < 2 {
			t.Errorf("%d messages", n)
		}
	})
}

// Whoever sends it, a window comes only from a session to this one.
func TestTakeWindowRefusesWhatIsNotForIt(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		_, b, _ := begun(t, r)
		seen := make(chan *seqpb.TakeWindowRequest, 8)
		r.peers.Hook(func(q *seqpb.TakeWindowRequest) bool { seen <- q; return true })
		r.store.Move("b1", 3)
		sent := <-seen
		settle()
		for want, change := range map[seqpb.RefusalCode]func(q *seqpb.TakeWindowRequest){
			seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER:   func(q *seqpb.TakeWindowRequest) { q.ClusterId = "other" },
			seqpb.RefusalCode_REFUSAL_SESSION_EXPIRED: func(q *seqpb.TakeWindowRequest) { q.ToSession += 7 },
			seqpb.RefusalCode_REFUSAL_INVALID:         func(q *seqpb.TakeWindowRequest) { q.FromSession = 0 },
		} {
			q := *sent
			change(&q)
			if rep, err := b.TakeWindow(context.Background(), &q); err != nil || rep.GetRefusal().GetCode() != want {
				t.Errorf("got %+v, %v; want %v", rep, err, want)
			}
		}
		// A late copy of what was used is harmless, and is not kept.
		if rep, err := b.TakeWindow(context.Background(), sent); err != nil || rep.Refusal != nil || b.world.Load().stage.Bytes() != 0 {
			t.Errorf("%+v, %v", rep, err)
		}
	})
}

// halve leaves the first half of what was sent.
func halve(q *seqpb.TakeWindowRequest) bool {
	q.Parts = slices.Clone(q.Parts[:len(q.Parts)/2])
	return true
}
