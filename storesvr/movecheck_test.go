package storesvr

import (
	"strings"
	"testing"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/disk"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

func TestAMoveIsRefusedBeforeItStartsIfItsTargetCannotTakeIt(t *testing.T) {
	simulateSets(t, map[string]int{"s1": 1, "s2": 1}, nil, func(t *testing.T, w *realm) {
		a := w.owner("s1")
		defer a.crash()
		a.fill(60)
		for name, tt := range map[string]struct {
			answer func(*seqpb.PartStateReply)
			want   string
		}{
			"an older version":   {func(r *seqpb.PartStateReply) { r.Version = state.MovesVersion - 1 }, `set "s2" speaks version 1 of moves, this one needs 2: upgrade its storesvrs first`},
			"one that says none": {func(r *seqpb.PartStateReply) { r.Version = 0 }, "upgrade its storesvrs first"},
			"a full disk":        {func(r *seqpb.PartStateReply) { r.FreeBytes = 60*moveRoomPerKey - 1 }, `the disk of set "s2" has 0 MB free, and at least 60 keys need`},
		} {
			w.mu.Lock()
			w.partState = tt.answer
			w.mu.Unlock()
			for _, dry := range []bool{true, false} {
				rep, err := w.of["s1"].leader().SetMove(t.Context(), &seqpb.SetMoveRequest{From: "s1", To: "s2", Ranges: []*seqpb.Range{uids(0, 599)}, DryRun: dry})
				if err != nil || !strings.Contains(rep.GetRefusal().GetMessage(), tt.want) {
					t.Errorf("%s: %v %v", name, rep, err)
				}
			}
		}
		w.mu.Lock()
		w.partState = func(r *seqpb.PartStateReply) { r.FreeBytes = 60 * moveRoomPerKey }
		w.mu.Unlock()
		if rep, err := w.of["s1"].leader().SetMove(t.Context(), &seqpb.SetMoveRequest{From: "s1", To: "s2", Ranges: []*seqpb.Range{uids(0, 599)}, DryRun: true}); err != nil || rep.GetMove().GetKeysTotal() != 60 {
			t.Errorf("what just fits: %v %v", rep, err)
		}
	})
}

func TestTheRoomOfADiskIsKnown(t *testing.T) {
	if free, err := disk.Free(t.TempDir()); err != nil || free == 0 {
		t.Errorf("%d bytes free, %v", free, err)
	}
	if _, err := disk.Free(t.TempDir() + "/missing"); err == nil {
		t.Error("a directory that is not there has room")
	}
}
