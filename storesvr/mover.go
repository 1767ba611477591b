package storesvr

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// moverPause follows a step of a move that failed; it doubles up to moverPauseMax.
	moverPause    = 100 * time.Millisecond
	moverPauseMax = 3 * time.Second
	// freezeCalm goes before a freeze, so that those who apply what was sent ahead do not
	// have the cores that the freeze needs.
	freezeCalm = 5 * time.Millisecond
	// homeEvery is how often the directory's leader looks at what nobody waits for.
	homeEvery = 500 * time.Millisecond
)

// driveMoves runs a mover for each move under way, as the leader of the
// directory's Set. All that a mover knows is in the directory or can be asked
// again, so a new leader's movers go on where this one's are.
func (l *leadership) driveMoves() {
	var movers sync.WaitGroup
	defer movers.Wait()
	movers.Go(l.homeDuties)
	running := map[sets.MoveID]bool{}
	for l.ctx.Err() == nil {
		changed := l.n.changed.wait()
		for _, m := range l.n.movesUnderWay() {
			if running[m.ID] {
				continue
			}
			running[m.ID] = true // it runs until the move is over, or this leadership is
			v := &mover{l: l, n: l.n, id: m.ID, from: m.From, to: m.To, prog: l.n.moves.begin(m.ID),
				log: l.log.With(zap.Uint64("move", uint64(m.ID)), zap.String("from", m.From), zap.String("to", m.To))}
			movers.Go(v.run)
		}
		select {
		case <-l.ctx.Done():
		case <-changed:
		}
	}
}

func (n *Node) movesUnderWay() (out []sets.Move) {
	_ = n.fsm.read(func(st *state.State) {
		if d := st.Meta.Directory; d != nil {
			for _, m := range d.Moves {
				if !m.Over() {
					out = append(out, m)
				}
			}
		}
	})
	return out
}

// homeDuties keeps the directory's own Set reachable in the map, and lets all
// Sets forget moves that are over.
func (l *leadership) homeDuties() {
	ended := map[string]sets.MoveID{}
	for pause(l.ctx, homeEvery) {
		l.tellStores()
		l.endMoves(ended)
	}
}

func (l *leadership) endMoves(ended map[string]sets.MoveID) {
	var through sets.MoveID
	var names []string
	_ = l.n.fsm.read(func(st *state.State) {
		if d := st.Meta.Directory; d != nil {
			through, names = d.EndedThrough(), d.Map.Sets
		}
	})
	for _, set := range names {
		if ended[set] >= through {
			continue
		}
		rep, err := l.n.commandSet(l.ctx, set, state.EndMove{Move: through})
		if err == nil && rep.Refusal == state.OK {
			ended[set] = through
		}
	}
}

// mover drives one move: it opens parts and takes each through its steps. Every
// step may be repeated, and none is begun before what it rests on is committed.
type mover struct {
	l        *leadership
	n        *Node
	log      *zap.Logger
	id       sets.MoveID
	from, to string
	prog     *progress

	// cur is the copy of the part at hand, next that of the one after, which ahead has brought.
	cur, next *slice
	ahead     *ahead
	size      partSize
	// calls says whether keys are called in; ahead has it.
	calls calls
	// rest is on while the part at hand is frozen, or about to be.
	rest rest
	// maybeSealed: the part at hand is sealed for all that this mover knows. What is
	// sealed cannot thaw by itself.
	maybeSealed bool
	// frozenAt is when the part at hand was frozen; zero if it was not by this mover.
	frozenAt time.Time
	// hot: most of the last part's records had changed since they were copied.
	hot bool
	// changed records of the part at hand had to be brought under its freeze.
	changed int
	// steps are how long the steps of the freeze took.
	steps freezeSteps
	// took is how long the last activation took: it is part of a freeze, and known
	// only after the commit that notes how long the freeze was.
	took time.Duration
}

func (v *mover) run() {
	v.log.Info("move is driven")
	ctx, cancel := context.WithCancel(v.l.ctx)
	counted := make(chan struct{})
	go func() { defer close(counted); v.count(ctx) }()
	defer func() { cancel(); <-counted }()
	v.size.begin(v.n.cfg.PartKeys)
	defer func() { v.ahead.stop() }()
	v.maybeSealed = true // by whoever drove it before
	wait := moverPause
	var failing time.Time
	for v.l.ctx.Err() == nil {
		m, ok := v.move()
		if !ok || m.Over() {
			v.log.Info("move is over", zap.Stringer("state", m.State), zap.Uint64("keys", m.Keys), zap.Uint32("parts", m.Parts))
			return
		}
		retry, err := v.step(&m)
		if err == nil && !retry {
			wait, failing = moverPause, time.Time{}
			continue
		}
		if v.l.ctx.Err() != nil {
			return
		}
		if failing.IsZero() {
			failing = time.Now()
		}
		if err != nil && m.PartState == sets.PartOpen && v.maybeSealed && time.Since(failing) > v.n.cfg.FreezeTimeout {
			err = v.abort(m.Part, err)
		}
		if err != nil && v.prog.failed(err) {
			v.log.Warn("move does not get on", zap.Error(err))
		}
		if !v.pause(wait) {
			return
		}
		wait = min(2*wait, moverPauseMax)
	}
}

// count finds out how many keys there are, for people to see how far the move is.
func (v *mover) count(ctx context.Context) {
	m, ok := v.move()
	if !ok {
		return
	}
	v.prog.from(m.Keys)
	if left, err := v.n.countRanges(ctx, v.from, m.Left(), v.rest.wait); err == nil {
		v.prog.outOf(m.Keys + left)
	}
}

// pause ends early when something happens to the move.
func (v *mover) pause(d time.Duration) bool {
	before, _ := v.move()
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		changed := v.n.changed.wait()
		if m, _ := v.move(); m.State != before.State {
			return v.l.ctx.Err() == nil
		}
		select {
		case <-v.l.ctx.Done():
			return false
		case <-t.C:
			return true
		case <-changed:
		}
	}
}

func (v *mover) move() (m sets.Move, ok bool) { return v.n.moveOf(v.id) }

// step does what is next; retry: nothing is wrong, but the next attempt is to wait.
func (v *mover) step(m *sets.Move) (retry bool, err error) {
	switch m.PartState {
	case sets.PartNone:
		return false, v.open(m)
	case sets.PartOpen:
		return false, v.carry(m)
	case sets.PartCommitted:
		return false, v.finish(m)
	case sets.PartAborted:
		return true, v.undo(m)
	}
	return false, nil
}

// open begins the next part. No position is split.
func (v *mover) open(m *sets.Move) error {
	v.prog.state("copying")
	s, err := v.nextSlice(m.Left()[0])
	if err != nil {
		return err
	}
	s.part = m.Part + 1
	v.cur, v.maybeSealed = s, false
	return v.direct(state.OpenPart{Move: v.id, Part: s.part, Range: s.r})
}

// carry takes an open part from wherever it stands to the commit.
func (v *mover) carry(m *sets.Move) error {
	s, err := v.copyOf(m)
	if err != nil {
		return err
	}
	v.prog.state("copying")
	missing := s.records
	if s.there {
		missing = nil
	}
	// From here, so that what was sent ahead is out of the way when the freeze begins.
	v.rest.begin()
	if err := v.importAll(s, missing, true); err != nil {
		return v.orAbort(s, err)
	}
	s.there = true
	if v.ahead != nil && !pause(v.l.ctx, freezeCalm) {
		return v.l.ctx.Err()
	}
	if rest := restOf(m); v.ahead == nil && len(rest) > 0 {
		v.ahead = v.beginAhead(rest)
	}
	v.prog.state("frozen")
	if v.frozenAt.IsZero() {
		v.frozenAt = time.Now()
	}
	v.steps, v.maybeSealed = freezeSteps{at: v.frozenAt}, true
	err = v.command(v.from, state.Freeze{Move: v.id, Part: s.part, Range: s.r, To: v.to})
	if err != nil {
		return v.orAbort(s, err)
	}
	v.steps.freeze = v.steps.passed()
	if err := v.awaitVacated(s); err != nil {
		return v.orAbort(s, err)
	}
	v.steps.vacate = v.steps.passed()
	// Nothing changes of a range that is vacated, so it is compared while it is sealed.
	// The commit waits for both.
	err = both(
		func() error { return v.seal(s) },
		func() error { return v.equal(s) },
	)
	if err != nil {
		return v.orAbort(s, err)
	}
	v.steps.compare = v.steps.passed()
	frozen := time.Since(v.frozenAt) + v.took
	err = v.direct(state.CommitPart{
		Move: v.id, Part: s.part, Keys: s.keys, Checksum: s.checksum,
		FrozenUS: uint32(min(frozen.Microseconds(), 1<<32-1)),
	})
	v.steps.commit = v.steps.passed()
	return err
}

func (v *mover) seal(s *slice) error {
	if v.n.cfg.Bugs.SkipSeal {
		return nil
	}
	err := v.command(v.from, state.Seal{Move: v.id, Part: s.part})
	if err == nil {
		v.prog.state("sealed")
	}
	return err
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// finish tells both sides the verdict.
func (v *mover) finish(m *sets.Move) error {
	v.prog.state("committed")
	began := time.Now()
	var p sets.Published
	_ = v.n.fsm.read(func(st *state.State) { p = st.Meta.Published })
	err := both(
		func() error { return v.command(v.to, state.Activate{Move: v.id, Part: m.Part, Published: p}) },
		func() error { return v.command(v.from, state.Drop{Move: v.id, Part: m.Part, Published: p}) },
	)
	if err != nil {
		return err
	}
	v.took = time.Since(began)
	if !v.frozenAt.IsZero() {
		frozen := time.Since(v.frozenAt)
		v.n.counts.frozen.observe(frozen)
		if v.cur != nil {
			v.size.note(v.cur.keys, v.steps.growing(), frozen)
			v.log.Debug("part moved", zap.Uint32("part", uint32(m.Part)), zap.Uint64("keys", v.cur.keys), zap.Float64("frozen_ms", ms(frozen)),
				zap.Float64("freeze_ms", ms(v.steps.freeze)), zap.Float64("vacate_ms", ms(v.steps.vacate)),
				zap.Float64("compare_ms", ms(v.steps.compare)),
				zap.Float64("commit_ms", ms(v.steps.commit)), zap.Float64("activate_ms", ms(v.took)), zap.Bool("hot", v.hot), zap.Int("changed", v.changed))
		}
	}
	v.n.counts.parts.Add(1)
	v.frozenAt, v.cur, v.maybeSealed = time.Time{}, nil, false
	v.rest.end()
	v.prog.moved()
	end := state.EndPart{Move: v.id, Part: m.Part, NowMS: time.Now().UnixMilli()}
	if v.next == nil {
		v.next = v.ahead.ready()
	}
	if rest := restOf(m); v.next != nil && len(rest) > 0 && v.next.begins(rest[0]) {
		v.cur, v.next = v.next, v.next.split(int(v.size.keys.Load()))
		end.Next = v.cur.r
	}
	return v.direct(end)
}

// undo tells both sides that the part was aborted.
func (v *mover) undo(m *sets.Move) error {
	if m.State == sets.MoveAborting {
		v.prog.state("aborting")
	}
	v.frozenAt, v.cur, v.maybeSealed = time.Time{}, nil, false
	v.rest.end()
	v.endAhead()
	err := both(
		func() error { return v.command(v.from, state.Thaw{Move: v.id, Part: m.Part, Forced: true}) },
		func() error { return v.command(v.to, state.Discard{Move: v.id, Part: m.Part}) },
	)
	if err != nil {
		return err
	}
	v.n.counts.partsAborted.Add(1)
	return v.direct(state.EndPart{Move: v.id, Part: m.Part, NowMS: time.Now().UnixMilli()})
}

func both(a, b func() error) error {
	c := make(chan error, 1)
	go func() { c <- a() }()
	err := b()
	if other := <-c; err == nil {
		err = other
	}
	return err
}

// refusedError is a command that a Set refused.
type refusedError struct {
	set     string
	command string
	refusal state.Refusal
	detail  string
}

func (e *refusedError) Error() string {
	text := "set \"" + e.set + "\" refused " + e.command + ": " + e.refusal.String()
	if e.detail != "" {
		text += ": " + e.detail
	}
	return text
}

// at says what comes next, to tests.
func (v *mover) at(step string) {
	if f := v.n.cfg.atStep; f != nil {
		f(step)
	}
}

// command commits a command in a Set.
func (v *mover) command(set string, c state.Command) error {
	return v.commandIn(v.l.ctx, set, c)
}

func (v *mover) commandIn(ctx context.Context, set string, c state.Command) error {
	v.at(commandText(c))
	rep, err := v.n.commandSet(ctx, set, c)
	if err == nil && rep.Refusal != state.OK {
		err = &refusedError{set, commandText(c), rep.Refusal, rep.Detail}
	}
	return err
}

// direct commits a command of the directory.
func (v *mover) direct(c state.Command) error {
	v.at(commandText(c))
	rep, err := v.n.propose(v.l.ctx, c)
	if err == nil && rep.Refusal != state.OK {
		err = &refusedError{v.n.cfg.Set, commandText(c), rep.Refusal, rep.Detail}
	}
	return err
}

// orAbort aborts the part if it can never be committed any more; any other error
// is tried again as it is.
func (v *mover) orAbort(s *slice, err error) error {
	if !hopeless(err) {
		return err
	}
	return v.abort(s.part, err)
}

// abort has the directory give the open part up, so that its source may thaw even what
// it has sealed.
func (v *mover) abort(p sets.Part, why error) error {
	v.log.Warn("part is aborted", zap.Uint32("part", uint32(p)), zap.Error(why))
	v.prog.failed(why)
	return v.direct(state.AbortPart{Move: v.id, Part: p, Reason: why.Error()})
}

func hopeless(err error) bool {
	switch e := err.(type) { //nolint:errorlint // nothing wraps them on the way here
	case *refusedError:
		return slices.Contains([]state.Refusal{state.RefusedThawed, state.RefusedRange, state.RefusedInvalid, state.RefusedOldPart}, e.refusal)
	case *DifferError:
		return true
	}
	return false
}
