package allocsvr

import (
	"context"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/storetest"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// A killed process is started again with callers at its port: each gets its
// number as soon as the session is resumed, none is told to come again.
func TestCallersOfAStartingProcessAreServedWhenItIsReady(t *testing.T) {
	inRig(t, storetest.Config{Auto: true}, func(r *rig) {
		a := r.boot("a")
		a.wantNext(t, uid(7), 1)
		a.Kill()
		a.net.SetDelay(20 * time.Millisecond) // so that resuming takes a while

		s, err := Start(a.cfg)
		if err != nil {
			t.Fatal(err)
		}
		a.Server = s
		begin := time.Now()
		rep, err := s.Alloc(context.Background(), &seqpb.AllocRequest{Space: "uid", Uids: []uint64{7}, TimeoutMs: 300})
		if err != nil || len(rep.Failures) > 0 || rep.First[0] != 2 {
			t.Fatalf("%+v, %v", rep, err)
		}
		ready := time.Since(begin)
		if err := s.Ready(); err != nil || ready == 0 {
			t.Errorf("served after %v, though: %v", ready, err)
		}
		if got, err := s.CurrentOne(context.Background(), uid(7)); got != 2 || err != nil {
			t.Errorf("current is %d, %v", got, err)
		}
	})
}

// A node that finds no leader keeps its callers at the door no longer than they
// have time, and after doorWait not at all.
func TestTheDoorDoesNotHoldCallersForLong(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a := r.boot("a")
		a.Kill()
		a.net.Cut(true)
		s, err := Start(a.cfg)
		if err != nil {
			t.Fatal(err)
		}
		a.Server = s
		ask := func(ms uint32) time.Duration {
			begin := time.Now()
			_, err := s.Alloc(context.Background(), &seqpb.AllocRequest{Space: "uid", Uids: []uint64{7}, TimeoutMs: ms})
			if err == nil {
				t.Error("served without a session")
			}
			return time.Since(begin)
		}
		if took := ask(100); took != 90*time.Millisecond {
			t.Errorf("a caller with 100 ms was kept for %v", took)
		}
		if took := ask(60_000); took != doorWait-90*time.Millisecond {
			t.Errorf("a caller with a minute was kept for %v", took)
		}
		if took := ask(60_000); took != 0 {
			t.Errorf("a caller after the start was kept for %v", took)
		}
	})
}

// Who waits at the door is let go when the process ends.
func TestKillLetsCallersAtTheDoorGo(t *testing.T) {
	inRig(t, storetest.Config{}, func(r *rig) {
		a := r.boot("a")
		a.Kill()
		a.net.Cut(true)
		s, err := Start(a.cfg)
		if err != nil {
			t.Fatal(err)
		}
		a.Server = s
		done := make(chan error)
		begin := time.Now()
		go func() {
			_, err := s.CurrentOne(context.Background(), uid(7))
			done <- err
		}()
		time.Sleep(10 * time.Millisecond)
		s.Kill()
		if err := <-done; err == nil || time.Since(begin) != 10*time.Millisecond {
			t.Errorf("let go after %v: %v", time.Since(begin), err)
		}
	})
}
