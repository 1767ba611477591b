package storesvr

import (
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/storesvr/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A wiped voter has forgotten what it acknowledged. Together with a node that
// was cut off meanwhile it is a majority, and must not become one that lacks
// what was committed.
func TestAWipedVoterDoesNotHelpElectAStaleLeader(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		first := g.leader()
		w := newWriter(t, first)
		time.Sleep(time.Second)
		var witness, stale string
		for id := range g.nodes {
			switch {
			case id == first.cfg.ID:
			case witness == "":
				witness = id
			default:
				stale = id
			}
		}
		g.setCut(stale, true)
		w.extend(0, 10, 100) // committed by first and witness
		g.kill(first.cfg.ID)
		g.kill(witness)
		g.disks[witness] = MemoryStorage()
		g.start(witness)
		g.setCut(stale, false)
		time.Sleep(20 * time.Second)
		for id, n := range g.nodes {
			if ok, term := n.Leading(); ok {
				t.Fatalf("%s leads in term %d without what was committed", id, term)
			}
		}
		g.start(first.cfg.ID)
		lead := g.leader()
		var r state.Record
		_ = lead.fsm.read(func(st *state.State) { r, _ = st.Keys.Get(uid(5)) })
		if r.Bound != 100 {
			t.Fatalf("the new leader lacks what was committed: %+v", r)
		}
		sameState(t, lead, g.nodes[witness], 10)
		eventually(t, 10*time.Second, "the wiped one joins", func() bool { return g.disks[witness].Identity.Identity().Joined })
	})
}

// lossyWire loses the entries that loses says.
type lossyWire struct {
	*raft.InmemTransport
	loses *atomic.Pointer[func(raft.ServerID, *raft.AppendEntriesRequest) bool]
}

func (w lossyWire) AppendEntries(id raft.ServerID, to raft.ServerAddress, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	if f := w.loses.Load(); f != nil && (*f)(id, q) {
		return io.EOF
	}
	return w.InmemTransport.AppendEntries(id, to, q, r)
}

func (w lossyWire) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// A wiped voter that was fed the beginning of a long log holds entries of the
// leader's term, and still lacks others of that term that it had acknowledged. It
// must neither vote for a node that was cut off meanwhile nor get its vote.
func TestAWipedVoterThatCaughtUpHalfWayDecidesNoElection(t *testing.T) {
	const entries = 4 * raftMaxAppendEntries
	for _, c := range []struct {
		name     string
		staleHas int
	}{
		{"the stale one has more", 2 * raftMaxAppendEntries},
		{"the stale one has less", 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var loses atomic.Pointer[func(raft.ServerID, *raft.AppendEntriesRequest) bool]
				g := emptyGroup(t, 3, nil)
				g.wrap = func(tr raft.Transport) raft.Transport { return lossyWire{tr.(*raft.InmemTransport), &loses} }
				g.startAll()
				defer time.Sleep(30 * time.Second)
				defer g.stop()
				first := g.leader()
				w := newWriter(t, first)
				time.Sleep(time.Second)
				var witness, stale string
				for id := range g.nodes {
					switch {
					case id == first.cfg.ID:
					case witness == "":
						witness = id
					default:
						stale = id
					}
				}
				for i := range entries {
					if i == c.staleHas {
						time.Sleep(time.Second)
						g.setCut(stale, true)
					}
					w.extend(uint64(i), uint64(i+1), 100)
				}
				// The end was committed by first and witness. Now the stale one is there
				// for first to lead on, but gets none of it.
				loss := func(to raft.ServerID, q *raft.AppendEntriesRequest) bool {
					if to == raft.ServerID(stale) {
						return len(q.Entries) > 0
					}
					return q.PrevLogEntry > 1 && q.PrevLogEntry < entries/2
				}
				loses.Store(&loss)
				g.setCut(stale, false)
				time.Sleep(time.Second)
				g.kill(witness)
				g.disks[witness] = MemoryStorage()
				g.start(witness)
				eventually(t, 20*time.Second, "the wiped one has the beginning", func() bool {
					last, _ := g.disks[witness].Log.LastIndex()
					return last >= raftMaxAppendEntries
				})
				g.kill(first.cfg.ID)
				loses.Store(nil)
				time.Sleep(20 * time.Second)
				for id, n := range g.nodes {
					if ok, term := n.Leading(); ok {
						t.Fatalf("%s leads in term %d without what was committed", id, term)
					}
				}
				g.start(first.cfg.ID)
				sameState(t, g.leader(), g.nodes[witness], entries)
				eventually(t, 10*time.Second, "the wiped one joins", func() bool { return g.disks[witness].Identity.Identity().Joined })
			})
		})
	}
}

func TestANewGroupElectsALeaderSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		g := newGroup(t, 5, nil)
		defer time.Sleep(30 * time.Second)
		defer g.stop()
		g.leader()
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("the first leader was ready after %v", took)
		}
		eventually(t, 10*time.Second, "all have joined", func() bool {
			for _, d := range g.disks {
				if !d.Identity.Identity().Joined {
					return false
				}
			}
			return true
		})
	})
}

// The first leader never catches up with anybody, and must vote all the same
// when its successor stands for election.
func TestTheFirstLeaderVotesForTheNextOne(t *testing.T) {
	simulate(t, 3, nil, func(t *testing.T, g *group) {
		first := g.leader()
		eventually(t, 10*time.Second, "all have joined", func() bool {
			for _, d := range g.disks {
				if !d.Identity.Identity().Joined {
					return false
				}
			}
			return true
		})
		// Without the third, the successor needs the first leader's vote.
		g.kill(g.follower().cfg.ID)
		heir := g.follower().cfg
		if err := first.raft.LeadershipTransferToServer(raft.ServerID(heir.ID), raft.ServerAddress(heir.RaftAddr)).Error(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if next := g.leader(); next == first {
			t.Fatal("the first leader leads again: it has refused its vote")
		}
	})
}

// deadConns is a transport with connections that a restarted peer has left dead.
type deadConns struct {
	*raft.InmemTransport
	dead *atomic.Int32
}

func (d deadConns) TimeoutNow(id raft.ServerID, to raft.ServerAddress, q *raft.TimeoutNowRequest, r *raft.TimeoutNowResponse) error {
	if d.dead.Add(-1) >= 0 {
		return io.EOF
	}
	return d.InmemTransport.TimeoutNow(id, to, q, r)
}

func TestDeadConnectionsDoNotKeepLeadershipFromBeingHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dead atomic.Int32
		g := emptyGroup(t, 3, nil)
		g.wrap = func(tr raft.Transport) raft.Transport { return deadConns{tr.(*raft.InmemTransport), &dead} }
		g.startAll()
		defer time.Sleep(30 * time.Second)
		defer g.stop()
		lead := g.leader()
		time.Sleep(time.Second)
		_, term := lead.Leading()
		dead.Store(raftPool)
		lead.handOn(t.Context())
		if now := lead.raft.State(); now == raft.Leader || lead.raft.CurrentTerm() == term {
			t.Fatalf("it is %v still, in term %d", now, lead.raft.CurrentTerm())
		}
	})
}

// replier is a transport of which only the consumer is used.
type replier struct {
	raft.Transport
	c chan raft.RPC
}

func (r *replier) Consumer() <-chan raft.RPC          { return r.c }
func (r *replier) SetHeartbeatHandler(func(raft.RPC)) {}

func TestANewcomerListensOnlyToWhatItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &replier{c: make(chan raft.RPC)}
		joined := 0
		n := newNewcomer(in, time.Second, zap.NewNop(), func() error { joined++; return nil })
		defer n.Close()
		go func() { // Raft, who says yes to everything
			for {
				select {
				case rpc := <-n.Consumer():
					switch rpc.Command.(type) {
					case *raft.AppendEntriesRequest:
						rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
					default:
						rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
					}
				case <-n.stop:
					return
				}
			}
		}()
		ask := func(cmd any) error {
			c := make(chan raft.RPCResponse, 1)
			in.c <- raft.RPC{Command: cmd, RespChan: c}
			return (<-c).Error
		}
		expect := func(what string, want error, cmd any) {
			t.Helper()
			if err := ask(cmd); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		entry := []*raft.Log{{Index: 10, Term: 7}}
		expect("an unborn candidate", nil, &raft.RequestVoteRequest{Term: 2, LastLogIndex: 1, LastLogTerm: 1})
		expect("a candidate with a past", errNotJoined, &raft.RequestVoteRequest{Term: 8, LastLogIndex: 9, LastLogTerm: 7})
		expect("its pre-vote", errNotJoined, &raft.RequestPreVoteRequest{Term: 8, LastLogIndex: 9, LastLogTerm: 7})
		expect("a transfer of leadership", errNotJoined, &raft.TimeoutNowRequest{})
		expect("a leader at once", errStillQuiet, &raft.AppendEntriesRequest{Term: 7})
		expect("a group's first leader", nil, &raft.AppendEntriesRequest{Term: 2})
		time.Sleep(time.Second)
		expect("a leader later", nil, &raft.AppendEntriesRequest{Term: 8, PrevLogEntry: 9, PrevLogTerm: 7, Entries: entry})
		if joined != 0 {
			t.Fatal("joined by an entry of an older term")
		}
		expect("its heartbeat", nil, &raft.AppendEntriesRequest{Term: 8})
		if joined != 0 {
			t.Fatal("joined by a heartbeat")
		}
		many := make([]*raft.Log, wholeBelow)
		for i := range many {
			many[i] = &raft.Log{Index: uint64(10 + i), Term: 7}
		}
		expect("a part of a long log", nil, &raft.AppendEntriesRequest{Term: 7, PrevLogEntry: 9, PrevLogTerm: 7, Entries: many})
		if joined != 0 {
			t.Fatal("joined by a part of the log")
		}
		expect("an entry of its own term", nil, &raft.AppendEntriesRequest{Term: 7, PrevLogEntry: 9, PrevLogTerm: 7, Entries: entry})
		if joined != 1 {
			t.Fatal("not joined")
		}
		expect("a candidate with a past, now", nil, &raft.RequestVoteRequest{Term: 8, LastLogIndex: 9, LastLogTerm: 7})
	})
}

func TestCommittedEntriesAreNotGivenUpForAnotherHistory(t *testing.T) {
	var failed error
	log := raft.NewInmemStore()
	for i := uint64(1); i <= 10; i++ {
		if err := log.StoreLog(&raft.Log{Index: i, Term: 1}); err != nil {
			t.Fatal(err)
		}
	}
	g := &logGuard{LogStore: log, fail: func(err error) { failed = err }, applied: func() uint64 { return 7 }}
	if err := g.DeleteRange(8, 10); err != nil || failed != nil {
		t.Fatalf("uncommitted entries: %v %v", err, failed)
	}
	if err := g.DeleteRange(1, 3); err != nil || failed != nil {
		t.Fatalf("old entries: %v %v", err, failed)
	}
	var lost *LostQuorumError
	if err := g.DeleteRange(6, 7); !errors.As(err, &lost) || !errors.As(failed, &lost) {
		t.Fatalf("committed entries: %v %v", err, failed)
	}
	if last, _ := log.LastIndex(); last != 7 {
		t.Fatalf("the log ends at %d", last)
	}
}

// brokenOnce is a log whose next change fails, as a disk does that reports what it
// has lost once and then forgets it.
type brokenOnce struct {
	*raft.InmemStore
	broken bool
}

func (b *brokenOnce) StoreLogs(logs []*raft.Log) error {
	if b.broken {
		b.broken = false
		return io.ErrShortWrite
	}
	return b.InmemStore.StoreLogs(logs)
}

func TestALogThatFailedOnceIsNotWrittenAnyMore(t *testing.T) {
	fails := 0
	log := &brokenOnce{InmemStore: raft.NewInmemStore()}
	g := &logGuard{LogStore: log, fail: func(error) { fails++ }, applied: func() uint64 { return 0 }}
	if err := g.StoreLog(&raft.Log{Index: 1}); err != nil {
		t.Fatal(err)
	}
	log.broken = true
	for range 2 {
		if err := g.StoreLog(&raft.Log{Index: 2}); !errors.Is(err, io.ErrShortWrite) {
			t.Fatalf("stored after a failure: %v", err)
		}
		if err := g.DeleteRange(1, 1); !errors.Is(err, io.ErrShortWrite) {
			t.Fatalf("deleted after a failure: %v", err)
		}
	}
	if last, _ := log.LastIndex(); last != 1 || fails != 1 {
		t.Fatalf("the log ends at %d, %d failures told", last, fails)
	}
}

// With AckBeforeCommit a client is told of numbers that no quorum ever had.
func TestNothingIsAcknowledgedWithoutAQuorum(t *testing.T) {
	for _, bug := range []bool{false, true} {
		simulate(t, 3, func(c *Config) { c.Bugs.AckBeforeCommit = bug }, func(t *testing.T, g *group) {
			n := g.leader()
			w := newWriter(t, n)
			id := metaOf(t, n).Genesis.ClusterID
			g.setCut(n.cfg.ID, true)
			rep, err := executeBatch(n, id, state.Batch{Session: w.session.ID, Incarnation: 1, Seq: 1,
				Ops: []state.Op{{Kind: state.OpExtend, Key: uid(1), Epoch: 1, Step: 10}}})
			if acked := err == nil && rep.Results[0].Refusal == state.OK; acked != bug {
				t.Errorf("bug %v: acknowledged %v (%v)", bug, acked, err)
			}
			g.setCut(n.cfg.ID, false)
		})
	}
}
