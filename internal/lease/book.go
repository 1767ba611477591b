package lease

import (
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Session is one incarnation of a session.
type Session struct {
	ID          ids.SessionID
	Incarnation ids.Incarnation
}

// Book is the leader's list of leases. It lives in memory and lasts for one
// leadership. It is not safe for concurrent use.
type Book struct {
	// Bugs is for fault-injection tests.
	Bugs Bugs

	ttl, margin time.Duration
	led         time.Duration
	deadlines   map[ids.SessionID]deadline
}

type deadline struct {
	incarnation ids.Incarnation
	// at never goes back while the incarnation stays.
	at time.Duration
}

// NewBook makes a book for leases of ttl; call Lead before anything else.
func NewBook(ttl, margin time.Duration) *Book {
	return &Book{ttl: ttl, margin: margin, deadlines: map[ids.SessionID]deadline{}}
}

// Lead starts a leadership: what an earlier one knew is forgotten.
func (b *Book) Lead(now time.Duration) {
	b.led = now
	clear(b.deadlines)
}

// Heard notes a sign of life (a registration, a resume or a heartbeat) received
// at now. That of an older incarnation than the last one heard renews nothing:
// then it answers false, and the heartbeat must not be acknowledged.
func (b *Book) Heard(id ids.SessionID, incarnation ids.Incarnation, now time.Duration) bool {
	d, ok := b.deadlines[id]
	if ok && incarnation < d.incarnation {
		return false
	}
	b.deadlines[id] = deadline{incarnation: incarnation, at: max(d.at, b.unheard(), now+b.ttl)}
	return true
}

// Forget drops a session that has ended.
func (b *Book) Forget(id ids.SessionID) { delete(b.deadlines, id) }

// Deadline is when the lease of a session runs out.
func (b *Book) Deadline(id ids.SessionID) time.Duration {
	if d, ok := b.deadlines[id]; ok {
		return d.at
	}
	return b.unheard()
}

// unheard is the deadline of those that this leader has not heard from: any
// lease that an earlier leader granted is over by then.
func (b *Book) unheard() time.Duration {
	if b.Bugs.SkipLeaderWait {
		return b.led
	}
	return b.led + b.ttl + b.margin
}

// Expired answers which of the live sessions have run out. It must see all of
// them, first right after Lead: a session that it meets there for the first time
// counts as heard from, so one that was registered without Heard is not expired
// at once, but one that was there before gets no more than its wait.
func (b *Book) Expired(now time.Duration, live []Session) []Session {
	var out []Session
	for _, s := range live {
		if d, ok := b.deadlines[s.ID]; !ok || d.incarnation < s.Incarnation {
			b.meet(s, now)
		}
		if now >= b.deadlines[s.ID].at {
			out = append(out, s)
		}
	}
	return out
}

func (b *Book) meet(s Session, now time.Duration) {
	if b.Bugs.SkipLeaderWait {
		b.deadlines[s.ID] = deadline{incarnation: s.Incarnation, at: max(b.deadlines[s.ID].at, b.led)}
		return
	}
	b.Heard(s.ID, s.Incarnation, now)
}

// Next is the earliest deadline of the live sessions, for a timer; false if there is none.
func (b *Book) Next(live []Session) (time.Duration, bool) {
	var next time.Duration
	for i, s := range live {
		if at := b.Deadline(s.ID); i == 0 || at < next {
			next = at
		}
	}
	return next, len(live) > 0
}
