package storesvr

import (
	"os"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

// DelayWrites is for tests of slow disks only: every write to Raft's log and vote
// takes longer, by the duration that the file has at that moment ("2s"); without
// the file, or with nonsense in it, by nothing.
func DelayWrites(st Storage, file string) Storage {
	wait := func() {
		b, err := os.ReadFile(file)
		if err != nil {
			return
		}
		d, err := time.ParseDuration(strings.TrimSpace(string(b)))
		if err != nil {
			return
		}
		<-time.After(d) // a disk knows no context
	}
	st.Log = delayedLog{st.Log, wait}
	st.Stable = delayedStable{st.Stable, wait}
	return st
}

type delayedLog struct {
	raft.LogStore
	wait func()
}

func (d delayedLog) StoreLog(l *raft.Log) error {
	d.wait()
	return d.LogStore.StoreLog(l)
}

func (d delayedLog) StoreLogs(l []*raft.Log) error {
	d.wait()
	return d.LogStore.StoreLogs(l)
}

func (d delayedLog) DeleteRange(from, to uint64) error {
	d.wait()
	return d.LogStore.DeleteRange(from, to)
}

type delayedStable struct {
	raft.StableStore
	wait func()
}

func (d delayedStable) Set(k, v []byte) error {
	d.wait()
	return d.StableStore.Set(k, v)
}

func (d delayedStable) SetUint64(k []byte, v uint64) error {
	d.wait()
	return d.StableStore.SetUint64(k, v)
}
