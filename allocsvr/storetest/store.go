package storetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/internal/clock"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// Config of a Store. The zero value is usable.
type Config struct {
	Sections uint32
	Spaces   []ids.Space
	TTL      time.Duration
	// Auto gives unowned sections to the session that owns the fewest.
	Auto bool
	// Keys is where the per-key state lives; nil: in a map.
	Keys state.Keys
	Bugs state.Bugs
}

// Store is the leader. Its methods are safe for concurrent use.
type Store struct {
	cfg   Config
	clock clock.Clock
	ctx   context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup

	mu       sync.Mutex
	state    *state.State
	index    uint64
	heard    map[ids.SessionID]time.Duration
	streams  map[ids.SessionID]*clientStream
	revoking map[ids.Section]ids.SessionID // → next owner, 0 for none
	leave    []*seqpb.Range
	version  uint64 // of directives
	executed []state.Batch
	refused  string // Hello is refused as of another cluster, with this text
	unready  bool
}

// ClusterID of every Store.
const ClusterID = "test-cluster-id"

// New starts a store. Close it.
func New(cfg Config) *Store {
	if cfg.Sections == 0 {
		cfg.Sections = 8
	}
	if cfg.Spaces == nil {
		cfg.Spaces = ids.DefaultSpaces()
	}
	if cfg.TTL == 0 {
		cfg.TTL = 2 * time.Second
	}
	if cfg.Keys == nil {
		cfg.Keys = state.NewMapKeys()
	}
	s := &Store{
		cfg: cfg, clock: clock.Go(), state: state.New(cfg.Keys),
		heard: map[ids.SessionID]time.Duration{}, streams: map[ids.SessionID]*clientStream{},
		revoking: map[ids.Section]ids.SessionID{},
	}
	s.state.Bugs = cfg.Bugs
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.apply(state.Genesis{Cluster: "test", ClusterID: ClusterID, Set: "s1", Sections: cfg.Sections, Spaces: cfg.Spaces}.OwningAll())
	s.wg.Go(s.expireLoop)
	return s
}

// Close ends every stream and waits.
func (s *Store) Close() {
	s.stop()
	s.wg.Wait()
}

// apply under mu, or before the store is shared.
func (s *Store) apply(c state.Command) state.Reply {
	s.index++
	return s.state.Apply(s.index, c)
}

func (s *Store) execute(req *seqpb.ExecuteRequest) *seqpb.ExecuteReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unready {
		return &seqpb.ExecuteReply{Refusal: &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_NOT_READY, Message: "told so"}}
	}
	c, err := state.DecodeCommand(req.Batch)
	b, ok := c.(state.Batch)
	if err != nil || !ok || req.ClusterId != ClusterID {
		return &seqpb.ExecuteReply{Refusal: &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_INVALID, Message: fmt.Sprint(err)}}
	}
	released := false
	for i := range b.Ops {
		if op := &b.Ops[i]; op.Kind == state.OpRelease {
			op.Next = s.revoking[op.Section]
			released = true
		}
	}
	before := s.state.Meta.RouteVersion
	rep := s.apply(b)
	s.executed = append(s.executed, b)
	if released && rep.Refusal == state.OK {
		for i := range b.Ops {
			if b.Ops[i].Kind == state.OpRelease && rep.Results[i].Refusal == state.OK {
				delete(s.revoking, b.Ops[i].Section)
			}
		}
	}
	if s.state.Meta.RouteVersion != before {
		s.changed()
	}
	return &seqpb.ExecuteReply{Outcome: state.EncodeReply(nil, rep)}
}

func keyOf(r *seqpb.KeyRef) ids.Key { return ids.Key{Space: ids.SpaceID(r.Space), Hi: r.Hi, Lo: r.Lo} }

func (s *Store) read(req *seqpb.ReadRequest) *seqpb.ReadReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	rep := &seqpb.ReadReply{}
	for i, k := range req.Keys {
		if key := keyOf(k); s.state.MaySpeak(key) {
			rep.Value = append(rep.Value, uint64(s.state.Value(key)))
		} else {
			rep.Value, rep.Elsewhere = append(rep.Value, 0), append(rep.Elsewhere, uint32(i))
		}
	}
	return rep
}

func (s *Store) readGaps(req *seqpb.ReadGapsRequest) *seqpb.ReadGapsReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	rep := &seqpb.ReadGapsReply{Elsewhere: !s.state.MaySpeak(keyOf(req.Key))}
	if rep.Elsewhere {
		return rep
	}
	for _, g := range s.state.Keys.Gaps(keyOf(req.Key)) {
		rep.Gaps = append(rep.Gaps, &seqpb.Gap{From: uint64(g.From), To: uint64(g.To), Cause: "machine loss"})
	}
	return rep
}

// expireLoop ends sessions that were not heard from for a TTL.
func (s *Store) expireLoop() {
	t := time.NewTicker(s.cfg.TTL / 20)
	defer t.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-t.C:
		}
		s.mu.Lock()
		now, before := s.clock.Now(), s.state.Meta.RouteVersion
		for id, at := range s.heard {
			if now > at+s.cfg.TTL {
				s.expire(id)
			}
		}
		if s.state.Meta.RouteVersion != before {
			s.changed()
		}
		s.mu.Unlock()
	}
}

func (s *Store) expire(id ids.SessionID) {
	ses := s.state.Meta.Sessions[id]
	if ses == nil {
		return
	}
	s.apply(state.Expire{Session: id, Incarnation: ses.Incarnation})
	delete(s.heard, id)
	for sec, next := range s.revoking {
		if next == id || s.state.Meta.Sections[sec].Owner == 0 {
			delete(s.revoking, sec)
		}
	}
}

// changed places what is unowned, and tells everyone of the sections and routes as they are.
func (s *Store) changed() {
	if s.cfg.Auto {
		s.place()
	}
	s.version++
	routes := s.routes()
	for id, st := range s.streams {
		st.push(&seqpb.SessionDown{Directive: s.directive(id), Routes: routes})
		if ses := s.state.Meta.Sessions[id]; ses != nil && ses.Leaving && len(s.state.Owned(id)) == 0 {
			s.apply(state.Leave{Session: id, Incarnation: ses.Incarnation, Done: true})
			delete(s.heard, id)
			st.push(&seqpb.SessionDown{Goodbye: &seqpb.Goodbye{}})
			delete(s.streams, id)
		}
	}
}

func (s *Store) fewest(but ids.SessionID) (best ids.SessionID) {
	least := int(s.cfg.Sections) + 1
	for id := range s.heard {
		if n := len(s.state.Owned(id)); id != but && s.state.Eligible(id) && (n < least || n == least && id < best) {
			best, least = id, n
		}
	}
	return best
}

func (s *Store) place() {
	for i := range s.state.Meta.Sections {
		if s.state.Meta.Sections[i].Owner != 0 {
			continue
		}
		if to := s.fewest(0); to != 0 {
			s.apply(state.Assign{Assignments: []state.Assignment{{Section: ids.Section(i), To: to}}})
		}
	}
}

func (s *Store) directive(id ids.SessionID) *seqpb.Directive {
	d := &seqpb.Directive{Version: s.version, Frozen: s.frozen(), Leaving: s.leave}
	for _, o := range s.state.Owned(id) {
		d.Section = append(d.Section, uint32(o.Section))
		d.Epoch = append(d.Epoch, uint64(o.Epoch))
		if to, ok := s.revoking[o.Section]; ok {
			d.Revoke = append(d.Revoke, uint32(o.Section))
			ses := s.state.Meta.Sessions[to]
			if ses == nil {
				d.NextSession, d.NextEpoch = append(d.NextSession, 0), append(d.NextEpoch, 0)
				continue
			}
			d.NextSession, d.NextEpoch = append(d.NextSession, uint64(to)), append(d.NextEpoch, uint64(o.Epoch+1))
			d.Next = append(d.Next, &seqpb.NextOwner{Session: uint64(to), Addr: ses.Addr})
		}
	}
	return d
}
