package client

import (
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func TestDecide(t *testing.T) {
	const (
		notOwner    = seqpb.Code_CODE_NOT_OWNER
		stale       = seqpb.Code_CODE_STALE_EPOCH
		expired     = seqpb.Code_CODE_LEASE_EXPIRED
		busy        = seqpb.Code_CODE_BUSY
		notReady    = seqpb.Code_CODE_NOT_READY
		unknown     = seqpb.Code_CODE_UNKNOWN_RESULT
		unavailable = seqpb.Code_CODE_UNAVAILABLE
	)
	for _, c := range []struct {
		o       outcome
		want    step
		refresh bool
	}{
		{outcome{code: notOwner, elsewhere: true}, stepNow, false},
		{outcome{code: notOwner, elsewhere: true, redirects: redirectsMax - 1}, stepNow, false},
		{outcome{code: notOwner, elsewhere: true, redirects: redirectsMax}, stepWait, true},
		{outcome{code: notOwner}, stepWait, true},
		{outcome{code: stale}, stepWait, true},
		{outcome{code: expired}, stepWait, true},
		{outcome{code: expired, elsewhere: true}, stepNow, false},
		{outcome{code: unavailable}, stepWait, true},
		{outcome{code: unavailable, elsewhere: true}, stepNow, false},
		{outcome{code: busy, elsewhere: true}, stepWait, false},
		{outcome{code: notReady, elsewhere: true}, stepWait, false},
		{outcome{code: unknown}, stepFail, false},
		{outcome{code: unknown, elsewhere: true}, stepFail, false},
		{outcome{code: unknown, idempotent: true}, stepWait, true},
		{outcome{code: codeBounced, redirects: 99}, stepNow, false},
		{outcome{code: seqpb.Code_CODE_INVALID_ARGUMENT, idempotent: true, elsewhere: true}, stepFail, false},
		{outcome{code: seqpb.Code_CODE_EXHAUSTED, idempotent: true, elsewhere: true}, stepFail, false},
		{outcome{code: seqpb.Code_CODE_UNAUTHORIZED, idempotent: true, elsewhere: true}, stepFail, false},
		{outcome{code: 99, idempotent: true, elsewhere: true}, stepFail, false}, // of a newer server
	} {
		if got, refresh := decide(c.o); got != c.want || refresh != c.refresh {
			t.Errorf("%+v: %v, refresh %v, want %v, %v", c.o, got, refresh, c.want, c.refresh)
		}
	}
}

func TestDelayGrowsToItsBound(t *testing.T) {
	for code, b := range backoffs {
		last := time.Duration(0)
		for waits := range 100 {
			low, high := delay(code, waits, 0), delay(code, waits, 0.999)
			if low <= 0 || high > b.longest || low < last {
				t.Fatalf("%v wait %d: between %v and %v after %v", code, waits, low, high, last)
			}
			last = low
		}
		if got := delay(code, 99, 0.999); got < b.longest*9/10 {
			t.Errorf("%v never reaches its longest wait: %v", code, got)
		}
		if got := delay(code, 0, 0.999); got > b.first {
			t.Errorf("%v: the first wait is %v, over %v", code, got, b.first)
		}
	}
}
