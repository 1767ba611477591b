package client

import (
	"time"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// codeBounced is the client's own: the op was taken back from a queue before it was sent.
const codeBounced seqpb.Code = -1

const (
	// redirectsMax is how many redirects are followed without back-off.
	redirectsMax = 3
	// deniedMax is how many times a key may be denied before the client doubts
	// that versions only grow, and fetches a table to replace its own.
	deniedMax = 8
)

// outcome is what decide looks at.
type outcome struct {
	code seqpb.Code
	// idempotent: doing it twice is harmless (a read, or a request id).
	idempotent bool
	// elsewhere: another node than the one that answered is now known to be the owner.
	elsewhere bool
	// redirects followed since the last back-off.
	redirects int
}

type step uint8

const (
	stepFail step = iota
	// stepNow: again at once.
	stepNow
	// stepWait: again after a back-off.
	stepWait
)

// decide is the whole retry policy: what to do after an attempt that did not
// succeed, and whether the routes are to be doubted.
func decide(o outcome) (s step, refresh bool) {
	switch o.code {
	case codeBounced:
		return stepNow, false
	case seqpb.Code_CODE_NOT_OWNER, seqpb.Code_CODE_STALE_EPOCH, seqpb.Code_CODE_LEASE_EXPIRED, seqpb.Code_CODE_UNAVAILABLE:
		if o.elsewhere && o.redirects < redirectsMax {
			return stepNow, false
		}
		return stepWait, true
	case seqpb.Code_CODE_BUSY, seqpb.Code_CODE_NOT_READY:
		return stepWait, false
	case seqpb.Code_CODE_UNKNOWN_RESULT:
		if o.idempotent {
			return stepWait, true
		}
	}
	return stepFail, false
}

// backoff is how long to wait before an attempt, by what the last one failed
// with: it doubles from the first to the longest wait. A node that is not there
// is tried often: one that was killed is back after about 200 ms, and what is
// waited longer than that is added to it.
type backoff struct{ first, longest time.Duration }

var backoffs = map[seqpb.Code]backoff{
	seqpb.Code_CODE_NOT_OWNER:      {2 * time.Millisecond, 100 * time.Millisecond},
	seqpb.Code_CODE_STALE_EPOCH:    {2 * time.Millisecond, 100 * time.Millisecond},
	seqpb.Code_CODE_LEASE_EXPIRED:  {5 * time.Millisecond, 100 * time.Millisecond},
	seqpb.Code_CODE_BUSY:           {5 * time.Millisecond, 250 * time.Millisecond},
	seqpb.Code_CODE_NOT_READY:      {5 * time.Millisecond, 100 * time.Millisecond},
	seqpb.Code_CODE_UNKNOWN_RESULT: {5 * time.Millisecond, 50 * time.Millisecond},
	seqpb.Code_CODE_UNAVAILABLE:    {5 * time.Millisecond, 50 * time.Millisecond},
}

// delay is the wait after the waits-th back-off in a row, with jitter in [0, 1):
// between half and the whole of the doubling time, so that callers spread.
func delay(code seqpb.Code, waits int, jitter float64) time.Duration {
	b := backoffs[code]
	d := b.longest
	if waits < 16 && b.first<<waits < b.longest {
		d = b.first << waits
	}
	return d/2 + time.Duration(jitter*float64(d/2))
}

// waitsForRoutes tells whether a change of the routes may end the trouble, so
// that a back-off is cut short by one.
func waitsForRoutes(code seqpb.Code) bool { return code != seqpb.Code_CODE_BUSY }
