package storesvr

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// commandTimeout bounds a command that another Set is to commit.
	commandTimeout = 3 * time.Second
	// verdictAfter is how long a part may stand sealed, or importing, before this Set
	// asks the directory itself: whoever drove the move may be gone.
	verdictAfter = 500 * time.Millisecond
)

// partID names a part that this Set has a hand in.
type partID struct {
	move sets.MoveID
	part sets.Part
	// phase is what is waited in.
	phase string
}

// standing is a part that waits for something.
type standing struct {
	partID
	// frozen: it may thaw by itself. Else the verdict says how it goes on.
	frozen, source bool
}

// resolveParts sees to it that no part stands still for ever: what is frozen for
// too long is thawed, and of what only the directory can release its verdict is
// asked. Since when is counted by this leader alone: one that has just begun
// waits the whole time again, which is safe.
func (l *leadership) resolveParts() {
	due := map[partID]time.Time{}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for l.ctx.Err() == nil {
		changed := l.n.changed.wait()
		next := time.Hour
		now, still := time.Now(), map[partID]time.Time{}
		for _, s := range l.standing() {
			at, known := due[s.partID]
			if !known {
				at = now.Add(l.patience(s))
			}
			if !at.After(now) {
				l.resolve(s)
				at = time.Now().Add(verdictAfter)
			}
			still[s.partID] = at
			next = min(next, max(time.Until(at), stepMin))
		}
		due = still
		timer.Reset(next)
		select {
		case <-l.ctx.Done():
		case <-changed:
		case <-timer.C:
		}
	}
}

func (l *leadership) patience(s standing) time.Duration {
	if s.frozen {
		return l.n.cfg.FreezeTimeout
	}
	return verdictAfter
}

func (l *leadership) standing() (out []standing) {
	_ = l.n.fsm.read(func(st *state.State) {
		for _, id := range sortedKeys(st.Meta.Out) {
			o := st.Meta.Out[id]
			if o.Phase == state.OutFrozen || o.Phase == state.OutSealed {
				frozen := o.Phase == state.OutFrozen || l.n.cfg.Bugs.ThawSealed
				out = append(out, standing{partID{id, o.Part, o.Phase.String()}, frozen, true})
			}
		}
		for _, id := range sortedKeys(st.Meta.In) {
			if in := st.Meta.In[id]; in.Phase == state.InImporting {
				out = append(out, standing{partID{id, in.Part, in.Phase.String()}, false, false})
			}
		}
	})
	return out
}

// resolve carries out what can be done about a part that stands still.
func (l *leadership) resolve(s standing) {
	log := l.log.With(zap.Uint64("move", uint64(s.move)), zap.Uint32("part", uint32(s.part)))
	var c state.Command
	if s.frozen {
		log.Warn("the range was frozen for too long and is served here again")
		c = state.Thaw{Move: s.move, Part: s.part}
	} else {
		v, p, err := l.verdict(s.move, s.part)
		if err != nil {
			log.Warn("part waits for the directory's verdict", zap.String("phase", s.phase), zap.Error(err))
			return
		}
		if c = verdictCommand(s, v, p); c == nil {
			return
		}
		if v == sets.VerdictOver.String() && !l.learn(p) {
			return
		}
		log.Info("part ends by the directory's verdict", zap.String("verdict", v), zap.String("phase", s.phase))
	}
	rep, err := l.n.propose(l.ctx, c)
	if err != nil && l.ctx.Err() == nil || rep.Refusal != state.OK {
		log.Warn("part could not be ended", zap.String("command", commandText(c)), zap.Stringer("refusal", rep.Refusal), zap.Error(err))
	}
}

// verdictCommand is what a verdict means for one side; nil while there is none.
func verdictCommand(s standing, v string, p sets.Published) state.Command {
	switch v {
	case sets.VerdictCommitted.String():
		if s.source {
			return state.Drop{Move: s.move, Part: s.part, Published: p}
		}
		return state.Activate{Move: s.move, Part: s.part, Published: p}
	case sets.VerdictAborted.String():
		if s.source {
			return state.Thaw{Move: s.move, Part: s.part, Forced: true}
		}
		return state.Discard{Move: s.move, Part: s.part}
	case sets.VerdictOver.String():
		// No part ends without the word of its source.
		if !s.source {
			return state.Discard{Move: s.move, Part: s.part}
		}
	}
	return nil
}

// learn has this Set know a map that the directory has, or a newer one.
func (l *leadership) learn(p sets.Published) bool {
	if l.n.hasDirectory() {
		return true
	}
	rep, err := l.n.propose(l.ctx, state.PutMap{Published: p})
	if err != nil && l.ctx.Err() == nil || rep.Refusal != state.OK {
		l.log.Warn("the directory's map could not be kept", zap.Stringer("refusal", rep.Refusal), zap.Error(err))
	}
	return err == nil && rep.Refusal == state.OK
}

// verdict asks the directory, wherever it is.
func (l *leadership) verdict(move sets.MoveID, part sets.Part) (v string, p sets.Published, err error) {
	n := l.n
	q := &seqpb.VerdictRequest{ClusterId: n.clusterID(), Move: uint64(move), Part: uint32(part)}
	rep, err := askSet(l.ctx, n, n.directorySet(), setCallTimeout, func(ctx context.Context, c SetsConn) (*seqpb.VerdictReply, error) { return c.Verdict(ctx, q) })
	if err != nil {
		return "", p, err
	}
	if len(rep.Published) > 0 {
		p, err = sets.DecodePublished(rep.Published)
	}
	return rep.Verdict, p, err
}
