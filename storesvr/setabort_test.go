package storesvr

import (
	"strings"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

func (w *realm) abort(id uint64, lost bool) *seqpb.SetMoveReply {
	w.t.Helper()
	rep, err := w.of["s1"].leader().SetAbort(w.t.Context(), &seqpb.SetAbortRequest{Id: id, TargetLost: lost})
	if err != nil {
		w.t.Fatal(err)
	}
	return rep
}

// down makes a Set unreachable, or reachable again.
func (w *realm) setDown(set string, down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down[set] = down
}

func TestAMoveToALostSetEndsWhenItIsGivenUpAndTheSetServesNothingWhenItComesBack(t *testing.T) {
	simulateSets(t, map[string]int{"s1": 3, "s2": 1}, nil, func(t *testing.T, w *realm) {
		a := w.owner("s1")
		defer a.crash()
		a.fill(60)
		// The move waits there, so that it does not go on while its target is asked for.
		reached, goOn := make(chan struct{}), make(chan struct{})
		cut := w.atNth("Freeze", 2, func() {
			close(reached)
			<-goOn
			w.setDown("s2", true)
		})
		id := w.move("s1", "s2", uids(0, 599))
		<-reached
		if rep := w.abort(id, true); !strings.Contains(rep.GetRefusal().GetMessage(), "is not lost") {
			t.Errorf("a set that answers was given up: %v", rep)
		}
		close(goOn)
		eventually(t, 10*time.Second, "the loss", cut.Load)
		if rep := w.abort(id, false); rep.Refusal != nil {
			t.Fatal(rep)
		}
		time.Sleep(20 * time.Second)
		if m := w.status(id); m.State != "aborting" {
			t.Fatalf("without the word of its target: %+v", m)
		}
		if rep := w.abort(id, true); rep.Refusal != nil || rep.Move.State != "aborted" {
			t.Fatal(rep)
		}
		if m := w.status(id); m.KeysTotal != 0 || m.EtaSeconds != 0 {
			t.Errorf("of a move that was aborted it is said how many keys and how long it has to go: %+v", m)
		}
		moved := w.status(id).Keys
		if moved == 0 || moved >= 60 {
			t.Fatalf("%d keys have moved", moved)
		}
		// All that was not committed is served on by the source, and by nobody else for ever.
		for i := range uint64(60) {
			want := "s1"
			if i < moved {
				want = "s2"
			}
			if got := w.owning(uid(i * 10)); len(got) != 1 || got[0] != want {
				t.Fatalf("key %d owned by %v", i*10, got)
			}
		}
		n := w.of["s2"].leader()
		if in := metaOf(t, n).In[1]; in == nil || in.Phase != state.InImporting {
			t.Fatalf("the target is not in the middle of its part: %+v", in)
		}
		w.setDown("s2", false)
		eventually(t, 10*time.Second, "the target lets go", func() bool {
			in := metaOf(t, n).In[1]
			return in == nil || in.Phase == state.InDiscarded
		})
		if got := w.owning(uid(590)); len(got) != 1 || got[0] != "s1" {
			t.Errorf("owned by %v", got)
		}
		m := w.await(w.move("s1", "s2", uids(moved*10, 599)), time.Minute, "done")
		if m.Keys != 60-moved {
			t.Errorf("%+v", m)
		}
	})
}

func TestATargetThatWasGivenUpLetsGoEvenWhenItsMoveIsForgotten(t *testing.T) {
	simulateSets(t, map[string]int{"s1": 3, "s2": 1, "s3": 1}, nil, func(t *testing.T, w *realm) {
		a := w.owner("s1")
		defer a.crash()
		a.fill(60)
		cut := w.atNth("Freeze", 2, func() { w.setDown("s2", true) })
		id := w.move("s1", "s2", uids(0, 599))
		eventually(t, 10*time.Second, "the loss", cut.Load)
		if rep := w.abort(id, true); rep.Refusal != nil || rep.Move.State != "aborted" {
			t.Fatal(rep)
		}
		moved := w.status(id).Keys
		// As many others that the directory has none of it left.
		for i := range sets.EndedMax {
			way := [][2]string{{"s1", "s3"}, {"s3", "s1"}}[i%2]
			w.await(w.move(way[0], way[1], uids(1000, 1099)), time.Minute, "done")
		}
		if rep, err := w.of["s1"].leader().SetMoves(t.Context(), &seqpb.SetMovesRequest{Id: id}); err != nil || rep.Refusal == nil {
			t.Fatalf("the move is remembered: %v, %v", rep, err)
		}
		n := w.of["s2"].leader()
		if in := metaOf(t, n).In[1]; in == nil || in.Phase != state.InImporting {
			t.Fatalf("the target is not in the middle of its part: %+v", in)
		}
		w.setDown("s2", false)
		eventually(t, 30*time.Second, "the target lets go, and forgets the move", func() bool {
			m := metaOf(t, n)
			return m.In[1] == nil && m.MovesEnded >= 1
		})
		if got := w.owning(uid(590)); len(got) != 1 || got[0] != "s1" {
			t.Errorf("owned by %v", got)
		}
		if m := w.await(w.move("s1", "s2", uids(moved*10, 599)), time.Minute, "done"); m.Keys != 60-moved {
			t.Errorf("%+v", m)
		}
	})
}

func TestALostSetIsNotGivenUpWithWhatItHasBeenGiven(t *testing.T) {
	simulateSets(t, map[string]int{"s1": 3, "s2": 1}, nil, func(t *testing.T, w *realm) {
		a := w.owner("s1")
		defer a.crash()
		a.fill(20)
		cut := w.atNth("Activate", 1, func() { w.setDown("s2", true) })
		id := w.move("s1", "s2", uids(0, 599))
		eventually(t, 10*time.Second, "the loss", cut.Load)
		time.Sleep(10 * time.Second)
		if rep := w.abort(id, true); !strings.Contains(rep.GetRefusal().GetMessage(), "restore it from a backup") {
			t.Errorf("a committed part was given up: %v", rep)
		}
		w.setDown("s2", false)
		if m := w.await(id, time.Minute, "done"); m.Keys != 20 {
			t.Errorf("%+v", m)
		}
	})
}
