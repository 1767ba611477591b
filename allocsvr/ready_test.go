package allocsvr

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
)

func TestWhatIsReadyIsAnsweredAndWhatWouldWaitIsLeft(t *testing.T) {
	s := warmServer(t, 1)
	asks := []Ask{{Key: uid(0), N: 2}, {Key: uid(7), N: 1}, {Key: uid(0), N: 1}, {Key: uid(0), N: 0}, {Key: uid(7), N: 5}}
	if n := s.AllocReady(asks); n != 2 {
		t.Errorf("%d would wait", n)
	}
	for i, want := range []ids.Seq{2, 0, 4, 0, 0} {
		a := asks[i]
		if late := i == 1 || i == 4; a.First != want || errors.Is(a.Err, ErrWouldWait) != late || (a.Err != nil) != (want == 0) {
			t.Errorf("ask %d: %+v", i, a)
		}
	}
	late := []Ask{asks[1], asks[4]}
	s.AllocEach(context.Background(), late, time.Second)
	if late[0].First != 1 || late[1].First != 2 || late[0].Err != nil || late[1].Err != nil {
		t.Errorf("in the end: %+v", late)
	}
	reads := []Read{{Key: uid(0)}, {Key: uid(8)}, {Key: uid(7)}}
	if n := s.CurrentReady(reads); n != 1 || reads[0].Value != 4 || !errors.Is(reads[1].Err, ErrWouldWait) || reads[2].Value != 6 {
		t.Errorf("%d would wait: %+v", n, reads)
	}
	bad := []Read{{Key: uid(0)}, {Key: ids.Key{Space: 99}}}
	if s.CurrentReady(bad); bad[0].Err == nil || bad[1].Err == nil {
		t.Errorf("a space that does not exist: %+v", bad)
	}
}

// A key that is asked for twice gets its numbers in the order of the asks, however
// many keys have to wait.
func TestManyColdKeysOfOneRequestKeepTheirOrder(t *testing.T) {
	s := warmServer(t, 1)
	const keys = 3 * behindScanned
	var asks []Ask
	for range 3 {
		for k := range keys {
			asks = append(asks, Ask{Key: uid(uint64(1000 + k)), N: 1})
		}
	}
	if n := s.AllocReady(asks); n != len(asks) {
		t.Fatalf("%d of %d would wait", n, len(asks))
	}
	s.AllocEach(context.Background(), asks, 5*time.Second)
	for i := range asks {
		if want := ids.Seq(i/keys + 1); asks[i].Err != nil || asks[i].First != want {
			t.Fatalf("ask %d: %+v, want %d", i, asks[i], want)
		}
	}
}

func TestWhatIsReadyAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has pools forget what they were given")
	}
	s := warmServer(t, 64)
	asks, reads := make([]Ask, 64), make([]Read, 64)
	for i := range asks {
		asks[i], reads[i] = Ask{Key: uid(uint64(i)), N: 1}, Read{Key: uid(uint64(i))}
	}
	if n := testing.AllocsPerRun(1000, func() {
		if s.AllocReady(asks) != 0 || s.CurrentReady(reads) != 0 {
			t.Fatal("not ready")
		}
	}); n != 0 {
		t.Fatalf("%v allocations a call", n)
	}
}
