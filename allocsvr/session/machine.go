package session

import (
	"fmt"
	"slices"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/lease"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// Protocol is the version of the session protocol that Hello announces.
const Protocol = 1

// Identity is who speaks: a session, and which of the processes that held it.
type Identity struct {
	// ClusterID is empty until a store told it.
	ClusterID   string
	Session     ids.SessionID
	Incarnation ids.Incarnation
}

// Peer is what the process says of itself in a Hello.
type Peer struct {
	Node, Cluster, Addr, RedisAddr, HTTPAddr, Version string
}

// An action is what the machine wants done, in order.
type action interface{ action() }

type (
	// connect to addr and open a stream, known as gen from now on.
	connect struct {
		gen  uint64
		addr string
	}
	// disconnect gives a stream up.
	disconnect struct{ gen uint64 }
	// send a message.
	send struct {
		gen uint64
		up  *seqpb.SessionUp
	}
	// beat sends heartbeat `number` with the present load.
	beat struct {
		gen    uint64
		number uint64
	}
	// welcomed: persist the identity, then use it with this stream.
	welcomed struct {
		gen     uint64
		addr    string
		welcome *seqpb.Welcome
	}
	// leased: this is the lease from now on; the machine renews and revokes it.
	leased struct{ holder *lease.Holder }
	// lost: stop serving at once and drop everything.
	lost struct{ reason string }
	// renewed: the lease holds, by the stream's first acknowledged heartbeat.
	renewed  struct{}
	directed struct{ directive *seqpb.Directive }
	routed   struct{ routes *seqpb.RouteTable }
	// ended: everything is handed back and the session is over.
	ended struct{}
	// refused: a store says that this process must not run as it is configured.
	refused struct{ err *RefusedError }
)

func (connect) action()    {}
func (disconnect) action() {}
func (send) action()       {}
func (beat) action()       {}
func (welcomed) action()   {}
func (leased) action()     {}
func (lost) action()       {}
func (renewed) action()    {}
func (directed) action()   {}
func (routed) action()     {}
func (ended) action()      {}
func (refused) action()    {}

// RefusedError is a store's refusal that no retry will change: another cluster or protocol.
type RefusedError struct {
	Addr    string
	Code    seqpb.RefusalCode
	Message string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("store %s refuses this process (%v): %s", e.Addr, e.Code, e.Message)
}

type phase uint8

const (
	resting  phase = iota // until the back-off is over
	opening               // a stream is being opened
	greeting              // Hello sent, waiting for its answer
	attached              // welcomed
	over                  // ended, or closed
)

// assumedTTL stands in for the lease TTL until a Welcome tells it.
const assumedTTL = 2 * time.Second

// backOffMin is the first pause after every store was tried in vain.
const backOffMin = 20 * time.Millisecond

// machine decides. It is not safe for concurrent use, and does no I/O.
type machine struct {
	peer   Peer
	stores []string
	jitter func(time.Duration) time.Duration

	id      Identity // Session 0: register
	leaving string   // why; empty while not leaving
	// known: this process was welcomed before, so id is not only what an arena said.
	known bool
	// anew: greet the present store as a process without a past.
	anew bool

	phase phase
	// gen numbers the streams; events of any other than the present one are late and ignored.
	gen  uint64
	addr string
	// until: when resting, opening or greeting ends by itself.
	until time.Duration

	// Whom to try next: hint if it is set, else stores[next]. tries counts
	// since the last Welcome or rest, timeouts since the last Welcome.
	hint     string
	next     int
	tries    int
	rests    int
	timeouts int

	bugs               lease.Bugs
	ttl, margin, every time.Duration
	lease              *lease.Holder // nil until the first Welcome
	number             uint64        // of the last heartbeat sent, over all streams
	nextBeat           time.Duration
	// unacked has the send times of this stream's heartbeats above the last
	// acknowledged one; number is that of the last.
	unacked []time.Duration
	// renewed: a heartbeat of this stream was acknowledged.
	renewed bool
	// directive is the version of the last one seen on this stream.
	directive uint64
}

func newMachine(peer Peer, stores []string, id Identity, bugs lease.Bugs, jitter func(time.Duration) time.Duration) *machine {
	if jitter == nil {
		jitter = func(d time.Duration) time.Duration { return d }
	}
	return &machine{peer: peer, stores: slices.Clone(stores), jitter: jitter, id: id, bugs: bugs, ttl: assumedTTL}
}

// start begins to look for the leader.
func (m *machine) start(now time.Duration) []action { return m.try(now) }

// wake is when tick wants to be called next, at the latest.
func (m *machine) wake() (at time.Duration, ok bool) {
	switch m.phase {
	case resting, opening, greeting:
		return m.until, true
	case attached:
		at = m.nextBeat
		if len(m.unacked) > 0 {
			at = min(at, m.unacked[0]+m.patience())
		}
		return at, true
	}
	return 0, false
}

// patience is how long a peer may be silent before another is tried.
func (m *machine) patience() time.Duration { return m.ttl / 4 }

// tick lets time pass.
func (m *machine) tick(now time.Duration) []action {
	switch {
	case m.phase == resting && now >= m.until:
		return m.try(now)
	case (m.phase == opening || m.phase == greeting) && now >= m.until:
		m.timeouts++
		return m.leaveStream(now)
	case m.phase == attached && len(m.unacked) > 0 && now >= m.unacked[0]+m.patience():
		return m.leaveStream(now)
	case m.phase == attached && now >= m.nextBeat:
		return []action{m.heartbeat(now)}
	}
	return nil
}

// try opens a stream to the next candidate, or rests when all were tried.
func (m *machine) try(now time.Duration) []action {
	if m.tries > len(m.stores) {
		m.tries = 0
		m.phase = resting
		m.until = now + m.jitter(min(backOffMin<<min(m.rests, 10), m.patience()))
		m.rests++
		return nil
	}
	addr := m.hint
	m.hint = ""
	m.anew = m.anew && addr == m.addr
	if addr == "" {
		addr = m.stores[m.next%len(m.stores)]
		m.next++
	}
	m.tries++
	m.gen++
	m.addr = addr
	m.phase = opening
	// A leader on a slow disk takes long to commit a resume; asking again and
	// again would only lengthen its queue, hence the patience grows.
	m.until = now + m.patience()<<min(m.timeouts, 4)
	return []action{connect{gen: m.gen, addr: addr}}
}

// leaveStream gives the present stream up for another store's.
func (m *machine) leaveStream(now time.Duration) []action {
	return append([]action{disconnect{gen: m.gen}}, m.try(now)...)
}

// opened: the stream is there.
func (m *machine) opened(gen uint64) []action {
	if gen != m.gen || m.phase != opening {
		return nil
	}
	m.phase = greeting
	p, id := &m.peer, m.id
	if m.anew {
		id = Identity{}
	}
	return []action{send{gen: gen, up: &seqpb.SessionUp{Hello: &seqpb.Hello{
		Protocol:          Protocol,
		Cluster:           p.Cluster,
		ClusterId:         id.ClusterID,
		Node:              p.Node,
		Addr:              p.Addr,
		RedisAddr:         p.RedisAddr,
		HttpAddr:          p.HTTPAddr,
		ResumeSession:     uint64(id.Session),
		ResumeIncarnation: uint32(id.Incarnation),
		Version:           p.Version,
	}}}}
}

// broken: the stream ended, or could not be opened, or is of no use.
func (m *machine) broken(now time.Duration, gen uint64) []action {
	if gen != m.gen || m.phase != opening && m.phase != greeting && m.phase != attached {
		return nil
	}
	return m.leaveStream(now)
}

// leave asks to be relieved of all sections.
func (m *machine) leave(reason string) []action {
	if m.leaving != "" {
		return nil
	}
	m.leaving = reason
	if m.phase != attached {
		return nil
	}
	return []action{m.sendLeaving()}
}

// abandon gives the session up without a word: its lease runs out, and what it
// held goes to others as after the loss of a machine. Another session follows,
// unless this one was leaving.
func (m *machine) abandon(now time.Duration, reason string) []action {
	if m.id.Session == 0 || m.phase == over {
		return nil
	}
	out := m.lose(reason)
	if m.leaving != "" {
		return append(out, m.end()...)
	}
	return append(out, m.leaveStream(now)...)
}

func (m *machine) sendLeaving() action {
	return send{gen: m.gen, up: &seqpb.SessionUp{Leaving: &seqpb.Leaving{Reason: m.leaving}}}
}

// close gives up whatever there is, silently.
func (m *machine) close() []action {
	if m.phase == over {
		return nil
	}
	m.phase = over
	return []action{disconnect{gen: m.gen}}
}

// down: the store said something on a stream.
func (m *machine) down(now time.Duration, gen uint64, d *seqpb.SessionDown) []action {
	if gen != m.gen || m.phase != greeting && m.phase != attached {
		return nil
	}
	if d.Refusal != nil && d.Refusal.Code != seqpb.RefusalCode_REFUSAL_NONE {
		return m.refusal(now, d.Refusal)
	}
	var out []action
	if d.Welcome != nil {
		out = append(out, m.welcome(now, d.Welcome)...)
	}
	if m.phase != attached {
		return out
	}
	if d.Routes != nil {
		out = append(out, routed{routes: d.Routes})
	}
	if d.Ack != nil && m.ack(d.Ack.Number) && !m.renewed {
		m.renewed = true
		out = append(out, renewed{})
	}
	if d.Directive != nil && d.Directive.Version >= m.directive {
		m.directive = d.Directive.Version
		out = append(out, directed{directive: d.Directive})
	}
	if d.Goodbye != nil && m.leaving != "" {
		out = append(out, m.end()...)
	}
	return out
}

// end: nothing is owned any more, and nothing will be.
func (m *machine) end() []action {
	gen := m.gen
	m.phase = over
	m.id = Identity{ClusterID: m.id.ClusterID}
	m.revoke()
	return []action{ended{}, disconnect{gen: gen}}
}

func (m *machine) welcome(now time.Duration, w *seqpb.Welcome) []action {
	if m.phase != greeting || w.Session == 0 || w.Incarnation == 0 || w.Sections == 0 || w.TtlMs == 0 || w.MarginMs >= w.TtlMs {
		return m.leaveStream(now)
	}
	var out []action
	if m.id.Session != 0 && ids.SessionID(w.Session) != m.id.Session {
		reason := w.NotResumed
		if reason == "" {
			reason = fmt.Sprintf("store %s knows nothing of it", m.addr)
		}
		out = append(out, m.lose(reason)...)
	}
	m.id = Identity{ClusterID: w.ClusterId, Session: ids.SessionID(w.Session), Incarnation: ids.Incarnation(w.Incarnation)}
	m.phase = attached
	m.known, m.anew = true, false
	m.tries, m.rests, m.timeouts = 0, 0, 0
	m.directive = 0
	m.renewed = false
	m.unacked = nil
	ttl, margin := time.Duration(w.TtlMs)*time.Millisecond, time.Duration(w.MarginMs)*time.Millisecond
	if m.lease == nil || ttl != m.ttl || margin != m.margin {
		m.revoke()
		m.ttl, m.margin = ttl, margin
		m.lease = lease.NewHolder(ttl, margin)
		m.lease.Bugs = m.bugs
		out = append(out, leased{holder: m.lease})
	}
	m.every = time.Duration(w.HeartbeatMs) * time.Millisecond
	if m.every <= 0 {
		m.every = m.ttl / 5
	}
	out = append(out, welcomed{gen: m.gen, addr: m.addr, welcome: w}, m.heartbeat(now))
	if m.leaving != "" {
		out = append(out, m.sendLeaving())
	}
	return out
}

// heartbeat: now was read before anything is sent.
func (m *machine) heartbeat(now time.Duration) action {
	m.number++
	m.unacked = append(m.unacked, now)
	m.lease.Sent(m.number, now)
	m.nextBeat = now + m.every
	return beat{gen: m.gen, number: m.number}
}

// ack renews the lease from when that heartbeat was sent; false for one that was
// not sent on this stream, or acknowledged before.
func (m *machine) ack(number uint64) bool {
	first := m.number - uint64(len(m.unacked)) + 1
	if number < first || number > m.number {
		return false
	}
	m.unacked = m.unacked[number-first+1:]
	m.lease.Acked(number)
	return true
}

func (m *machine) revoke() {
	if m.lease != nil {
		m.lease.Revoke()
	}
}

// lose forgets the session: what it owned is no longer ours.
func (m *machine) lose(reason string) []action {
	m.id = Identity{ClusterID: m.id.ClusterID}
	m.revoke()
	return []action{lost{reason: reason}}
}

func (m *machine) refusal(now time.Duration, r *seqpb.Refusal) []action {
	switch r.Code {
	case seqpb.RefusalCode_REFUSAL_NOT_LEADER:
		if r.Leader != m.addr {
			m.hint = r.Leader
		}
	case seqpb.RefusalCode_REFUSAL_SESSION_EXPIRED:
		var out []action
		if m.id.Session != 0 {
			out = m.lose(r.Message)
		}
		if m.leaving != "" {
			// There is nothing left to hand back.
			return append(out, m.end()...)
		}
		m.hint = m.addr // it leads; register there
		return append(out, m.leaveStream(now)...)
	case seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER, seqpb.RefusalCode_REFUSAL_WRONG_VERSION, seqpb.RefusalCode_REFUSAL_INVALID:
		if r.Code == seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER && !m.known && !m.anew && m.id.ClusterID != "" {
			// What the arena says may be of a cluster that was founded anew, or
			// restored, under the same name. This store will tell, if it is asked
			// without it. If it refuses again, the arena is kept for the others.
			m.anew, m.hint = true, m.addr
			return m.leaveStream(now)
		}
		out := []action{refused{err: &RefusedError{Addr: m.addr, Code: r.Code, Message: r.Message}}}
		return append(out, m.leaveStream(now)...)
	}
	return m.leaveStream(now)
}
