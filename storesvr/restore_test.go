package storesvr

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/storesvr/disk"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// fullDisk has no room for an identity.
type fullDisk struct{ IdentityStore }

func (fullDisk) SaveIdentity(string, bool) error {
	return &disk.IOError{Path: "identity.json", Op: "write", Err: errors.New("no space left on device")}
}

func testFSM(identity IdentityStore) (f *fsm, failures *[]error) {
	failures = &[]error{}
	f = &fsm{keys: newMemoryKeys(), identity: identity, want: disk.Identity{Cluster: "c", Set: "s1"}, log: zap.NewNop(),
		counts: &counts{}, fail: func(err error) { *failures = append(*failures, err) }, changed: func() {}}
	f.st = state.New(f.keys)
	return f, failures
}

// founded is a snapshot of a founded cluster with one key, taken after some entry.
func founded(t *testing.T, applied uint64) []byte {
	t.Helper()
	st := state.New(newMemoryKeys())
	st.Apply(1, state.Genesis{Cluster: "c", ClusterID: "id", Set: "s1", Sections: 4, Spaces: ids.DefaultSpaces()}.OwningAll())
	st.Keys.Put(uid(1), state.Record{Floor: 7, Bound: 7})
	v, err := st.Keys.(*memoryKeys).Snapshot(applied, &st.Meta)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := disk.WriteSnapshot(&b, v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A follower that is behind gets so many entries at once, in one request that has
// raftIOTimeout, on a link of 100 Mbit/s.
func TestTheLargestRequestToAFollowerFitsIntoItsTime(t *testing.T) {
	const linkBytes = 100e6 / 8
	b := state.Batch{Session: 1 << 20, Incarnation: 1 << 10, Seq: 1 << 40}
	for range batchOpsMax {
		b.Ops = append(b.Ops, state.Op{Kind: state.OpExtend, Key: ids.Key{Space: 2, Hi: 1, Lo: 1}, Epoch: 1 << 20, Cur: 1 << 40, Step: 1 << 20})
	}
	request := len(state.EncodeCommand(nil, b)) * raftMaxAppendEntries
	if most := int(linkBytes * raftIOTimeout.Seconds()); request > most {
		t.Fatalf("%d MB, %d MB can be sent", request>>20, most>>20)
	}
}

// The keys are those of the snapshot by then, so the meta state must be too, or
// nothing may be applied any more.
func TestARestoreThatCannotBeFinishedFailsTheNode(t *testing.T) {
	f, failures := testFSM(fullDisk{&memoryIdentity{}})
	var ie *disk.IOError
	if err := f.Restore(io.NopCloser(bytes.NewReader(founded(t, 10)))); !errors.As(err, &ie) {
		t.Fatalf("restore: %v", err)
	}
	if len(*failures) != 1 || !errors.As((*failures)[0], &ie) {
		t.Fatalf("the node was told %v", *failures)
	}
	if err, _ := f.Apply(&raft.Log{Index: 2, Data: state.EncodeCommand(nil, state.SetDraining{Node: "n"})}).(error); !errors.Is(err, errFailed) {
		t.Fatalf("applying goes on: %v", err)
	}
}

func TestABadSnapshotDoesNotFailTheNode(t *testing.T) {
	f, failures := testFSM(&memoryIdentity{})
	snap := founded(t, 10)
	snap[len(snap)-1] ^= 1
	var se *disk.SnapshotError
	if err := f.Restore(io.NopCloser(bytes.NewReader(snap))); !errors.As(err, &se) || len(*failures) != 0 {
		t.Fatalf("%v, the node was told %v", err, *failures)
	}
}

// A large restore takes minutes: a follower says who leads, and how it is, all the while.
func TestAFollowerAnswersWhileItRestores(t *testing.T) {
	f, _ := testFSM(&memoryIdentity{})
	snap := founded(t, 10)
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- f.Restore(r) }()
	if _, err := w.Write(snap[:len(snap)/2]); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	answered := make(chan uint64, 1)
	go func() { answered <- f.appliedIndex() }()
	select {
	case applied := <-answered:
		if applied != 0 {
			t.Errorf("half a snapshot counts as %d entries applied", applied)
		}
	case <-ctx.Done():
		t.Error("no answer while a snapshot is restored")
	}
	if _, err := w.Write(snap[len(snap)/2:]); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if m, applied, err := f.meta(); err != nil || applied != 10 || m.Genesis.ClusterID != "id" {
		t.Fatalf("restored %d, %+v, %v", applied, m.Genesis, err)
	}
}

// cancelled is a sink that tells how it ended.
type cancelled struct {
	bytes.Buffer
	closed, canceled bool
}

func (c *cancelled) ID() string    { return "s" }
func (c *cancelled) Close() error  { c.closed = true; return nil }
func (c *cancelled) Cancel() error { c.canceled = true; return nil }

func TestASnapshotIsGivenUpWhenANewerOneIsInstalled(t *testing.T) {
	f, _ := testFSM(&memoryIdentity{})
	if err := f.Restore(io.NopCloser(bytes.NewReader(founded(t, 10)))); err != nil {
		t.Fatal(err)
	}
	for _, overtaken := range []bool{false, true} {
		snap, err := f.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		if overtaken {
			if err := f.Restore(io.NopCloser(bytes.NewReader(founded(t, 20)))); err != nil {
				t.Fatal(err)
			}
		}
		var sink cancelled
		err = snap.Persist(&sink)
		snap.Release()
		if (err != nil) != overtaken || sink.closed == overtaken || sink.canceled != overtaken {
			t.Errorf("overtaken %v: %v, closed %v, canceled %v", overtaken, err, sink.closed, sink.canceled)
		}
	}
}
