package sim

import (
	"context"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

func twoSets(o *Options) { o.Sets, o.Sections, o.PartKeys = 2, 1, 100 }

func briefFreeze(o *Options) {
	twoSets(o)
	o.FreezeTimeout = 300 * time.Millisecond
}

// commandOf decodes what one Set has another one commit; nil for any other message.
func commandOf(m *Message) state.Command {
	if m == nil {
		return nil
	}
	q, ok := m.Body.(*seqpb.SetCommandRequest)
	if !ok {
		return nil
	}
	c, err := state.DecodeCommand(q.Command)
	if err != nil {
		return nil
	}
	return c
}

func is[C state.Command](m *Message) bool {
	_, ok := commandOf(m).(C)
	return ok
}

// uids are all of them.
func uids() sets.Range { return sets.Whole(ids.DefaultSpaces()[0]) }

// migrateAll moves all uids to a Set, and waits for the end of that.
func (p *play) migrateAll(to string) {
	p.t.Helper()
	from := map[string]string{home: away, away: home}[to]
	p.migrate(from, to, []sets.Range{uids()}, 0, nil)
	d := p.directory()
	m := d.Directory.Moves[len(d.Directory.Moves)-1]
	p.must(m.To == to && m.State == sets.MoveDone, "move %d to %s ended %v: %s", m.ID, m.To, m.State, m.Reason)
}

// mustAllocIn repeats at the AllocSvrs of a Set until a call succeeds.
func (p *play) mustAllocIn(set string, uid uint64, n uint32, patience time.Duration) (node string) {
	p.t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, id := range p.runningOf(p.setNamed(set)) {
			if _, err = p.alloc(id, uid, n, 500*time.Millisecond); err == nil {
				return id
			}
		}
	}
	p.must(false, "set %s does not serve uid %d: %v", set, uid, err)
	return ""
}

// deaf has the AllocSvrs of a Set hear nothing new of routes.
func (p *play) deaf(m *Message, set string) bool {
	d, ok := m.Body.(*seqpb.SessionDown)
	return ok && d.Routes != nil && p.setOf(m.From).name == set
}

// forge sends a command to the leader of a Set, as if a driver of moves had, and
// answers whether it was carried out.
func (p *play) forge(set string, c state.Command) bool {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	rep, err := setsConn{p.net, p.from, rpcAddr(p.leaderOf(p.setNamed(set)))}.Command(ctx, &seqpb.SetCommandRequest{
		ClusterId: clusterID, Set: set, Command: state.EncodeCommand(nil, c),
	})
	p.must(err == nil && !refused(rep.Refusal), "a forged %T: %v %v", c, rep, err)
	out, err := state.DecodeReply(rep.Outcome)
	p.must(err == nil, "%v", err)
	return out.Refusal == state.OK
}

// await waits until the newest state of a Set is as wanted.
func (p *play) await(set, what string, is func(*state.Meta) bool) {
	p.t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if l := p.leaderOf(p.setNamed(set)); l != "" {
			found := false
			_ = p.stores[l].node.Inspect(func(_ uint64, st *state.State) { found = is(&st.Meta) })
			if found {
				return
			}
		}
	}
	p.must(false, "set %s: no %s", set, what)
}

var moveTraps = []trap{
	{
		// The source's owner says that it holds nothing of the range, and goes on.
		name: "serve what is frozen",
		want: "duplicate", also: "two sets serve",
		bugs: Bugs{Alloc: allocsvr.Bugs{ServeFrozen: true}},
		tune: twoSets,
		play: func(p *play) {
			node := p.mustAllocIn(home, one, 5, 5*time.Second)
			p.net.Hook(func(m *Message) Verdict { return Verdict{Exact: true, Drop: p.deaf(m, home)} })
			p.migrateAll(away)
			p.mustAllocIn(away, one, 5, 5*time.Second)
			time.Sleep(2 * custodyEvery)
			_, _ = p.alloc(node, one, 5, 100*time.Millisecond)
		},
	},
	{
		// An owner with an old Set map acquires a key anew whose range is another Set's by now.
		name: "acquire what is another set's",
		want: "duplicate", also: "two sets serve",
		bugs: Bugs{Store: storesvr.Bugs{State: state.Bugs{ExtendOutsideRanges: true}}},
		tune: twoSets,
		play: func(p *play) {
			node := p.mustAllocIn(home, one, 5, 5*time.Second)
			p.net.Hook(func(m *Message) Verdict { return Verdict{Exact: true, Drop: p.deaf(m, home)} })
			p.migrateAll(away)
			p.mustAllocIn(away, one, 5, 5*time.Second)
			_, _ = p.alloc(node, one, 5, 100*time.Millisecond)
			time.Sleep(2 * custodyEvery)
		},
	},
	{
		// The word that the source has sealed is late. A source that may still thaw by
		// itself does so, and then the part is committed.
		name: "thaw after the seal",
		want: "duplicate", also: "two sets own",
		bugs: Bugs{Store: storesvr.Bugs{ThawSealed: true, State: state.Bugs{ThawAfterSeal: true}}},
		tune: briefFreeze,
		play: func(p *play) {
			p.mustAllocIn(home, one, 5, 5*time.Second)
			p.migrateAll(away)
			node := p.mustAllocIn(away, one, 5, 5*time.Second)
			sealed := newSignal()
			p.net.Hook(func(m *Message) Verdict {
				if m.Reply && is[state.Seal](m.Request) {
					return Verdict{Hold: sealed.c}
				}
				return Verdict{Exact: true, Drop: p.deaf(m, away)}
			})
			p.background(func() {
				p.await(away, "seal", func(m *state.Meta) bool { return m.Out[2] != nil && m.Out[2].Phase == state.OutSealed })
				time.Sleep(time.Second)
				sealed.set()
			})
			p.migrate(away, home, []sets.Range{uids()}, 0, tenSeconds())
			p.mustAllocIn(home, one, 5, 5*time.Second)
			_, _ = p.alloc(node, one, 5, 100*time.Millisecond)
		},
	},
	{
		// A part is committed that its source has only frozen, and may take back.
		name: "commit before the seal",
		want: "two sets own",
		bugs: Bugs{Store: storesvr.Bugs{SkipSeal: true}},
		tune: briefFreeze,
		play: func(p *play) {
			p.mustAllocIn(home, one, 5, 5*time.Second)
			p.migrate(home, away, []sets.Range{uids()}, 0, tenSeconds())
			p.mustAllocIn(away, one, 5, 5*time.Second)
		},
	},
	{
		// What an owner has issued is on its way back when its range is sealed without it.
		name: "seal before all have vacated",
		want: "duplicate",
		bugs: Bugs{Store: storesvr.Bugs{State: state.Bugs{SealWhileWaiting: true}}},
		tune: twoSets,
		play: func(p *play) {
			p.mustAllocIn(home, one, 57, 5*time.Second)
			back := newSignal()
			p.net.Hook(func(m *Message) Verdict {
				if b := batchOf(m); !m.Reply && (has(b, state.OpReturn) || has(b, state.OpVacate)) {
					return Verdict{Hold: back.c}
				}
				return Verdict{Exact: true}
			})
			p.background(func() { p.migrate(home, away, []sets.Range{uids()}, 0, tenSeconds()) })
			p.await(home, "freeze", func(m *state.Meta) bool { return m.Out[1] != nil && m.Out[1].Phase == state.OutFrozen })
			p.forge(home, state.Seal{Move: 1, Part: 1})
			time.Sleep(500 * time.Millisecond)
			for _, id := range p.runningOf(p.setNamed(away)) {
				_, _ = p.alloc(id, one, 5, 100*time.Millisecond)
			}
			back.set()
			p.mustAllocIn(away, one, 5, 10*time.Second)
		},
	},
	{
		// A copy of an import comes when the range is served already.
		name: "accept a delayed import",
		want: "duplicate",
		bugs: Bugs{Store: storesvr.Bugs{State: state.Bugs{ImportStalePart: true}}},
		tune: twoSets,
		play: func(p *play) {
			p.mustAllocIn(home, one, 5, 5*time.Second)
			again := newSignal()
			p.net.Hook(func(m *Message) Verdict {
				if !m.Reply && is[state.Import](m) {
					return Verdict{Again: again.c}
				}
				return Verdict{Exact: true}
			})
			p.migrateAll(away)
			node := p.mustAllocIn(away, one, 20, 5*time.Second)
			again.set()
			time.Sleep(100 * time.Millisecond)
			p.expectLoss(node)
			p.crashAlloc(node, true)
			p.mustAllocIn(away, one, 5, 10*time.Second)
		},
	},
	{
		// A copy of what was read before the freeze comes after what was read behind it.
		name: "let the last import win",
		want: "duplicate",
		bugs: Bugs{Store: storesvr.Bugs{State: state.Bugs{OverwriteFloors: true}}},
		tune: twoSets,
		play: func(p *play) {
			p.mustAllocIn(home, one, 5, 5*time.Second)
			again, arrived := newSignal(), newSignal()
			first := true
			p.net.Hook(func(m *Message) Verdict {
				switch {
				case !m.Reply && is[state.Import](m) && first:
					first = false
					return Verdict{Again: again.c}
				case !m.Reply && is[state.Activate](m):
					again.set()
					return Verdict{Hold: arrived.c}
				}
				return Verdict{Exact: true}
			})
			p.background(func() {
				p.must(again.seen(10*time.Second), "the part was not committed")
				time.Sleep(100 * time.Millisecond)
				arrived.set()
			})
			p.migrateAll(away)
			p.mustAllocIn(away, one, 5, 5*time.Second)
		},
	},
	{
		// Somebody says that a part was committed which is still to be frozen.
		name: "activate before the commit",
		want: "two sets own",
		bugs: Bugs{Store: storesvr.Bugs{State: state.Bugs{ActivateBeforeCommit: true}}},
		tune: twoSets,
		play: func(p *play) {
			p.mustAllocIn(home, one, 5, 5*time.Second)
			p.migrateAll(away)
			freeze := newSignal()
			p.net.Hook(func(m *Message) Verdict {
				if !m.Reply && is[state.Freeze](m) {
					return Verdict{Hold: freeze.c}
				}
				return Verdict{Exact: true}
			})
			p.background(func() { p.migrate(away, home, []sets.Range{uids()}, 0, tenSeconds()) })
			p.await(home, "import", func(m *state.Meta) bool { return m.In[2] != nil && m.In[2].Phase == state.InImporting })
			p.forge(home, state.Activate{Move: 2, Part: 1, Published: p.directory().Published})
			time.Sleep(100 * time.Millisecond)
			freeze.set()
		},
	},
}

// tenSeconds is closed after so long: a move that a switched-off rule has spoilt need not end.
func tenSeconds() <-chan struct{} {
	c := make(chan struct{})
	time.AfterFunc(10*time.Second, func() { close(c) })
	return c
}

// Moves between Sets have guards of their own. That two Sets have a key shows in
// who could issue its numbers, and in what the clients saw.
func TestEachGuardOfMovesIsNeeded(t *testing.T)  { needGuards(t, moveTraps) }
func TestEachTrapOfMovesIsSurvived(t *testing.T) { survive(t, moveTraps) }
