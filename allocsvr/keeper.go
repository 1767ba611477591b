package allocsvr

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr/handover"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// keeper opens, closes and hands back the sections of one world. One goroutine
// does all of it, so the life of a section is a straight line: what the leader
// wants (the last directive) is compared with what there is, again and again.
type keeper struct {
	s    *Server
	w    *world
	log  *zap.Logger
	stop context.CancelFunc
	done chan struct{}
	wake chan struct{} // holds one token

	mu        sync.Mutex
	directive *seqpb.Directive // the last one
	events    []keeperEvent
	carried   uint64 // version of the last directive carried out

	// The goroutine's own:
	releases map[ids.Section]*release
	// over has, per section, the epoch that was released or dropped last, so
	// that a directive from before that does not bring it back.
	over map[ids.Section]ids.Epoch
	// doubts counts, per section, the releases in a row that ended in doubt. Such a
	// section stays in releases until retry fires.
	doubts map[ids.Section]int
	retry  *time.Timer
	// outstanding ops of releases: the group that is closed now.
	outstanding int
	freezes     freezes

	carrier *handover.Carrier // nil: nothing is carried along
}

// keeperEvent is something that happened to a section elsewhere.
type keeperEvent struct {
	sec   ids.Section
	epoch ids.Epoch
	// rel is the release that came to its end; nil: drop the section.
	rel *release
	// then is all there is to do, if it is set.
	then func()
}

func newKeeper(s *Server, w *world) *keeper {
	ctx, stop := context.WithCancel(context.Background())
	k := &keeper{
		s: s, w: w, stop: stop, log: s.log.With(zap.Uint64("session", uint64(w.session))),
		done: make(chan struct{}), wake: make(chan struct{}, 1),
		releases: map[ids.Section]*release{}, over: map[ids.Section]ids.Epoch{}, doubts: map[ids.Section]int{},
	}
	if s.cfg.DialPeer != nil {
		k.carrier = k.newCarrier()
	}
	go k.run(ctx)
	return k
}

// close ends the goroutine; what is half handed back stays so.
func (k *keeper) close() {
	k.stop()
	<-k.done
	if k.carrier != nil {
		k.carrier.Close()
	}
}

// directed takes over what the leader wants now.
func (k *keeper) directed(d *seqpb.Directive) {
	k.mu.Lock()
	k.directive = d
	k.mu.Unlock()
	k.nudge()
}

// drop reports that a section turned out not to be ours.
func (k *keeper) drop(sec ids.Section, e ids.Epoch) { k.event(keeperEvent{sec: sec, epoch: e}) }

func (k *keeper) event(e keeperEvent) {
	k.mu.Lock()
	k.events = append(k.events, e)
	k.mu.Unlock()
	k.nudge()
}

func (k *keeper) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// carriedOut is the version of the last directive that was carried out, in so
// far as it does not take the store's help.
func (k *keeper) carriedOut() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.carried
}

func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	k.retry = time.NewTimer(time.Hour)
	defer k.retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.retry.C:
			k.retryDoubtful()
		case <-k.wake:
		}
		k.mu.Lock()
		d, events := k.directive, k.events
		k.events = nil
		k.mu.Unlock()
		if k.w.lost.Load() {
			continue
		}
		for _, e := range events {
			k.happened(ctx, e)
		}
		if d != nil {
			k.carryOut(ctx, d)
			k.mu.Lock()
			k.carried = d.Version
			k.mu.Unlock()
			k.w.told.Store(true)
		}
		k.s.changed()
	}
}

// carryOut makes the sections what the directive says, as far as it can be done now.
func (k *keeper) carryOut(ctx context.Context, d *seqpb.Directive) {
	// First, so that nothing of a frozen range is served when its section opens.
	if k.freezes.directed(d.Frozen) && !k.s.cfg.Bugs.ServeFrozen {
		k.w.freeze(k.freezes.shut(), k.s.hub.Load())
	}
	k.w.early.directed(d)
	owned := make(map[ids.Section]ids.Epoch, len(d.Section))
	for i, no := range d.Section {
		if i < len(d.Epoch) && int(no) < len(k.w.sections) {
			owned[ids.Section(no)] = ids.Epoch(d.Epoch[i])
		}
	}
	revoked := make(map[ids.Section]bool, len(d.Revoke))
	for _, no := range d.Revoke {
		revoked[ids.Section(no)] = true
	}
	var dropped []ids.Section
	for i := range k.w.sections {
		sec := &k.w.sections[i]
		if _, ok := owned[sec.no]; ok {
			continue
		}
		// A section under release is left to it: the store's answer ends it.
		if ph, _ := sec.state(); ph == serving || ph == absent && k.s.arena.SectionKeys(sec.no) > 0 {
			dropped = append(dropped, sec.no)
		}
	}
	k.dropAll(ctx, dropped)

	var handBack []ids.Section
	for i := range k.w.sections {
		no := k.w.sections[i].no
		e, ok := owned[no]
		if !ok || e <= k.over[no] {
			continue
		}
		if k.open(ctx, no, e); k.wantsRelease(no, e, revoked[no]) {
			handBack = append(handBack, no)
		}
	}
	next := nextOwners(d)
	if k.carrier != nil {
		k.carrier.Plan(next)
	}
	k.startReleases(ctx, handBack, next)
	k.freezeRanges(ctx)
}

// open makes a section that the leader gave us serve, unless it has been closed in this epoch.
func (k *keeper) open(ctx context.Context, no ids.Section, e ids.Epoch) {
	sec := &k.w.sections[no]
	ph, at := sec.state()
	switch {
	case k.releases[no] != nil, ph != absent && at >= e:
		return // closing stays closing, also if it is no longer revoked
	case ph != absent:
		// Ours again in a later epoch, and we did not know that the last was over.
		k.dropAll(ctx, []ids.Section{no})
	}
	stored, closed := k.s.arena.Section(no)
	switch {
	case stored > e:
		return
	case stored == e && closed:
		// A process before us closed it; it remains to be handed back.
		sec.mu.Lock()
		sec.phase, sec.epoch = closing, e
		sec.mu.Unlock()
		return
	case stored < e:
		if err := k.s.arena.OpenSection(no, e); err != nil {
			k.log.Error("section cannot be opened", zap.Uint32("section", uint32(no)), zap.Uint64("epoch", uint64(e)), zap.Error(err))
			return
		}
		k.takeOver(no, e)
	}
	if sec.start(k.w, e) {
		k.log.Debug("section opened", zap.Uint32("section", uint32(no)), zap.Uint64("epoch", uint64(e)))
	}
}

// wantsRelease: the section is to be handed back and that has not begun.
func (k *keeper) wantsRelease(no ids.Section, e ids.Epoch, revoked bool) bool {
	if rel := k.releases[no]; rel != nil {
		if !revoked && k.s.cfg.Bugs.ReopenClosing {
			k.reopen(rel)
		}
		return false
	}
	ph, at := k.w.sections[no].state()
	return at == e && (ph == closing || ph == serving && revoked)
}

// dropAll forgets sections that are not ours any more. Nothing is handed back:
// the store would refuse it.
func (k *keeper) dropAll(ctx context.Context, secs []ids.Section) {
	if len(secs) == 0 {
		return
	}
	for _, no := range secs {
		k.w.sections[no].shut()
	}
	if k.s.arena.Guard().Wait(ctx) != nil {
		return
	}
	for _, no := range secs {
		sec := &k.w.sections[no]
		_, e := sec.state()
		k.log.Warn("section dropped", zap.Uint32("section", uint32(no)), zap.Uint64("epoch", uint64(e)))
		k.forget(no, e)
	}
}

// forget ends a section's life in memory and in the arena. Nobody is inside any more.
func (k *keeper) forget(no ids.Section, e ids.Epoch) {
	k.over[no] = max(k.over[no], e)
	delete(k.releases, no)
	delete(k.doubts, no)
	k.s.arena.CloseSection(no)
	k.s.arena.FreeSection(no)
	k.w.sections[no].gone()
}

func (k *keeper) happened(ctx context.Context, e keeperEvent) {
	if e.then != nil {
		e.then()
		return
	}
	if e.rel == nil {
		if ph, at := k.w.sections[e.sec].state(); ph != absent && at == e.epoch && k.releases[e.sec] == nil {
			k.dropAll(ctx, []ids.Section{e.sec})
		}
		return
	}
	k.released(ctx, e.rel)
}
