package storesvr

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/storesvr/disk"
)

// proposal is as Raft's own: the log entry is a part of what waits for the answer.
type proposal struct {
	log    raft.Log
	answer *[1 << 10]byte
}

func TestTheLogsCacheKeepsNoAnswers(t *testing.T) {
	log, err := newCachedLog(raft.NewInmemStore())
	if err != nil {
		t.Fatal(err)
	}
	answers := make([]weak.Pointer[[1 << 10]byte], 3)
	func() {
		logs := make([]*raft.Log, len(answers))
		for i := range logs {
			p := &proposal{log: raft.Log{Index: uint64(i + 1), Data: []byte{byte(i)}}, answer: new([1 << 10]byte)}
			answers[i] = weak.Make(p.answer)
			logs[i] = &p.log
		}
		if err := log.StoreLogs(logs[:2]); err != nil {
			t.Fatal(err)
		}
		if err := log.StoreLog(logs[2]); err != nil {
			t.Fatal(err)
		}
	}()
	for i, a := range answers {
		for deadline := time.Now().Add(10 * time.Second); a.Value() != nil && time.Now().Before(deadline); {
			runtime.GC()
		}
		if a.Value() != nil {
			t.Errorf("the answer to entry %d is kept", i+1)
		}
		var l raft.Log
		if err := log.GetLog(uint64(i+1), &l); err != nil || l.Index != uint64(i+1) || l.Data[0] != byte(i) {
			t.Errorf("entry %d: %+v, %v", i+1, l, err)
		}
	}
}

// What the disk said decides what an operator is told to do.
func TestTheLogsCacheKeepsTheTypeOfAFailedWrite(t *testing.T) {
	var failure atomic.Pointer[error]
	log, err := newCachedLog(failingStore{raft.NewInmemStore(), &failure})
	if err != nil {
		t.Fatal(err)
	}
	said := error(&disk.CorruptError{Path: "raft.db", What: "log entry 1", Err: errors.New("checksum")})
	failure.Store(&said)
	if err := log.StoreLog(&raft.Log{Index: 1}); !errors.As(err, new(*disk.CorruptError)) {
		t.Fatalf("answered %v", err)
	}
	failure.Store(nil)
	if err := log.StoreLog(&raft.Log{Index: 1}); err != nil {
		t.Fatal(err)
	}
}
