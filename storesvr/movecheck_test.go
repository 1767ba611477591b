package storesvr

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/disk"
)

func TestAMoveIsRefusedBeforeItStartsIfItsTargetCannotTakeIt(t *testing.T) {
	simulateSets(t, map[string]int{"s1": 1, "s2": 3}, nil, func(t *testing.T, w *realm) {
		a := w.owner("s1")
		defer a.crash()
		a.fill(60)
		leader := w.of["s2"].leader().cfg.ID
		follower := nodeID(0)
		if follower == leader {
			follower = nodeID(1)
		}
		const room = 60 * moveRoomPerKey
		older, full := func(r *seqpb.PartStateReply) { r.Version-- }, func(r *seqpb.PartStateReply) { r.FreeBytes = room - 1 }
		for name, tt := range map[string]struct {
			store  string
			answer func(*seqpb.PartStateReply)
			want   string
		}{
			"a leader of an older version":   {leader, older, `store ` + leader + ` of set "s2" speaks version 1 of moves, this one needs 2: upgrade it first`},
			"a follower of an older version": {follower, older, `store ` + follower + ` of set "s2" speaks version 1 of moves, this one needs 2: upgrade it first`},
			"a follower that cannot tell": {follower, func(r *seqpb.PartStateReply) {
				*r = seqpb.PartStateReply{Refusal: &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_NOT_LEADER}}
			}, `store ` + realmAddr("s2", follower) + ` of set "s2" speaks version 0 of moves`},
			"a full disk at the leader": {leader, full, `the disk of store ` + leader + ` of set "s2" has 0 MB free, and at least 60 keys need`},
			"a full disk at a follower": {follower, full, `the disk of store ` + follower + ` of set "s2" has 0 MB free, and at least 60 keys need`},
		} {
			w.onPartState(func(r *seqpb.PartStateReply) error {
				r.FreeBytes = room
				if r.Store == tt.store {
					tt.answer(r)
				}
				return nil
			})
			for _, dry := range []bool{true, false} {
				if text := w.tryMove(dry).GetRefusal().GetMessage(); !strings.Contains(text, tt.want) {
					t.Errorf("%s: %q", name, text)
				}
			}
		}
		w.onPartState(func(r *seqpb.PartStateReply) error { r.FreeBytes = room; return nil })
		if rep := w.tryMove(true); rep.GetMove().GetKeysTotal() != 60 {
			t.Errorf("what just fits: %v", rep)
		}
		// Whoever cannot be reached counts as one that is down: that is the quorum's question.
		w.onPartState(func(r *seqpb.PartStateReply) error {
			if r.Store == follower {
				return errors.New("no way there")
			}
			return nil
		})
		if rep := w.tryMove(true); rep.GetMove().GetKeysTotal() != 60 {
			t.Errorf("with one store out of reach: %v", rep)
		}
	})
}

func TestAMoveIntoTheDirectorysSetAsksItsStoresToo(t *testing.T) {
	simulateSets(t, map[string]int{"s1": 3, "s2": 1}, nil, func(t *testing.T, w *realm) {
		w.await(w.move("s1", "s2", uids(0, 599)), time.Minute, "done")
		leader := w.of["s1"].leader()
		w.onPartState(func(r *seqpb.PartStateReply) error {
			if r.Store != leader.cfg.ID {
				r.Version--
			}
			return nil
		})
		q := &seqpb.SetMoveRequest{From: "s2", To: "s1", DryRun: true}
		if rep, err := leader.SetMove(t.Context(), q); err != nil || !strings.Contains(rep.GetRefusal().GetMessage(), "of set \"s1\" speaks version 1") {
			t.Errorf("%v %v", rep, err)
		}
	})
}

func (w *realm) onPartState(f func(*seqpb.PartStateReply) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.partState = f
}

func (w *realm) tryMove(dry bool) *seqpb.SetMoveReply {
	w.t.Helper()
	rep, err := w.of["s1"].leader().SetMove(w.t.Context(), &seqpb.SetMoveRequest{From: "s1", To: "s2", Ranges: []*seqpb.Range{uids(0, 599)}, DryRun: dry})
	if err != nil {
		w.t.Fatal(err)
	}
	return rep
}

func TestTheRoomOfADiskIsKnown(t *testing.T) {
	if free, err := disk.Free(t.TempDir()); err != nil || free == 0 {
		t.Errorf("%d bytes free, %v", free, err)
	}
	if _, err := disk.Free(t.TempDir() + "/missing"); err == nil {
		t.Error("a directory that is not there has room")
	}
}
