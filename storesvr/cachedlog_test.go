package storesvr

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/storesvr/disk"
)

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
