package storesvr

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/lease"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/placement"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// balanceEvery is how often loads are looked at when nothing else happens.
	balanceEvery = time.Second
	// retryPause follows a proposal that failed while the node still leads.
	retryPause = 50 * time.Millisecond
	// stepMin bounds how soon a deadline is looked at again.
	stepMin = time.Millisecond
)

// leadership is what the node knows and does while it leads: one loop decides,
// one settles. It lasts from Raft's notice to the next; the book of leases and
// the moves under way are only in its memory.
type leadership struct {
	n      *Node
	log    *zap.Logger
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	term   uint64
	ready  atomic.Bool
	// wake has room for one: the loop should look again.
	wake chan struct{}
	// told is given when directives may have changed.
	told *signal

	mu     sync.Mutex
	book   *lease.Book
	pulses *pulses
	flaps  placement.Flaps
	// doomed incarnations are being expired: they get no acknowledgement any more.
	doomed  map[lease.Session]bool
	streams map[ids.SessionID]*stream
	// greeting are nodes whose Hello is being answered.
	greeting map[string]bool
	// adopted is the newest incarnation of a session that may have acted.
	adopted map[ids.SessionID]ids.Incarnation
	loads   map[ids.SessionID]*load
	moves   map[ids.Section]move
	movedAt map[ids.Section]time.Duration
	// leaving is to be frozen soon, for all that a mover has said last.
	leaving sets.Range
	// balancing and force: see placement.Input.
	balancing, force bool
	// looked is when the loop last looked.
	looked time.Duration
	// directives is the version of the last directive.
	directives uint64
}

func (n *Node) beginLeadership() *leadership {
	l := &leadership{
		n: n, term: n.raft.CurrentTerm(),
		wake: make(chan struct{}, 1), told: newSignal(),
		book:     lease.NewBook(n.cfg.LeaseTTL, n.cfg.margin()),
		pulses:   newPulses(n.cfg.heartbeat()),
		doomed:   map[lease.Session]bool{},
		streams:  map[ids.SessionID]*stream{},
		greeting: map[string]bool{},
		adopted:  map[ids.SessionID]ids.Incarnation{},
		loads:    map[ids.SessionID]*load{},
		moves:    map[ids.Section]move{},
		movedAt:  map[ids.Section]time.Duration{},
	}
	l.log = n.log.With(zap.Uint64("term", l.term))
	l.book.Bugs.SkipLeaderWait = n.cfg.Bugs.SkipLeaderWait
	// Versions of directives grow from leader to leader.
	l.directives = l.term << 32
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.wg.Go(l.run)
	return l
}

// end stops acting and waits.
func (l *leadership) end() {
	l.ready.Store(false)
	l.cancel()
	l.wg.Wait()
	l.log.Info("leadership ended")
}

func (l *leadership) isReady() bool { return l.ready.Load() }

// leads answers the leadership if it is ready to act, else nil.
func (n *Node) leads() *leadership {
	if l := n.lead.Load(); l != nil && l.isReady() {
		return l
	}
	return nil
}

func (l *leadership) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *leadership) run() {
	for !l.prepare() {
		if !pause(l.ctx, retryPause) {
			return
		}
	}
	l.mu.Lock()
	// Later than the election, so what a predecessor promised ends before our wait does.
	l.book.Lead(l.n.cfg.Clock.Now())
	l.mu.Unlock()
	l.ready.Store(true)
	l.log.Info("leading")
	l.n.changed.give()
	l.wg.Go(l.settleLoop)
	l.beginSets()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for l.ctx.Err() == nil {
		changed := l.n.changed.wait()
		timer.Reset(l.step())
		select {
		case <-l.ctx.Done():
		case <-changed:
		case <-l.wake:
		case <-timer.C:
		}
	}
}

// prepare brings the state up to all that was ever committed, and founds the
// Set if this is its first leader.
func (l *leadership) prepare() bool {
	n := l.n
	if err := n.await(l.ctx, func() error { return n.raft.Barrier(enqueueTimeout).Error() }); err != nil {
		if l.ctx.Err() == nil {
			l.log.Warn("barrier failed", zap.Error(err))
		}
		return false
	}
	// A leader has all that was committed.
	if err := n.join(); err != nil {
		return false
	}
	var founded bool
	var self state.StoreNode
	if err := n.fsm.read(func(st *state.State) {
		founded, self = st.Meta.Genesis.Sections != 0, st.Meta.Stores[n.cfg.ID]
	}); err != nil {
		return false
	}
	var todo []state.Command
	if !founded {
		var err error
		if todo, err = l.founding(); err != nil {
			if l.ctx.Err() == nil {
				l.log.Warn("the set could not be founded", zap.Error(err))
			}
			return false
		}
	}
	if self != n.cfg.self() {
		todo = append(todo, state.PutStore{Node: n.cfg.self()})
	}
	for _, c := range todo {
		rep, err := n.propose(l.ctx, c)
		if err != nil || rep.Refusal != state.OK {
			l.log.Warn("founding command failed", zap.Uint8("refusal", uint8(rep.Refusal)), zap.Error(err))
			return false
		}
	}
	return true
}

// step decides once and carries it out. It answers when to look again.
func (l *leadership) step() time.Duration {
	d, next, err := l.decide()
	if err == nil {
		err = l.carryOut(&d)
	}
	if err != nil {
		if l.ctx.Err() == nil {
			l.log.Warn("leader's decision could not be carried out", zap.Error(err))
		}
		return retryPause
	}
	return next
}

func (l *leadership) decide() (d decision, next time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.n.cfg.Clock.Now()
	if held := now - l.looked; l.looked != 0 && held > balanceEvery+l.n.cfg.LeaseTTL/2 {
		// The process, or the machine, was suspended, or its clock jumped:
		// heartbeats may be waiting unread. A longer wait is always safe.
		l.log.Warn("the leader was held up and gives every lease a new wait", zap.Duration("held_up", held))
		l.book.Lead(now)
		l.pulses.again(now)
	}
	l.looked = now
	next = balanceEvery
	err = l.n.fsm.read(func(st *state.State) {
		live := leaseSessions(&st.Meta)
		// One whose Hello is being answered is about to be heard from.
		live = slices.DeleteFunc(live, func(s lease.Session) bool { return l.greeting[st.Meta.Sessions[s.ID].Node] })
		s := l.situation(&st.Meta, now)
		s.expired = l.book.Expired(now, live)
		s.balancing, s.force = l.balancing, l.force
		d = decide(s)
		if at, ok := l.book.Next(live); ok {
			next = min(next, max(at-now, stepMin))
		}
		for _, m := range d.over {
			delete(l.moves, m.section)
			if m.to != 0 && st.Meta.Sections[m.section].Owner == m.to {
				l.movedAt[m.section] = now
			}
		}
		for _, e := range d.expire {
			l.doomed[lease.Session{ID: e.Session, Incarnation: e.Incarnation}] = true
			if ses := st.Meta.Sessions[e.Session]; ses != nil {
				l.flaps.Lost(ses.Node, now)
			}
		}
	})
	if err != nil {
		return d, next, err
	}
	for _, m := range d.revoke {
		l.moves[m.section] = m
	}
	for _, m := range l.moves {
		// A move to one that falls silent gets another target then.
		if at := l.pulses.silentAt(m.to); at > now {
			next = min(next, max(at-now, stepMin))
		}
	}
	l.balancing = d.balancing
	l.force = l.force && !d.forceDone
	return d, next, nil
}

// situation is what placement looks at, with l.mu held.
func (l *leadership) situation(m *state.Meta, now time.Duration) *situation {
	return &situation{
		now: now, meta: m, attached: l.attached(), loads: l.loads, moves: l.moves, movedAt: l.movedAt,
		silent:  func(id ids.SessionID) bool { return l.pulses.silent(id, now) },
		holdOff: func(node string) bool { return l.flaps.HoldOff(node, now) },
		limits:  l.n.cfg.Placement,
	}
}

func (l *leadership) attached() map[ids.SessionID]bool {
	out := make(map[ids.SessionID]bool, len(l.streams))
	for id := range l.streams {
		out[id] = true
	}
	return out
}

func (l *leadership) carryOut(d *decision) error {
	if len(d.revoke) > 0 {
		l.told.give()
	}
	for _, e := range d.expire {
		l.log.Warn("lease ran out", zap.Uint64("session", uint64(e.Session)))
		rep, err := l.n.propose(l.ctx, e)
		if err != nil {
			return err
		}
		if rep.Refusal == state.OK {
			l.over(e.Session, expiredMessage)
		}
	}
	for _, v := range d.leave {
		rep, err := l.n.propose(l.ctx, v)
		if err != nil {
			return err
		}
		if rep.Refusal == state.OK {
			l.log.Info("session left", zap.Uint64("session", uint64(v.Session)))
			l.over(v.Session, goodbyeMessage)
		}
	}
	if len(d.assign) > 0 {
		rep, err := l.n.propose(l.ctx, state.Assign{Assignments: d.assign})
		if err != nil {
			return err
		}
		if rep.Refusal != state.OK {
			return errors.New("assignment refused")
		}
		l.log.Info("sections assigned", zap.Int("sections", len(rep.Applied)))
	}
	return nil
}

// over forgets a session that has ended, and tells its stream.
func (l *leadership) over(id ids.SessionID, last lastWord) {
	l.mu.Lock()
	st := l.streams[id]
	delete(l.streams, id)
	delete(l.loads, id)
	delete(l.adopted, id)
	l.book.Forget(id)
	l.pulses.forget(id)
	for s := range l.doomed {
		if s.ID == id {
			delete(l.doomed, s)
		}
	}
	l.mu.Unlock()
	if st != nil {
		st.finish(last)
	}
}

// fillNext tells each release who gets the section next: whom it is being moved
// to. One that nobody planned frees the section, and the loop assigns it.
func (l *leadership) fillNext(b *state.Batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range b.Ops {
		op := &b.Ops[i]
		if op.Kind != state.OpRelease {
			continue
		}
		op.Next = 0
		if m, ok := l.moves[op.Section]; ok && m.epoch == op.Epoch && m.from == b.Session && l.streams[m.to] != nil {
			op.Next = m.to
		}
	}
}
