package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/chaos/check"
	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/chaos/load"
	"github.com/seqsvr/seqsvr/internal/cluster"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// What may happen to the stores and their disks. Warm keys go on being served
// without a failed call; cold ones are answered within their deadline, rightly or
// with a refusal; a store whose disk has failed ends and says so.
func TestStoreFaultsCostNoWarmKeyACall(t *testing.T) {
	dir := t.TempDir()
	delay := func(node string) string { return filepath.Join(dir, node+".delay") }
	f := startProcesses(t, cluster.ProcessOptions{
		Dir: dir, Stores: 3, Allocs: 2,
		Settings: func(node string) map[string]string {
			if strings.HasPrefix(node, "s") {
				return map[string]string{"test_log_delay": delay(node)}
			}
			return nil
		},
	})
	// Single numbers, few enough that no key comes to the end of its step: raising
	// its bound again is what a warm key does not need the stores for.
	c := clients{targets: f.targets(t, 4), keys: 40, rate: 100, mix: load.Mix{Alloc: 9, AllocMany: 1}, timeout: 10 * time.Second}
	run := func(name string, act func(*stage)) {
		t.Run(name, func(t *testing.T) {
			h := f.underLoad(t, c, func(s *stage) { during(1, func(int) { act(s) }) })
			lossless(t, judge(t, h, check.Options{}))
			logLatencies(t, h)
		})
	}
	run("a leader is killed", func(s *stage) { s.killStore("kill-leader", s.leader()) })
	run("a follower is killed", func(s *stage) { s.killStore("kill-follower", s.follower()) })
	run("a follower comes back with an old disk", func(s *stage) { s.oldDisk(s.follower()) })
	if long() == 1 {
		run("a follower's disk is slow by 2 s", func(s *stage) { s.slowDisk("slow-follower", s.follower(), delay) })
	}
	run("the leader's disk is slow by 2 s", func(s *stage) { s.slowDisk("slow-leader", s.leader(), delay) })
	run("a follower's log is damaged in the middle", func(s *stage) { s.damagedLog(s.follower()) })
}

func (s *stage) leader() *cluster.Process {
	s.t.Helper()
	id, err := s.f.Leader(s.ctx)
	must(s.t, err)
	return s.f.process(id)
}

func (s *stage) follower() *cluster.Process {
	s.t.Helper()
	leader := s.leader()
	for _, p := range s.f.p.Stores {
		if p != leader && p.Running() {
			return p
		}
	}
	s.t.Fatal("no follower")
	return nil
}

// cold asks for a number of a key that nobody has asked for yet, and fails the
// test unless it is the first one, or a refusal in time.
func (s *stage) cold(budget time.Duration) (outcome string) {
	s.t.Helper()
	_, keys := freshKeys(1)
	key := keys[0]
	ctx, cancel := context.WithTimeout(s.ctx, budget)
	defer cancel()
	begin := time.Now()
	r, err := s.f.client.Alloc(ctx, load.Key(key))
	took := time.Since(begin)
	if took > budget+time.Second {
		s.t.Errorf("a cold key kept its caller for %v, who had %v", took, budget)
	}
	if err == nil && (r.First != 1 || r.Discontinuity != nil) {
		s.t.Errorf("cold key %s: got %+v", key, r)
	}
	outcome = "served"
	if err != nil {
		outcome = err.Error()
	}
	return fmt.Sprintf("%s after %v", outcome, took.Round(time.Millisecond))
}

func (s *stage) killStore(name string, p *cluster.Process) {
	t := s.t
	s.harm(history.Fault{Name: name, Node: p.ID}, func() {
		must(t, p.Kill())
		t.Logf("a cold key meanwhile: %s", s.cold(5*time.Second))
		pause(t, time.Second)
		must(t, p.StartReady(s.ctx))
	})
}

// oldDisk puts the copy of a directory back that lacks what was committed since.
// That alone is harmless: what was committed is on the others, and the leader
// makes up for what is missing. (A disk that has gone back, at the same time as
// the loss of the only other one with the newest entries, is two disks lost of
// three; Raft does not survive that. A node that has applied what is then to be
// replaced refuses and stops: storesvr.LostQuorumError.)
func (s *stage) oldDisk(p *cluster.Process) {
	t := s.t
	s.harm(history.Fault{Name: "old-disk", Node: p.ID}, func() {
		must(t, p.Term(s.ctx))
		old := p.DataDir + ".old"
		must(t, os.RemoveAll(old))
		must(t, os.CopyFS(old, os.DirFS(p.DataDir)))
		must(t, p.StartReady(s.ctx))
		for range 20 {
			s.cold(5 * time.Second) // each a commit
		}
		must(t, p.Kill())
		must(t, p.RemoveData())
		must(t, os.Rename(old, p.DataDir))
		must(t, p.StartReady(s.ctx))
		s.f.caughtUp(t, p)
	})
	// It counts again: with it and one other, the group goes on.
	other := s.leader()
	if other == p {
		other = s.follower()
	}
	s.killStore("kill-other", other)
}

// caughtUp waits until a store has applied what the leader has.
func (f *fleet) caughtUp(t *testing.T, p *cluster.Process) {
	t.Helper()
	f.until(t, p.ID+" has caught up", func(set *seqpb.SetStatus) bool {
		var leader, own uint64
		for _, st := range set.Stores {
			if st.Role == "leader" {
				leader = st.Applied
			}
			if st.Id == p.ID {
				own = st.Applied
			}
		}
		return leader > 0 && own >= leader
	})
}

func (s *stage) slowDisk(name string, p *cluster.Process, delay func(string) string) {
	t := s.t
	file := delay(p.ID)
	t.Cleanup(func() { _ = os.Remove(file) })
	s.harm(history.Fault{Name: name, Node: p.ID}, func() {
		must(t, os.WriteFile(file, []byte("2s"), 0o644))
		for range 3 {
			t.Logf("a cold key meanwhile: %s", s.cold(5*time.Second))
			pause(t, time.Second)
		}
		must(t, os.Remove(file))
	})
	s.f.caughtUp(t, p)
}

// damagedLog flips bits in the log of a store that is down: it must refuse to
// start and change nothing, and the others go on.
func (s *stage) damagedLog(p *cluster.Process) {
	t := s.t
	file := filepath.Join(p.DataDir, "raft.db")
	s.harm(history.Fault{Name: "damaged-log", Node: p.ID}, func() {
		must(t, p.Kill())
		good, err := os.ReadFile(file)
		must(t, err)
		// The address of an AllocSvr is in the entry that registered it, and in
		// what the file has of pages that are not in use any more.
		addr := []byte(s.f.p.Allocs[0].RPCAddr)
		other := bytes.Clone(addr)
		other[len(other)-1] ^= 1
		bad := bytes.ReplaceAll(good, addr, other)
		if bytes.Equal(bad, good) {
			t.Fatal("found no entry to damage")
		}
		must(t, os.WriteFile(file, bad, 0o600))

		for range 2 { // it does not mend, or reset, what it complains of
			must(t, p.Start())
			s.endsLoudly(p, "raft.db is corrupt")
		}
		after, err := os.ReadFile(file)
		must(t, err)
		if len(after) < len(bad) || !bytes.Contains(after, other) {
			t.Error("the damaged log was replaced")
		}
		t.Logf("a cold key meanwhile: %s", s.cold(5*time.Second))

		// What the message says to do.
		must(t, p.RemoveData())
		must(t, p.StartReady(s.ctx))
		s.f.caughtUp(t, p)
	})
}

// endsLoudly waits for a process to end by itself, with a failure and a word on it.
func (s *stage) endsLoudly(p *cluster.Process, word string) {
	t := s.t
	t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, 30*time.Second)
	defer cancel()
	err := p.Wait(ctx)
	if err == nil || ctx.Err() != nil {
		t.Fatalf("%s did not end with a failure: %v", p.ID, err)
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("%s ended with %v, want exit status 1", p.ID, err)
	}
	log, rerr := os.ReadFile(p.LogPath)
	must(t, rerr)
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	last := lines[len(lines)-1]
	t.Logf("%s ended (%v): %s", p.ID, err, last)
	if !strings.Contains(last, word) {
		t.Errorf("its last line does not say %q", word)
	}
}

// A store on a file system of its own, which runs full: as a follower and as the leader.
func TestAStoreWithAFullDiskStopsAndSaysSo(t *testing.T) {
	dir := t.TempDir()
	small := filepath.Join(dir, "s1", "data")
	must(t, os.MkdirAll(small, 0o755))
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=24m"); err != nil {
		t.Skipf("disk-full: a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(small, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", small, err)
		}
	})
	f := startProcesses(t, cluster.ProcessOptions{Dir: dir, Stores: 3, Allocs: 2})
	c := clients{targets: f.targets(t, 4), keys: 40, rate: 100, mix: load.Mix{Alloc: 9, AllocMany: 1}, timeout: 10 * time.Second}
	s1 := f.p.Stores[0]
	filler := filepath.Join(small, "filler")
	for _, role := range []string{"follower", "leader"} {
		t.Run(role, func(t *testing.T) {
			f.lead(t, s1, role == "leader")
			h := f.underLoad(t, c, func(s *stage) {
				s.harm(history.Fault{Name: "full-" + role, Node: s1.ID}, func() {
					fill(t, filler)
					colds := 0
					for ; s1.Running(); colds++ {
						last := s.cold(5 * time.Second)
						if colds > 500 {
							t.Fatalf("it runs on without a byte of space; the last cold key: %s", last)
						}
						pause(t, 20*time.Millisecond)
					}
					s.endsLoudly(s1, "no space left")
					t.Logf("%d cold keys until then; one without it: %s", colds, s.cold(5*time.Second))
					must(t, os.Remove(filler))
					must(t, s1.StartReady(s.ctx))
					f.caughtUp(t, s1)
				})
			})
			lossless(t, judge(t, h, check.Options{}))
			logLatencies(t, h)
		})
	}
}

// fill writes until there is no space left.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	must(t, err)
	for size := 1 << 20; size > 0; {
		if _, err = file.Write(make([]byte, size)); err != nil {
			size /= 2 // the rest, down to the last byte
		}
	}
	_ = file.Close()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the file system does not run full: %v", err)
	}
}

// lead sees to it that a store leads, or that it does not.
func (f *fleet) lead(t *testing.T, p *cluster.Process, want bool) {
	t.Helper()
	for range 20 {
		leader, err := f.Leader(t.Context())
		must(t, err)
		if (leader == p.ID) == want {
			return
		}
		l := f.process(leader)
		must(t, l.Term(t.Context()))
		must(t, l.StartReady(t.Context()))
	}
	t.Fatalf("leadership of %s: want %v, and cannot bring it about", p.ID, want)
}
