package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// ErrNoLeader: no leader of the StoreSvr group is known at the moment.
var ErrNoLeader = errors.New("no leader of the store group is reachable")

// RefusalError is a store's answer that it did not carry out the call.
type RefusalError struct {
	Addr    string
	Code    seqpb.RefusalCode
	Message string
}

func (e *RefusalError) Error() string {
	return fmt.Sprintf("store %s: %v: %s", e.Addr, e.Code, e.Message)
}

func (s *Session) linkNow() (*link, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link, s.changed
}

// await waits until there is a leader.
func (s *Session) await(ctx context.Context) (*link, error) {
	for {
		l, changed := s.linkNow()
		if l != nil {
			return l, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrNoLeader, ctx.Err())
		}
	}
}

// call bounds ctx by the life of the link, and by its patience.
func (l *link) call(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	stop := context.AfterFunc(l.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// Execute commits one batch under the session's present identity and the next
// sequence number. It waits for a leader. After an error the outcome is
// unknown; asking again is safe since every op may be repeated. One call at a time.
func (s *Session) Execute(ctx context.Context, ops []state.Op) ([]state.OpResult, error) {
	l, err := s.await(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.seq++
	seq := s.seq
	s.mu.Unlock()
	ctx, done := l.call(ctx)
	defer done()
	rep, err := l.conn.Execute(ctx, &seqpb.ExecuteRequest{
		ClusterId: l.id.ClusterID,
		Batch: state.EncodeCommand(nil, state.Batch{
			Session: l.id.Session, Incarnation: l.id.Incarnation, Seq: seq, Ops: ops,
		}),
	})
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", l.addr, err)
	}
	if err := s.checkRefusal(l, rep.Refusal); err != nil {
		return nil, err
	}
	out, err := state.DecodeReply(rep.Outcome)
	if err != nil {
		return nil, fmt.Errorf("store %s: outcome: %w", l.addr, err)
	}
	switch out.Refusal {
	case state.OK:
		return out.Results, nil
	case state.RefusedOldBatch:
		// A late copy, or one overtaken by its own repetition: outgrow it.
		return nil, fmt.Errorf("store %s: batch %d is old", l.addr, seq)
	}
	// The session has ended, or another incarnation has it: the leader will say
	// which when it is greeted again.
	s.giveUp(l, fmt.Errorf("batch refused: %v", out.Refusal))
	return nil, fmt.Errorf("store %s: batch refused: %v", l.addr, out.Refusal)
}

// Read asks what the durable tier knows of keys. away are the indices of those
// that the Set may not speak for now. It does not wait for a leader.
func (s *Session) Read(ctx context.Context, keys []ids.Key) (vals []ids.Seq, away []int, err error) {
	l, _ := s.linkNow()
	if l == nil {
		return nil, nil, ErrNoLeader
	}
	req := &seqpb.ReadRequest{ClusterId: l.id.ClusterID, Keys: make([]*seqpb.KeyRef, len(keys))}
	for i, k := range keys {
		req.Keys[i] = keyRef(k)
	}
	ctx, done := l.call(ctx)
	defer done()
	rep, err := l.conn.Read(ctx, req)
	if err != nil {
		return nil, nil, fmt.Errorf("store %s: read: %w", l.addr, err)
	}
	if err := s.checkRefusal(l, rep.Refusal); err != nil {
		return nil, nil, err
	}
	if len(rep.Value) != len(keys) {
		return nil, nil, fmt.Errorf("store %s: read: %d values for %d keys", l.addr, len(rep.Value), len(keys))
	}
	vals = make([]ids.Seq, len(keys))
	for i, v := range rep.Value {
		vals[i] = ids.Seq(v)
	}
	for _, i := range rep.Elsewhere {
		if int(i) >= len(keys) {
			return nil, nil, fmt.Errorf("store %s: read: key %d of %d is elsewhere", l.addr, i, len(keys))
		}
		away = append(away, int(i))
	}
	return vals, away, nil
}

// ErrElsewhere: the Set may not speak for the key now.
var ErrElsewhere = errors.New("the key's range is another set's, or on its way there")

// ReadGaps asks for the declared holes of a key. It does not wait for a leader.
func (s *Session) ReadGaps(ctx context.Context, k ids.Key) ([]*seqpb.Gap, error) {
	l, _ := s.linkNow()
	if l == nil {
		return nil, ErrNoLeader
	}
	ctx, done := l.call(ctx)
	defer done()
	rep, err := l.conn.ReadGaps(ctx, &seqpb.ReadGapsRequest{Key: keyRef(k)})
	if err != nil {
		return nil, fmt.Errorf("store %s: read gaps: %w", l.addr, err)
	}
	if err := s.checkRefusal(l, rep.Refusal); err != nil {
		return nil, err
	}
	if rep.Elsewhere {
		return nil, ErrElsewhere
	}
	return rep.Gaps, nil
}

func keyRef(k ids.Key) *seqpb.KeyRef {
	return &seqpb.KeyRef{Space: uint32(k.Space), Hi: k.Hi, Lo: k.Lo}
}

// checkRefusal turns a refusal into an error, and gives the link up when it
// says that this store is not, or no longer, the one to talk to.
func (s *Session) checkRefusal(l *link, r *seqpb.Refusal) error {
	if r == nil || r.Code == seqpb.RefusalCode_REFUSAL_NONE {
		return nil
	}
	err := &RefusalError{Addr: l.addr, Code: r.Code, Message: r.Message}
	switch r.Code {
	case seqpb.RefusalCode_REFUSAL_NOT_LEADER, seqpb.RefusalCode_REFUSAL_SESSION_EXPIRED, seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER:
		s.giveUp(l, err)
	}
	return err
}

// giveUp has the stream of a link replaced, unless that happened already.
func (s *Session) giveUp(l *link, err error) {
	s.post(l.ctx, event{gen: l.gen, broken: err})
}
