package storesvr

import (
	"context"
	"fmt"
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// tell sends the stream what it lacks: acknowledgements first, then what it owns, then routes.
func (l *leadership) tell(ctx context.Context, s SessionStream, st *stream) error {
	var sent *seqpb.Directive
	var known routesKnown
	for {
		changed, told := l.n.changed.wait(), l.told.wait()
		for {
			m, over := st.next()
			if m == nil && !over {
				m = l.news(st, &sent, &known)
			}
			if m != nil {
				if err := s.Send(m); err != nil {
					return err
				}
			}
			if over {
				return nil
			}
			if m == nil {
				break
			}
		}
		select {
		case <-st.poked:
		case <-changed:
		case <-told:
		case <-ctx.Done():
			if l.ctx.Err() != nil {
				return s.Send(l.n.notLeader())
			}
			return ctx.Err()
		case <-l.ctx.Done():
			return s.Send(l.n.notLeader())
		}
	}
}

// next is the acknowledgement that is due, or the last word.
func (st *stream) next() (m *seqpb.SessionDown, over bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.over:
		switch st.last {
		case expiredMessage:
			m = refused(seqpb.RefusalCode_REFUSAL_SESSION_EXPIRED, fmt.Sprintf("the lease of session %d ran out", st.session))
		case goodbyeMessage:
			m = &seqpb.SessionDown{Goodbye: &seqpb.Goodbye{}}
		case retryMessage:
			m = refused(seqpb.RefusalCode_REFUSAL_NOT_READY, "the wish could not be committed: come again")
		}
		return m, true
	case st.ack > st.acked:
		st.acked = st.ack
		return &seqpb.SessionDown{Ack: &seqpb.HeartbeatAck{Number: st.ack}}, false
	}
	return nil, false
}

// news is the directive if it has changed, else the routes if they have.
func (l *leadership) news(st *stream, sent **seqpb.Directive, known *routesKnown) *seqpb.SessionDown {
	l.mu.Lock()
	defer l.mu.Unlock()
	var m *seqpb.SessionDown
	err := l.n.fsm.read(func(s *state.State) {
		if d := l.directive(st, &s.Meta); *sent == nil || !sameDirective(d, *sent) {
			l.directives++
			d.Version = l.directives
			*sent = d
			m = &seqpb.SessionDown{Directive: d}
			return
		}
		if t, now := routesSince(&s.Meta, *known); t != nil {
			*known = now
			m = &seqpb.SessionDown{Routes: t}
		}
	})
	if err != nil {
		return nil
	}
	return m
}

// directive is the whole truth of what a session owns and is to hand back.
func (l *leadership) directive(st *stream, m *state.Meta) *seqpb.Directive {
	d := &seqpb.Directive{}
	for i := range m.Sections {
		s := &m.Sections[i]
		if s.Owner != st.session {
			continue
		}
		d.Section = append(d.Section, uint32(i))
		d.Epoch = append(d.Epoch, uint64(s.Epoch))
		if mv, ok := l.moves[ids.Section(i)]; ok && mv.from == s.Owner && mv.epoch == s.Epoch {
			d.Revoke = append(d.Revoke, uint32(i))
			l.sayNext(d, m, mv)
		}
	}
	sayFrozen(d, m)
	if l.leaving != (sets.Range{}) {
		d.Leaving = []*seqpb.Range{rangePB(l.leaving)}
	}
	return d
}

// callIn has owners hand back what nobody uses of a range that is to be frozen soon.
func (l *leadership) callIn(r sets.Range) {
	l.mu.Lock()
	news := l.leaving != r
	l.leaving = r
	l.mu.Unlock()
	if news {
		l.told.give()
	}
}

// sayFrozen lists what is frozen here, for every session alike: a part counts until
// it has thawed or is gone, also for one that has vacated it or came later.
func sayFrozen(d *seqpb.Directive, m *state.Meta) {
	for _, id := range sortedKeys(m.Out) {
		o := m.Out[id]
		if o.Phase != state.OutFrozen && o.Phase != state.OutSealed {
			continue
		}
		d.Frozen = append(d.Frozen, &seqpb.FrozenRange{
			Move: uint64(o.Move), Part: uint32(o.Part),
			Range: rangePB(o.Range),
		})
	}
}

// sayNext says to whom the section last added to Revoke is planned to go, so that
// its owner can pass on there what is not in the log. fillNext has the last word.
func (l *leadership) sayNext(d *seqpb.Directive, m *state.Meta, mv move) {
	to := m.Sessions[mv.to]
	if to == nil || l.streams[mv.to] == nil {
		d.NextSession, d.NextEpoch = append(d.NextSession, 0), append(d.NextEpoch, 0)
		return
	}
	d.NextSession, d.NextEpoch = append(d.NextSession, uint64(mv.to)), append(d.NextEpoch, uint64(mv.epoch+1))
	if !slices.ContainsFunc(d.Next, func(n *seqpb.NextOwner) bool { return n.Session == uint64(mv.to) }) {
		d.Next = append(d.Next, &seqpb.NextOwner{Session: uint64(mv.to), Addr: to.Addr})
	}
}

func sameDirective(a, b *seqpb.Directive) bool {
	return slices.Equal(a.Section, b.Section) && slices.Equal(a.Epoch, b.Epoch) && slices.Equal(a.Revoke, b.Revoke) &&
		slices.Equal(a.NextSession, b.NextSession) && slices.Equal(a.NextEpoch, b.NextEpoch) &&
		slices.EqualFunc(a.Frozen, b.Frozen, func(x, y *seqpb.FrozenRange) bool { return x.Move == y.Move && x.Part == y.Part }) &&
		slices.EqualFunc(a.Leaving, b.Leaving, func(x, y *seqpb.Range) bool { return x.Space == y.Space && x.Lo == y.Lo && x.Last == y.Last }) &&
		slices.EqualFunc(a.Next, b.Next, func(x, y *seqpb.NextOwner) bool { return x.Session == y.Session && x.Addr == y.Addr })
}
