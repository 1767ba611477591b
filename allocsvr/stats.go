package allocsvr

import (
	"sync/atomic"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// counters count since the start. None is touched by a call that is served warm.
type counters struct {
	raises, prefetches, coldWaits, coldLooks, busy, discontinuities, released atomic.Uint64
	// Keys handed back one by one: evicted since the start, and returning now.
	evicted   atomic.Uint64
	returning atomic.Int64
	// Windows of request ids: sent to a next owner, not sent for want of an answer, and taken over from a last one.
	windowsSent, windowsUnsent, windowsTaken atomic.Uint64
}

// Stats is what there is to know of a Server at a moment.
type Stats struct {
	Node    string
	Set     string
	Session ids.SessionID
	// Serving sections; Closing ones are being handed back.
	Serving, Closing int
	// Keys held, and the arena's bytes of its limit.
	Keys                   int64
	ArenaBytes, ArenaLimit int64
	// Allocated numbers since the session began; Rate a second, smoothed.
	Allocated uint64
	Rate      float64
	// Raises that a caller waited for, Prefetches that nobody did.
	Raises, Prefetches uint64
	// Steps of the raises that came about, by space.
	Steps []SpaceSteps
	// ColdWaits are requests that had to wait, Waiting those that do now.
	// ColdLooks at single keys they took, and Crowded are those that wait for room in the arena.
	ColdWaits, ColdLooks uint64
	Waiting, Crowded     int64
	// Watched keys, of all subscriptions.
	Watched int64
	// Busy are refusals for want of room in a queue.
	Busy uint64
	// Discontinuities declared to callers.
	Discontinuities uint64
	// Released sections.
	Released uint64
	// Evicted keys were handed back for being idle, or for want of room; those
	// Returning are on their way.
	Evicted   uint64
	Returning int64
	// Windows of request ids: WindowsSent along with released sections, WindowsUnsent
	// that could not be, WindowsTaken over with sections that came.
	WindowsSent, WindowsUnsent, WindowsTaken uint64
	// RequestIDs are remembered, of RequestIDsMax at most, in RequestIDBytes;
	// RequestIDsForgotten made room for others.
	RequestIDs, RequestIDsMax int
	RequestIDBytes            int64
	RequestIDsForgotten       uint64
	// Batches of operations sent and repeated, and operations queued now.
	Batches, BatchRetries uint64
	Queued                int
	LeaseRemaining        time.Duration
}

// Stats looks at everything once.
func (s *Server) Stats() Stats {
	q, a, win := s.queue.Stats(), s.arena.Stats(), s.window.Stats()
	st := Stats{
		Node: s.cfg.Node, Keys: a.Keys, ArenaBytes: a.Bytes, ArenaLimit: a.Limit,
		Raises: s.count.raises.Load(), Prefetches: s.count.prefetches.Load(), ColdWaits: s.count.coldWaits.Load(), ColdLooks: s.count.coldLooks.Load(), Crowded: s.line.crowded.Load(),
		Waiting: s.waiting.Load(), Watched: s.watched.Load(), Busy: s.count.busy.Load() + q.Refused, Discontinuities: s.count.discontinuities.Load(),
		Released: s.count.released.Load(), Evicted: s.count.evicted.Load(), Returning: s.count.returning.Load(), Batches: q.Batches, BatchRetries: q.Retries, Queued: q.Queued,
		LeaseRemaining: s.session.Remaining(), Rate: s.load.lastRate(),
		RequestIDs: win.Entries, RequestIDsMax: win.EntriesMax, RequestIDBytes: win.Bytes, RequestIDsForgotten: win.Forgotten,
		WindowsSent: s.count.windowsSent.Load(), WindowsUnsent: s.count.windowsUnsent.Load(), WindowsTaken: s.count.windowsTaken.Load(),
	}
	w := s.world.Load()
	if w == nil {
		return st
	}
	st.Set, st.Session, st.Steps = w.set, w.session, w.lookSteps()
	for i := range w.sections {
		sec := &w.sections[i]
		st.Allocated += w.taken.of(sec.no)
		switch ph, _ := sec.state(); ph {
		case serving:
			st.Serving++
		case closing:
			st.Closing++
		}
	}
	return st
}
