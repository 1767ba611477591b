package allocsvr

import (
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/internal/ids"
)

func TestKeysOfALeavingRangeThatNobodyUsesAreHandedBackBefore(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		for i, k := range spread() {
			a.take(t, k, uint32(i+1))
		}
		r.store.Leave(leaving)
		used := spread()[0]
		for range 10 {
			time.Sleep(earlyLook / 4)
			a.take(t, used, 1)
		}
		settle()
		for i, k := range spread() {
			_, held := a.arena.Find(k)
			switch {
			case i == 0 || i >= 4:
				if !held {
					t.Errorf("%v is not held any more", k)
				}
			case held:
				t.Errorf("%v is still held", k)
			default:
				wantHandedBack(t, r, k, ids.Seq(i+1))
			}
		}
		for i, k := range spread()[1:] {
			a.wantNext(t, k, ids.Seq(i+3)) // also of those that are acquired again
		}
		a.wantNext(t, used, 12)
	})
}

func TestAFrozenRangeGoesBeforeOneThatLeaves(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a, _ := two(r)
		beside := uid(5 << ids.BlockShift)
		a.take(t, beside, 57)
		p := r.store.Freeze(leaving)
		settle()
		next := leaving
		next.Lo, next.Last = leaving.Last+1, leaving.Last+2<<ids.BlockShift
		r.store.Leave(next)
		settle()
		if _, held := a.arena.Find(beside); !held {
			t.Error("handed back while another range was frozen")
		}
		p.Thaw()
		settle()
		if _, held := a.arena.Find(beside); held {
			t.Error("not handed back once the other range had thawed")
		}
		wantHandedBack(t, r, beside, 57)
	})
}
