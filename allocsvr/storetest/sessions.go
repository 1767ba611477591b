package storetest

import (
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// serve is the store's side of one session stream.
func (s *Store) serve(c *conn, st *clientStream) {
	defer st.down.close(errEOF)
	var me ids.SessionID
	defer func() {
		s.mu.Lock()
		if s.streams[me] == st {
			delete(s.streams, me)
		}
		s.mu.Unlock()
	}()
	for {
		up, err := st.up.get(s.ctx)
		if err != nil {
			return
		}
		s.mu.Lock()
		ok := true
		switch {
		case up.Hello != nil:
			me, ok = s.hello(st, up.Hello)
		case me == 0 || s.streams[me] != st:
			ok = false
		case up.Heartbeat != nil:
			s.heard[me] = s.clock.Now()
			st.push(&seqpb.SessionDown{Ack: &seqpb.HeartbeatAck{Number: up.Heartbeat.Number}})
		case up.Leaving != nil:
			s.leaving(me)
		}
		s.mu.Unlock()
		if !ok {
			return
		}
	}
}

func refuse(st *clientStream, code seqpb.RefusalCode, message string) (ids.SessionID, bool) {
	st.push(&seqpb.SessionDown{Refusal: &seqpb.Refusal{Code: code, Message: message}})
	return 0, false
}

func (s *Store) hello(st *clientStream, h *seqpb.Hello) (ids.SessionID, bool) {
	switch {
	case s.refused != "":
		return refuse(st, seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER, s.refused)
	case s.unready:
		return refuse(st, seqpb.RefusalCode_REFUSAL_NOT_READY, "told so")
	}
	var rep state.Reply
	w := &seqpb.Welcome{
		ClusterId: ClusterID, Set: "s1", Sections: s.cfg.Sections,
		TtlMs: uint32(s.cfg.TTL / time.Millisecond), MarginMs: uint32(s.cfg.TTL / 10 / time.Millisecond),
		HeartbeatMs: uint32(s.cfg.TTL / 5 / time.Millisecond), Spaces: s.routes().Spaces,
	}
	if h.ResumeSession != 0 {
		rep = s.apply(state.Resume{
			Session: ids.SessionID(h.ResumeSession), From: ids.Incarnation(h.ResumeIncarnation),
			Addr: h.Addr, RedisAddr: h.RedisAddr, HTTPAddr: h.HttpAddr, Version: h.Version,
		})
		switch {
		case h.ClusterId != ClusterID:
			w.NotResumed = "another cluster"
		case rep.Refusal != state.OK:
			w.NotResumed = "the session is over"
		default:
			w.Resumed = true
		}
	}
	if !w.Resumed {
		rep = s.apply(state.Register{Node: h.Node, Addr: h.Addr, RedisAddr: h.RedisAddr, HTTPAddr: h.HttpAddr, Version: h.Version})
	}
	id := rep.Session.ID
	w.Session, w.Incarnation, w.BatchSeq = uint64(id), uint32(rep.Session.Incarnation), uint64(rep.Session.LastBatch)
	s.heard[id] = s.clock.Now()
	s.streams[id] = st
	st.push(&seqpb.SessionDown{Welcome: w})
	s.changed()
	return id, true
}

func (s *Store) leaving(id ids.SessionID) {
	ses := s.state.Meta.Sessions[id]
	s.apply(state.Leave{Session: id, Incarnation: ses.Incarnation})
	for _, o := range s.state.Owned(id) {
		s.revoking[o.Section] = s.fewest(id)
	}
	s.changed()
}

func (s *Store) routes() *seqpb.RouteTable {
	m := &s.state.Meta
	set := &seqpb.SetRoutes{Name: m.Genesis.Set, Version: m.RouteVersion, Sections: uint32(len(m.Sections)), Stores: []string{"store-1"}}
	t := &seqpb.RouteTable{Cluster: m.Genesis.Cluster, ClusterId: ClusterID, MapVersion: m.Published.Map.Version, Sets: s.otherSets(set, &m.Published)}
	for _, sp := range m.Genesis.Spaces {
		t.Spaces = append(t.Spaces, &seqpb.Space{Id: uint32(sp.ID), Name: sp.Name, Kind: sp.Kind.String(), MaxUid: sp.MaxUID})
	}
	for i := range m.Sections {
		set.Owner = append(set.Owner, uint64(m.Sections[i].Owner))
		set.Epoch = append(set.Epoch, uint64(m.Sections[i].Epoch))
	}
	for id := ids.SessionID(1); id <= m.NextSession; id++ {
		if ses := m.Sessions[id]; ses != nil {
			set.Nodes = append(set.Nodes, &seqpb.AllocNode{Session: uint64(id), Id: ses.Node, Addr: ses.Addr, RedisAddr: ses.RedisAddr, HttpAddr: ses.HTTPAddr})
		}
	}
	return t
}
