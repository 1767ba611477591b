package sim

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// trap is one way to a duplicate, a reordering or an undeclared loss, played
// step by step. With its guard switched off the checkers must see it; with the
// guard on, the same play must pass.
type trap struct {
	name string
	// want is what one of the violations must say.
	want string
	// also is what another one must say, if it is set.
	also string
	bugs Bugs
	tune func(*Options)
	play func(*play)
}

const one, two = uint64(1), uint64(2)

// signal is closed once.
type signal struct {
	once sync.Once
	c    chan struct{}
}

func newSignal() *signal { return &signal{c: make(chan struct{})} }

func (s *signal) set() { s.once.Do(func() { close(s.c) }) }

func (s *signal) seen(within time.Duration) bool {
	select {
	case <-s.c:
		return true
	case <-time.After(within):
		return false
	}
}

// loseFirst has the first message that is meant get lost, and says when it did.
func (p *play) loseFirst(meant func(*Message) bool) *signal {
	lost := newSignal()
	p.net.Hook(func(m *Message) Verdict {
		if meant(m) {
			select {
			case <-lost.c:
			default:
				lost.set()
				return Verdict{Drop: true}
			}
		}
		return Verdict{Exact: true}
	})
	return lost
}

func shortIdle(o *Options)   { o.Sections, o.IdleAfter = 1, 400*time.Millisecond }
func oneSection(o *Options)  { o.Sections = 1 }
func noAllocs(o *Options)    { o.Sections, o.Allocs, o.Spares = 1, -1, 1 }
func threeAllocs(o *Options) { o.Sections, o.Allocs = 1, 3 }

var traps = []trap{
	{
		// Return(57) is copied; the key is acquired again and issues 58…80; then the copy arrives.
		name: "accept a delayed hand-back",
		want: "duplicate",
		bugs: Bugs{Store: storesvr.Bugs{State: state.Bugs{SkipBatchFence: true}}},
		tune: noAllocs,
		play: func(p *play) {
			again := newSignal()
			p.net.Hook(func(m *Message) Verdict {
				if !m.Reply && has(batchOf(m), state.OpReturn) {
					return Verdict{Again: again.c}
				}
				return Verdict{Exact: true}
			})
			o := p.playOwner("a9", nil)
			o.extend(one, 0)
			o.issue(one, 1, 57)
			o.seq++
			_, ok := o.execute(o.seq, state.Op{Kind: state.OpReturn, Key: o.key(one), Cur: 57})
			p.must(ok, "the return was refused")
			o.extend(one, 57)
			o.issue(one, 58, 23)
			again.set()
			time.Sleep(100 * time.Millisecond)
			p.expectLoss("a9")
			o.die()
			p.startAlloc("a1")
			p.mustAlloc(one, 5, 10*time.Second)
		},
	},
	{
		// The same, but the Return is of a process that died and was resumed.
		name: "accept a dead incarnation's hand-back",
		want: "duplicate",
		bugs: Bugs{Store: storesvr.Bugs{State: state.Bugs{SkipIncarnationFence: true}}},
		tune: noAllocs,
		play: func(p *play) {
			release := newSignal()
			p.net.Hook(func(m *Message) Verdict {
				if !m.Reply && has(batchOf(m), state.OpReturn) {
					return Verdict{Hold: release.c}
				}
				return Verdict{Exact: true}
			})
			o := p.playOwner("a9", nil)
			o.extend(one, 0)
			o.issue(one, 1, 57)
			// Several sendings of it were lost, so its sequence is ahead.
			p.background(func() { o.execute(o.seq+5, state.Op{Kind: state.OpReturn, Key: o.key(one), Cur: 57}) })
			time.Sleep(100 * time.Millisecond)
			o.cancel()
			next := p.playOwner("a9", o)
			p.must(next.session == o.session && next.inc == o.inc+1, "not resumed")
			next.extend(one, 57)
			next.issue(one, 58, 23)
			release.set()
			time.Sleep(100 * time.Millisecond)
			p.expectLoss("a9")
			next.die()
			p.startAlloc("a1")
			p.mustAlloc(one, 5, 10*time.Second)
		},
	},
	{
		name: "skip the epoch fence",
		want: "duplicate",
		bugs: Bugs{Store: storesvr.Bugs{State: state.Bugs{SkipEpochFence: true}}},
		tune: threeAllocs,
		play: func(p *play) {
			lost := p.loseFirst(func(m *Message) bool { return m.Reply && has(batchOf(m.Request), state.OpRelease) })
			// Its owner has nothing to hand back, so the release is all of the batch.
			node := p.ownerOf(0)
			p.background(func() { p.drain(node, nil) })
			p.must(lost.seen(5*time.Second), "the section was not released")
			p.mustAlloc(one, 20, time.Second)
			time.Sleep(5 * time.Second) // the release is repeated
			p.mustAlloc(one, 5, 5*time.Second)
		},
	},
	{
		name: "reuse an epoch",
		want: "duplicate",
		bugs: Bugs{Store: storesvr.Bugs{State: state.Bugs{ReuseEpoch: true}}},
		tune: oneSection,
		play: func(p *play) {
			node, _ := p.mustAlloc(one, 5, 5*time.Second)
			p.expectLoss(node)
			p.crashAlloc(node, true)
			p.mustAlloc(one, 5, 10*time.Second)
		},
	},
	{
		name: "ignore the clean mark",
		want: "excess loss",
		bugs: Bugs{Store: storesvr.Bugs{State: state.Bugs{IgnoreCleanMark: true}}},
		tune: oneSection,
		play: func(p *play) {
			node, _ := p.mustAlloc(one, 5, 5*time.Second)
			lost := p.loseFirst(func(m *Message) bool { return m.Reply && has(batchOf(m.Request), state.OpExtend) })
			p.background(func() { _, _ = p.alloc(node, two, 1, 200*time.Millisecond) })
			p.must(lost.seen(time.Second), "the key was not acquired")
			time.Sleep(300 * time.Millisecond)
			p.drain(node, nil)
			p.mustAlloc(two, 1, 5*time.Second)
		},
	},
	{
		// Cut off from the StoreSvrs but not from its clients, it goes on issuing after its sections were given away.
		name: "ignore the lease",
		want: "reorder",
		bugs: Bugs{Alloc: allocsvr.Bugs{IgnoreLease: true}},
		tune: oneSection,
		play: func(p *play) {
			node, _ := p.mustAlloc(one, 5, 5*time.Second)
			p.expectLoss(node)
			p.cutOff(node, p.storeIDs)
			p.mustAllocAt(p.other(node), one, 5, 10*time.Second)
			_, _ = p.alloc(node, one, 1, 100*time.Millisecond)
		},
	},
	{
		// A reboot finds a stale copy of the arena; the lease has not run out yet.
		name: "trust any arena",
		want: "duplicate",
		bugs: Bugs{Alloc: allocsvr.Bugs{Arena: arena.Bugs{TrustAnyArena: true}}},
		tune: oneSection,
		play: func(p *play) {
			node, _ := p.mustAlloc(one, 5, 5*time.Second)
			h := p.allocs[node]
			stale := h.region.Clone()
			_, err := p.alloc(node, one, 20, time.Second)
			p.must(err == nil, "%v", err)
			p.expectLoss(node)
			p.crashAlloc(node, false)
			<-h.ended
			_ = stale.Close(false) // the lock died with the process
			h.region, h.boot = stale, h.boot+1
			p.startAlloc(node)
			p.mustAlloc(one, 5, 10*time.Second)
		},
	},
	{
		// A leader without a quorum acknowledges a raise; its successor knows nothing of it.
		name: "acknowledge before commit",
		want: "duplicate",
		bugs: Bugs{Store: storesvr.Bugs{AckBeforeCommit: true}},
		tune: oneSection,
		play: func(p *play) {
			node, _ := p.mustAlloc(one, 5, 5*time.Second)
			time.Sleep(100 * time.Millisecond)
			p.cutOff(p.leader(), p.storeIDs)
			if first, err := p.alloc(node, two, 5, 100*time.Millisecond); err == nil {
				p.t.Logf("issued %d on an uncommitted bound", first)
			}
			p.expectLoss(node)
			p.crashAlloc(node, true)
			p.mustAllocAt(p.other(node), two, 5, 15*time.Second)
		},
	},
	{
		// The new leader takes a section from an owner that it has not heard from, and that still holds its lease.
		name: "skip the new leader's wait",
		want: "reorder",
		bugs: Bugs{Store: storesvr.Bugs{SkipLeaderWait: true}},
		tune: func(o *Options) { o.Sections, o.TTL = 1, 6*time.Second },
		play: func(p *play) {
			node, _ := p.mustAlloc(one, 5, 10*time.Second)
			time.Sleep(2 * time.Second)
			leader := p.leader()
			var rest []string
			for _, s := range p.storeIDs {
				if s != leader {
					rest = append(rest, s)
				}
			}
			p.expectLoss(node)
			p.cutOff(node, rest)
			p.crashStore(leader, false)
			p.mustAllocAt(p.other(node), one, 5, 20*time.Second)
			_, _ = p.alloc(node, one, 1, 100*time.Millisecond)
		},
	},
	{
		// The exact last numbers are on their way to the StoreSvr while callers still get more.
		name: "hand back before closing",
		want: "duplicate",
		bugs: Bugs{Alloc: allocsvr.Bugs{HandBackBeforeClose: true}},
		tune: oneSection,
		play: func(p *play) {
			node, _ := p.mustAlloc(one, 5, 5*time.Second)
			// The section is busy all the while.
			over := make(chan struct{})
			for range 8 {
				p.background(func() {
					for {
						select {
						case <-over:
							return
						default:
							_, _ = p.alloc(node, one, 1, 50*time.Millisecond)
						}
					}
				})
			}
			time.Sleep(20 * time.Millisecond)
			p.drain(node, nil)
			close(over)
			p.mustAlloc(one, 5, 5*time.Second)
		},
	},
	{
		// Half handed back, it is told to keep the section.
		name: "reopen a closing section",
		want: "duplicate",
		bugs: Bugs{Alloc: allocsvr.Bugs{ReopenClosing: true}},
		tune: oneSection,
		play: func(p *play) {
			node, _ := p.mustAlloc(one, 5, 5*time.Second)
			release, held := newSignal(), newSignal()
			var mu sync.Mutex
			var revoking *seqpb.Directive
			p.net.Hook(func(m *Message) Verdict {
				if d, ok := m.Body.(*seqpb.SessionDown); ok && m.To == node && len(d.GetDirective().GetRevoke()) > 0 {
					mu.Lock()
					revoking = d.Directive
					mu.Unlock()
				}
				if !m.Reply && has(batchOf(m), state.OpReturn) {
					held.set()
					return Verdict{Hold: release.c}
				}
				return Verdict{Exact: true}
			})
			p.background(func() { p.drain(node, nil) })
			p.must(held.seen(5*time.Second), "nothing was handed back")
			mu.Lock()
			keep := &seqpb.Directive{Version: revoking.Version, Section: revoking.Section, Epoch: revoking.Epoch}
			mu.Unlock()
			p.tell(node, &seqpb.SessionDown{Directive: keep})
			time.Sleep(100 * time.Millisecond)
			_, _ = p.alloc(node, one, 20, 200*time.Millisecond)
			release.set()
			p.mustAllocAt(p.other(node), one, 5, 10*time.Second)
		},
	},
	{
		// The first copy of the hand-back is lost. An owner that has already
		// forgotten the key has nothing to repeat, and the epoch ends cleanly without it.
		name: "forget a key before its hand-back is acknowledged",
		want: "duplicate",
		bugs: Bugs{Alloc: allocsvr.Bugs{ForgetBeforeAck: true}},
		tune: oneSection,
		play: func(p *play) {
			node, _ := p.mustAlloc(one, 5, 5*time.Second)
			lost := p.loseFirst(func(m *Message) bool { return !m.Reply && has(batchOf(m), state.OpReturn) })
			p.drain(node, nil)
			p.must(lost.seen(time.Second), "nothing was handed back")
			p.mustAllocAt(p.other(node), one, 5, 10*time.Second)
		},
	},
	{
		// The same by an AllocSvr that hands an idle key back: a copy of the hand-back arrives when the key is in use again.
		name: "accept a delayed hand-back of an idle key",
		want: "duplicate",
		bugs: Bugs{Store: storesvr.Bugs{State: state.Bugs{SkipBatchFence: true}}},
		tune: shortIdle,
		play: func(p *play) {
			again, returned := newSignal(), newSignal()
			p.net.Hook(func(m *Message) Verdict {
				if !m.Reply && has(batchOf(m), state.OpReturn) {
					returned.set()
					return Verdict{Again: again.c}
				}
				return Verdict{Exact: true}
			})
			node, _ := p.mustAlloc(one, 57, 5*time.Second)
			p.must(returned.seen(5*time.Second), "the key was not handed back")
			p.mustAllocAt(node, one, 23, time.Second)
			again.set()
			time.Sleep(100 * time.Millisecond)
			p.expectLoss(node)
			p.crashAlloc(node, true)
			p.mustAllocAt(p.other(node), one, 5, 10*time.Second)
		},
	},
	{
		// And an owner that has forgotten an idle key whose hand-back is lost believes that it is new.
		name: "forget an idle key before its hand-back is acknowledged",
		want: "duplicate",
		bugs: Bugs{Alloc: allocsvr.Bugs{ForgetBeforeAck: true}},
		tune: shortIdle,
		play: func(p *play) {
			node, _ := p.mustAlloc(one, 57, 5*time.Second)
			lost := p.loseFirst(func(m *Message) bool { return !m.Reply && has(batchOf(m), state.OpReturn) })
			p.must(lost.seen(5*time.Second), "the key was not handed back")
			p.mustAllocAt(node, one, 5, 10*time.Second)
		},
	},
	{
		// An answer is lost; its caller is told that the call was not sent, and the SDK
		// calls again without a request id.
		name: "tell a lost answer as not sent",
		want: "told that nothing was allocated",
		also: "undeclared hole",
		bugs: Bugs{LostIsNotSent: true},
		play: func(p *play) {
			c, err := p.dial("c2", p.opt.Seed)
			p.must(err == nil, "%v", err)
			defer c.Close()
			lost := p.loseFirst(func(m *Message) bool { return m.Reply && m.Method == "Alloc" && m.To == "c2" })
			p.sdkAlloc(c, one, 5*time.Second)
			p.must(lost.seen(time.Second), "no answer was lost")
			p.must(p.sdkAlloc(c, one, 5*time.Second).Outcome == history.OK, "not served")
		},
	},
}

// playSeeds is how many times each trap is survived. attempts is for a guard that is
// off: elections, timers and what runs beside are not the script's, so a play may
// need some: of "reuse an epoch", with the race detector, not every play is caught,
// since the lost numbers may be declared before the key is touched again.
const (
	playSeeds = 3
	attempts  = 20
)

// caught reports whether the violations say all that they must.
func (tr *trap) caught(violations []string) bool {
	says := func(want string) bool {
		return slices.ContainsFunc(violations, func(v string) bool { return strings.Contains(v, want) })
	}
	return says(tr.want) && says(tr.also)
}

// needGuards plays each trap with its guard off until that is noticed.
func needGuards(t *testing.T, traps []trap) {
	for _, tr := range traps {
		t.Run(tr.name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= attempts; seed++ {
				found := runPlay(t, seed, tr, tr.bugs)
				if tr.caught(found) {
					t.Logf("caught with seed %d: %q", seed, found)
					return
				}
				t.Logf("seed %d: no %s and %s among %q", seed, tr.want, tr.also, found)
			}
			t.Errorf("the guard was off, and nothing was noticed in %d plays", attempts)
		})
	}
}

// survive plays each trap with its guard on.
func survive(t *testing.T, traps []trap) {
	for _, tr := range traps {
		t.Run(tr.name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= playSeeds; seed++ {
				for _, v := range runPlay(t, seed, tr, Bugs{}) {
					t.Errorf("seed %d: %s", seed, v)
				}
			}
		})
	}
}

func TestEachGuardIsNeeded(t *testing.T)  { needGuards(t, traps) }
func TestEachTrapIsSurvived(t *testing.T) { survive(t, traps) }

// The answers to two resumptions are lost, and then the leader that gave them. Its
// successor did not see them; still the process is who it says, and loses nothing.
func TestLostAnswersToResumptionsCostNoNumber(t *testing.T) {
	lost := trap{name: "lost resumptions", tune: oneSection, play: func(p *play) {
		node, _ := p.mustAlloc(one, 5, 5*time.Second)
		first, twice := p.leader(), newSignal()
		var dropped atomic.Int32
		p.net.Hook(func(m *Message) Verdict {
			if d, ok := m.Body.(*seqpb.SessionDown); ok && d.Welcome != nil && m.From == first && m.To == node {
				if dropped.Add(1) == 2 {
					twice.set()
				}
				return Verdict{Drop: true}
			}
			return Verdict{Exact: true}
		})
		p.crashAlloc(node, false)
		p.startAlloc(node)
		p.must(twice.seen(2*time.Second), "%d answers were lost", dropped.Load())
		p.crashStore(first, false)
		p.mustAlloc(one, 5, 10*time.Second)
	}}
	for seed := uint64(1); seed <= playSeeds; seed++ {
		for _, v := range runPlay(t, seed, lost, Bugs{}) {
			t.Errorf("seed %d: %s", seed, v)
		}
	}
}

// routesAt is the version of its Set's routes that a node tells.
func (p *play) routesAt(node string) uint64 {
	p.t.Helper()
	rep, err := seqConn{p.net, p.from, rpcAddr(node)}.GetRoutes(context.Background(), &seqpb.RoutesRequest{})
	p.must(err == nil, "routes of %s: %v", node, err)
	return rep.Sets[0].Version
}

// A node that missed a word of routes can make nothing of the next one: it has
// itself told all, in the same session and without losing a number.
func TestANodeThatMissedARouteIsToldAllOfThem(t *testing.T) {
	missed := trap{name: "missed route", tune: func(o *Options) { o.Sections, o.Allocs, o.Spares = 4, 2, 2 }, play: func(p *play) {
		node, _ := p.mustAlloc(one, 5, 5*time.Second)
		time.Sleep(time.Second)
		var dropped atomic.Int32
		p.net.Hook(func(m *Message) Verdict {
			d, ok := m.Body.(*seqpb.SessionDown)
			return Verdict{Exact: true, Drop: ok && d.Routes != nil && m.To == node && dropped.Add(1) == 1}
		})
		p.startAlloc("a3")
		time.Sleep(time.Second)
		p.startAlloc("a4")
		time.Sleep(time.Second)
		p.must(dropped.Load() > 1, "%s was told of routes %d times", node, dropped.Load())
		if at, others := p.routesAt(node), p.routesAt("a4"); at != others {
			p.t.Errorf("%s has routes of version %d, others %d", node, at, others)
		}
		p.mustAlloc(one, 5, 5*time.Second)
	}}
	for _, v := range runPlay(t, 1, missed, Bugs{}) {
		t.Error(v)
	}
}
