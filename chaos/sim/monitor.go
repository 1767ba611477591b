package sim

import (
	"fmt"
	"slices"
	"sort"
	"sync"

	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// monitor watches every reply that leaves an AllocSvr, also those that the
// network then loses: a number that was issued twice is a violation whether or
// not a client came to see it.
type monitor struct {
	mu     sync.Mutex
	issued map[string][]span
	found  []string
	events *ring
	// failed is closed at the first violation.
	failed chan struct{}
	// ghosts is the log of what was issued without any client asking for it:
	// by duplicated requests, and by attempts whose reply was lost and which the
	// SDK repeated under the same request id.
	ghosts *history.Log
	// repeatable answers are settled at the end, when it is known which of them
	// their callers took, and answered ones when it is known what they were told.
	repeatable []repeatable
	answered   []issue
	stamp      func() int64
}

// repeatable is what one attempt of a request with an id was given.
type repeatable struct {
	ghost  int
	key    string
	id     history.RequestID
	answer history.Op
}

// span is first..last of one issue, by whom.
type span struct {
	first, last uint64
	by          string
}

func newMonitor(events *ring, rec *history.Recorder) *monitor {
	return &monitor{issued: map[string][]span{}, events: events, failed: make(chan struct{}), ghosts: rec.Client(), stamp: rec.Stamp}
}

// arrived follows an Alloc through its server; everything else is not looked at.
func (m *monitor) arrived(srv *process, msg *Message) answerer {
	req, ok := msg.Body.(*seqpb.AllocRequest)
	if !ok {
		return nil
	}
	f := &following{m: m, by: srv.host, req: req, copied: msg.Copy}
	for i := range max(len(req.Uids), len(req.Names)) {
		repeatable := i < len(req.RequestIds) && len(req.RequestIds[i]) > 0
		if !msg.Copy && !repeatable {
			continue // the client's own record covers it
		}
		id := m.ghosts.Call(history.Op{Kind: history.Alloc, Key: keyText(req, i), N: count(req, i)})
		// Unless it comes to more: it may have taken numbers, and nobody waited for it.
		m.ghosts.Return(id, history.Op{Outcome: history.Unknown, Err: "canceled"})
		f.ghosts = append(f.ghosts, ghost{id: id, index: i, repeatable: repeatable})
	}
	return f
}

// following is one Alloc request at its server.
type following struct {
	m      *monitor
	by     string
	req    *seqpb.AllocRequest
	copied bool
	ghosts []ghost
}

// ghost is a key of the request that may take numbers nobody will know of.
type ghost struct {
	id, index  int
	repeatable bool
}

func (f *following) leaves(reply *Message) {
	rep := reply.Body.(*seqpb.AllocReply)
	f.m.alloc(f.by, f.req, rep)
	if !f.copied {
		f.m.answers(issuesOf(f.by, f.m.stamp(), f.req, rep))
	}
	idle := idleKeys(rep)
	for _, g := range f.ghosts {
		if idle[uint32(g.index)] {
			f.m.ghosts.Return(g.id, unasked)
			continue
		}
		a := history.Op{Outcome: history.OK, First: int64(rep.First[g.index]), Count: count(f.req, g.index)}
		for _, d := range rep.Discontinuities {
			if int(d.Index) == g.index {
				a.HoleFrom, a.HoleTo = int64(d.From), int64(d.To)
			}
		}
		if !g.repeatable {
			f.m.ghosts.Return(g.id, a)
			continue
		}
		r := repeatable{ghost: g.id, key: keyText(f.req, g.index), answer: a}
		copy(r.id[:], f.req.RequestIds[g.index])
		f.m.mu.Lock()
		f.m.repeatable = append(f.m.repeatable, r)
		f.m.mu.Unlock()
	}
}

// unasked is a ghost that turned out to be none.
var unasked = history.Op{Outcome: history.Failed, Err: "canceled"}

func (m *monitor) answers(issues []issue) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answered = append(m.answered, issues...)
}

// settle looks whether callers were told the truth, and decides which answers to
// requests with an id are ghosts: those that no caller took, since it had given that
// attempt up and repeated it elsewhere.
func (m *monitor) settle(h *history.History) {
	clients := *h
	clients.Ops = slices.DeleteFunc(slices.Clone(h.Ops), func(o history.Op) bool { return o.Client == m.ghosts.Number() })
	for _, x := range untold(m.answered, &clients) {
		m.violation("told that nothing was allocated: %s gave %d..%d of %s to a call that was told so, or was given others", x.by, x.first, x.first+int64(x.n)-1, x.key)
	}
	type taken struct {
		key   string
		id    history.RequestID
		first int64
	}
	all := map[taken]bool{}
	for i := range h.Ops {
		if o := &h.Ops[i]; o.Outcome == history.OK && !o.Request.IsZero() {
			all[taken{o.Key, o.Request, o.First}] = true
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.repeatable {
		if t := (taken{r.key, r.id, r.answer.First}); all[t] {
			m.ghosts.Return(r.ghost, unasked)
		} else {
			m.ghosts.Return(r.ghost, r.answer)
		}
	}
}

// idleKeys are those for which a reply issued nothing.
func idleKeys(rep *seqpb.AllocReply) map[uint32]bool {
	if len(rep.Failures) == 0 && len(rep.Replayed) == 0 {
		return nil
	}
	idle := map[uint32]bool{}
	for _, f := range rep.Failures {
		idle[f.Index] = true
	}
	for _, i := range rep.Replayed {
		idle[i] = true
	}
	return idle
}

func count(req *seqpb.AllocRequest, i int) uint32 {
	if len(req.Counts) > 0 {
		return req.Counts[i]
	}
	return 1
}

func (m *monitor) violation(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.violationLocked(format, args...)
}

func (m *monitor) violationLocked(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	m.events.add("VIOLATION   %s", s)
	if len(m.found) == 0 {
		close(m.failed)
	}
	if len(m.found) < 20 {
		m.found = append(m.found, s)
	}
}

func (m *monitor) violations() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.found
}

// alloc records what one reply issued.
func (m *monitor) alloc(by string, req *seqpb.AllocRequest, rep *seqpb.AllocReply) {
	idle := idleKeys(rep)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, first := range rep.First {
		if idle[uint32(i)] {
			continue
		}
		key := keyText(req, i)
		if first == 0 {
			m.violationLocked("%s answered number 0 for %s without a failure", by, key)
			continue
		}
		m.issue(key, span{first, first + uint64(count(req, i)) - 1, by})
	}
}

func keyText(req *seqpb.AllocRequest, i int) string {
	if len(req.Uids) > 0 {
		return fmt.Sprintf("%s/%d", req.Space, req.Uids[i])
	}
	return req.Space + "/" + req.Names[i]
}

// issue keeps a key's spans sorted; they come nearly in order.
func (m *monitor) issue(key string, s span) {
	spans := m.issued[key]
	at := sort.Search(len(spans), func(i int) bool { return spans[i].first > s.first })
	if at > 0 && spans[at-1].last >= s.first {
		m.violationLocked("duplicate: %s issued %d..%d of %s, %s had issued %d..%d",
			s.by, s.first, s.last, key, spans[at-1].by, spans[at-1].first, spans[at-1].last)
	}
	if at < len(spans) && spans[at].first <= s.last {
		m.violationLocked("duplicate: %s issued %d..%d of %s, %s had issued %d..%d",
			s.by, s.first, s.last, key, spans[at].by, spans[at].first, spans[at].last)
	}
	spans = append(spans, span{})
	copy(spans[at+1:], spans[at:])
	spans[at] = s
	m.issued[key] = spans
}
