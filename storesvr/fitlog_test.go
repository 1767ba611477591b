package storesvr

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/storesvr/disk"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// logsToFit are an empty log in memory and one on disk.
func logsToFit(t *testing.T) map[string]raft.LogStore {
	t.Helper()
	d, err := disk.OpenRaftLog(t.TempDir(), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return map[string]raft.LogStore{"memory": raft.NewInmemStore(), "disk": d}
}

func storeTerms(t *testing.T, log raft.LogStore, from uint64, terms []uint64) {
	t.Helper()
	for i, term := range terms {
		if term == 0 {
			continue
		}
		if err := log.StoreLog(&raft.Log{Index: from + uint64(i), Term: term}); err != nil {
			t.Fatal(err)
		}
	}
}

// termsOf answers the terms of entries 10 to 19; 0 is none.
func termsOf(t *testing.T, log raft.LogStore) (terms []uint64) {
	t.Helper()
	for i := uint64(10); i < 20; i++ {
		var l raft.Log
		if err := log.GetLog(i, &l); err != nil && !errors.Is(err, raft.ErrLogNotFound) {
			t.Fatal(err)
		}
		terms = append(terms, l.Term)
	}
	for len(terms) > 0 && terms[len(terms)-1] == 0 {
		terms = terms[:len(terms)-1]
	}
	return terms
}

func TestTheLogIsFittedToAnInstalledSnapshot(t *testing.T) {
	for _, c := range []struct {
		name string
		// terms of the entries from 10 on; 0 is a hole. The snapshot is of 13, term 2.
		terms, want []uint64
	}{
		{"it leads to the snapshot", []uint64{1, 1, 2, 2, 2}, []uint64{1, 1, 2, 2, 2}},
		{"it ends with the snapshot", []uint64{1, 1, 2, 2}, []uint64{1, 1, 2, 2}},
		{"it ends before", []uint64{1, 1, 1}, []uint64{0, 0, 0, 2}},
		{"it goes another way", []uint64{1, 1, 1, 1, 1, 1}, []uint64{0, 0, 0, 2, 1, 1}},
		{"another way, from the first entry on", []uint64{0, 0, 0, 1, 1}, []uint64{0, 0, 0, 2, 1}},
		{"a hole", []uint64{1, 1, 0, 0, 2}, []uint64{0, 0, 0, 2, 2}},
		{"it begins right after", []uint64{0, 0, 0, 0, 2}, []uint64{0, 0, 0, 2, 2}},
		{"it begins later", []uint64{0, 0, 0, 0, 0, 2}, []uint64{0, 0, 0, 0, 0, 2}},
		{"empty", nil, []uint64{0, 0, 0, 2}},
	} {
		for kind, log := range logsToFit(t) {
			storeTerms(t, log, 10, c.terms)
			g := &logGuard{LogStore: log, fail: func(err error) { t.Error(err) }, applied: func() uint64 { return 0 }}
			for range 2 { // fitting again changes nothing
				if err := g.fit(&raft.SnapshotMeta{Index: 13, Term: 2}); err != nil {
					t.Fatal(err)
				}
				if got := termsOf(t, log); !slices.Equal(got, c.want) {
					t.Errorf("%s, %s: the terms are %v, want %v", kind, c.name, got, c.want)
				}
			}
		}
	}
}

func TestCompactionLeavesTheSnapshotsEntry(t *testing.T) {
	for kind, log := range logsToFit(t) {
		g := &logGuard{LogStore: log, fail: func(err error) { t.Error(err) }, applied: func() uint64 { return 13 }}
		del := func(from, to uint64, want ...uint64) {
			t.Helper()
			if err := g.DeleteRange(from, to); err != nil {
				t.Fatal(err)
			}
			if got := termsOf(t, log); !slices.Equal(got, want) {
				t.Errorf("%s: deleting %d to %d leaves the terms %v, want %v", kind, from, to, got, want)
			}
		}
		del(0, 12)
		storeTerms(t, log, 10, []uint64{1, 1, 1, 1, 1, 1})
		del(10, 12, 0, 0, 1, 1, 1, 1)
		del(12, 12, 0, 0, 1, 1, 1, 1)
		del(10, 11, 0, 0, 1, 1, 1, 1) // it was fitted meanwhile
		del(14, 15, 0, 0, 1, 1)
	}
}

// A deposed leader's tail may be longer than all that the others have done since.
func TestADeposedLeaderWithALongTailCatchesUpFromASnapshot(t *testing.T) {
	tune := func(c *Config) { c.SnapshotThreshold, c.SnapshotInterval, c.TrailingLogs = 20, time.Second, 5 }
	simulate(t, 3, tune, func(t *testing.T, g *group) {
		old := g.leader()
		time.Sleep(time.Second)
		g.setCut(old.cfg.ID, true)
		for i := range 500 {
			old.raft.Apply(state.EncodeCommand(nil, state.SetDraining{Node: nodeID(i), Draining: true}), 0)
		}
		time.Sleep(2 * time.Second)
		tail, _ := old.st.Log.LastIndex()
		w := newWriter(t, g.leader())
		for i := range uint64(100) {
			w.extend(i, i+1, 100)
		}
		time.Sleep(5 * time.Second)
		list, err := w.n.st.Snapshots.List()
		if err != nil || len(list) == 0 || list[0].Index >= tail {
			t.Fatalf("the tail ends at %d, and the snapshots are %v (%v)", tail, list, err)
		}
		g.setCut(old.cfg.ID, false)
		sameState(t, w.n, old, 100)
	})
}

// installs remembers what was sent with the last snapshot.
type installs struct {
	mu   sync.Mutex
	req  *raft.InstallSnapshotRequest
	data []byte
}

type installWire struct {
	*raft.InmemTransport
	last *installs
}

func (w installWire) InstallSnapshot(id raft.ServerID, to raft.ServerAddress, q *raft.InstallSnapshotRequest, r *raft.InstallSnapshotResponse, data io.Reader) error {
	all, err := io.ReadAll(data)
	if err != nil {
		return err
	}
	c := *q
	w.last.mu.Lock()
	w.last.req, w.last.data = &c, all
	w.last.mu.Unlock()
	return w.InmemTransport.InstallSnapshot(id, to, q, r, bytes.NewReader(all))
}

func TestADelayedCopyOfASnapshotChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last installs
		g := emptyGroup(t, 3, func(c *Config) { c.SnapshotThreshold, c.SnapshotInterval, c.TrailingLogs = 20, time.Second, 5 })
		g.wrap = func(tr raft.Transport) raft.Transport { return installWire{tr.(*raft.InmemTransport), &last} }
		g.startAll()
		defer time.Sleep(30 * time.Second)
		defer g.stop()
		w := newWriter(t, g.leader())
		f := g.follower()
		g.setCut(f.cfg.ID, true)
		for i := range uint64(100) {
			w.extend(i, i+1, 100)
		}
		time.Sleep(5 * time.Second)
		g.setCut(f.cfg.ID, false)
		sameState(t, w.n, f, 100)
		last.mu.Lock()
		req, data := last.req, last.data
		last.mu.Unlock()
		if req == nil {
			t.Fatal("no snapshot was sent")
		}
		for i := range uint64(5) {
			w.extend(100+i, 101+i, 100)
		}
		sameState(t, w.n, f, 105)
		time.Sleep(100 * time.Millisecond)
		type has struct{ first, last, applied, raft uint64 }
		now := func() (h has) {
			h.first, _ = f.st.Log.FirstIndex()
			h.last, _ = f.st.Log.LastIndex()
			h.applied, h.raft = f.fsm.appliedIndex(), f.raft.AppliedIndex()
			return h
		}
		before := now()
		// Its newest snapshot may be the leader's or, by now, one of its own.
		if before.raft <= req.LastLogIndex {
			t.Fatalf("%+v, the leader's snapshot is of %d", before, req.LastLogIndex)
		}
		g.mu.Lock()
		tr := g.trs[w.n.cfg.ID]
		g.mu.Unlock()
		copied := *req
		err := tr.InstallSnapshot(raft.ServerID(f.cfg.ID), raft.ServerAddress(raftAddr(f.cfg.ID)), &copied, &raft.InstallSnapshotResponse{}, bytes.NewReader(data))
		if after := now(); after != before {
			t.Errorf("%+v became %+v", before, after)
		}
		// Raft counts as applied what it has handed on, a moment before the state has it.
		says := func(has uint64) bool {
			return strings.Contains(err.Error(), (&StaleSnapshotError{Snapshot: req.LastLogIndex, Has: has}).Error())
		}
		if err == nil || !says(before.raft) && !says(before.applied) {
			t.Errorf("the copy was answered with: %v", err)
		}
		w.extend(105, 106, 100)
		sameState(t, w.n, f, 106)
	})
}

func TestAnOwnSnapshotMayBeBehindAndALeadersMayNot(t *testing.T) {
	applied := uint64(20)
	g := &snapshotGuard{SnapshotStore: raft.NewInmemSnapshotStore(), fail: func(err error) { t.Error(err) }, applied: func() uint64 { return applied }}
	create := func(index uint64) error {
		sink, err := g.Create(1, index, 1, raft.Configuration{}, 1, nil)
		if err != nil {
			return err
		}
		return sink.Close()
	}
	stale := func(index uint64) {
		t.Helper()
		if err := create(index); !errors.As(err, new(*StaleSnapshotError)) {
			t.Errorf("a leader's of %d: %v", index, err)
		}
	}
	stale(19)
	g.taking(15)
	stale(14) // and the own one is still expected
	if err := create(15); err != nil {
		t.Fatal(err)
	}
	stale(16)
	for _, index := range []uint64{20, 25} {
		if err := create(index); err != nil {
			t.Errorf("a leader's of %d: %v", index, err)
		}
	}
	g.taking(15)
	stale(24) // overtaken by the one of 25
}

// fullSink has no room.
type fullSink struct{ raft.SnapshotSink }

func (fullSink) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
func (fullSink) Close() error              { return io.ErrShortWrite }

func TestADiskThatTakesNoSnapshotFailsTheNode(t *testing.T) {
	var failed []error
	s := &guardedSink{SnapshotSink: fullSink{}, guard: &snapshotGuard{fail: func(err error) { failed = append(failed, err) }}}
	_, werr := s.Write([]byte{1})
	cerr := s.Close()
	for _, err := range append(failed, werr, cerr) {
		if !errors.As(err, new(*disk.IOError)) {
			t.Errorf("not a disk failure: %v", err)
		}
	}
	if len(failed) != 2 {
		t.Errorf("the node was told %v", failed)
	}
}

func TestAStoppingNodeGivesItsSnapshotUp(t *testing.T) {
	f, failures := testFSM(&memoryIdentity{})
	if err := f.Restore(io.NopCloser(bytes.NewReader(founded(t, 10)))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.closing = ctx.Done()
	snap, err := f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Release()
	cancel()
	var sink cancelled
	if err := snap.Persist(&sink); !errors.Is(err, errStopping) || sink.closed || !sink.canceled || len(*failures) != 0 {
		t.Errorf("%v, closed %v, canceled %v, the node was told %v", err, sink.closed, sink.canceled, *failures)
	}
}
