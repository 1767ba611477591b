package lease

import (
	"math"
	"sync/atomic"
	"time"
)

// sentMax bounds the heartbeats that await an acknowledgement. Past it the
// oldest is forgotten: an acknowledgement that late would renew nothing.
const sentMax = 64

// Holder is the AllocSvr's side of one lease. Valid may be called by anyone at
// any time; everything else by one goroutine.
type Holder struct {
	// Bugs is for fault-injection tests; set before use.
	Bugs Bugs

	ttl, margin time.Duration
	// until is the deadline in nanoseconds; it only grows, but for Revoke.
	until atomic.Int64
	// sent has the heartbeats not acknowledged, by ascending number.
	sent []sending
	last uint64
}

type sending struct {
	number uint64
	at     time.Duration
}

// NewHolder makes a lease that is not valid yet.
func NewHolder(ttl, margin time.Duration) *Holder {
	h := &Holder{ttl: ttl, margin: margin, sent: make([]sending, 0, sentMax)}
	h.until.Store(math.MinInt64)
	return h
}

// Sent notes that heartbeat number is about to be sent; call it before the
// sending, never after. Numbers grow through the life of the Holder, also from
// one stream to the next; one that does not is ignored, since its
// acknowledgement could belong to an earlier sending.
func (h *Holder) Sent(number uint64, now time.Duration) {
	if number <= h.last {
		return
	}
	h.last = number
	if len(h.sent) == sentMax {
		h.sent = append(h.sent[:0], h.sent[1:]...)
	}
	h.sent = append(h.sent, sending{number, now})
}

// Acked renews the lease from the time at which heartbeat number was sent. An
// unknown number changes nothing. It answers the deadline.
func (h *Holder) Acked(number uint64) time.Duration {
	for i, s := range h.sent {
		if s.number == number {
			h.until.Store(max(h.until.Load(), int64(s.at+h.ttl-h.margin)))
			h.sent = append(h.sent[:0], h.sent[i+1:]...)
			break
		}
	}
	return h.Deadline()
}

// Valid: the session may serve at now.
func (h *Holder) Valid(now time.Duration) bool {
	return int64(now) < h.until.Load() || h.Bugs.IgnoreLease
}

// Deadline is when the lease ends; far in the past when there is none.
func (h *Holder) Deadline() time.Duration { return time.Duration(h.until.Load()) }

// Revoke ends the lease at once; heartbeats sent before it renew nothing.
func (h *Holder) Revoke() {
	h.until.Store(math.MinInt64)
	h.sent = h.sent[:0]
}
