package storesvr

import (
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// overdueBeats: a session that was not heard of for so many heartbeat intervals
// is silent. One heartbeat is lost or late then, not merely under way; and most
// of its lease (five intervals) is still to come, for which it would keep from
// being served what it is given if it is dead.
const overdueBeats = 2

// pulses is when a leader last heard of each session. Unlike the book of leases,
// which says when a session has certainly stopped, it says whether one is likely
// to be there. No other node knows it, so it goes into plans, never into the log.
// It is pure, and not safe for concurrent use.
type pulses struct {
	overdue time.Duration
	last    map[ids.SessionID]time.Duration
	// doubted is when another process of a session's node was last heard of.
	doubted map[ids.SessionID]time.Duration
}

func newPulses(heartbeat time.Duration) *pulses {
	return &pulses{overdue: overdueBeats * heartbeat, last: map[ids.SessionID]time.Duration{}, doubted: map[ids.SessionID]time.Duration{}}
}

func (p *pulses) heard(id ids.SessionID, at time.Duration) {
	p.last[id] = max(p.last[id], at)
}

// doubt notes that another process said Hello in the name of the session's node:
// the session's own is dead, most likely, and its machine has lost its arena. If
// it is not, its next heartbeat says so.
func (p *pulses) doubt(id ids.SessionID, at time.Duration) { p.doubted[id] = at }

func (p *pulses) forget(id ids.SessionID) {
	delete(p.last, id)
	delete(p.doubted, id)
}

// again is for a leader that was held up: what it has not read yet is no silence.
func (p *pulses) again(now time.Duration) {
	for id := range p.last {
		p.last[id] = now
	}
	clear(p.doubted)
}

func (p *pulses) silent(id ids.SessionID, now time.Duration) bool {
	doubted, other := p.doubted[id]
	return other && p.last[id] <= doubted || now >= p.silentAt(id)
}

// silentAt is when the session is silent if nothing more is heard of it.
func (p *pulses) silentAt(id ids.SessionID) time.Duration { return p.last[id] + p.overdue }
