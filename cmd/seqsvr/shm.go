package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	shmDir    = "/dev/shm"
	shmPrefix = "seqsvr-dev-"
	// noteSuffix is of the file that says which directory a cluster's arenas belong to.
	noteSuffix = ".dir"
)

// shm is where the AllocSvrs of a cluster that is to last keep their counters:
// in shared memory, under a name that follows from the cluster's directory.
type shm struct{ folder, base, note string }

// newShm answers nil if there is no shared memory here; the counters then go
// into the cluster's directory.
func newShm(folder, dir string) *shm {
	if unix.Access(folder, unix.W_OK) != nil {
		return nil
	}
	sum := sha256.Sum256([]byte(dir))
	base := filepath.Join(folder, shmPrefix+hex.EncodeToString(sum[:6]))
	return &shm{folder: folder, base: base, note: base + noteSuffix}
}

func (s *shm) arena(node string) string { return fmt.Sprintf("%s-%s.arena", s.base, node) }

// begin notes whose arenas these are, and removes those whose directory is
// gone: a killed process cannot do it itself.
func (s *shm) begin(dir string) error {
	notes, err := filepath.Glob(filepath.Join(s.folder, shmPrefix+"*"+noteSuffix))
	if err != nil {
		return err
	}
	for _, note := range notes {
		owner, err := os.ReadFile(note)
		if err != nil || !filepath.IsAbs(string(owner)) {
			continue // another user's, or half written
		}
		if _, err := os.Stat(string(owner)); errors.Is(err, os.ErrNotExist) {
			removeArenas(note)
		}
	}
	return os.WriteFile(s.note, []byte(dir), 0o600)
}

// end removes the note if a clean stop has removed all arenas.
func (s *shm) end() {
	if left, err := filepath.Glob(s.base + "-*.arena"); err == nil && len(left) == 0 {
		_ = os.Remove(s.note)
	}
}

func removeArenas(note string) {
	base := note[:len(note)-len(noteSuffix)]
	left, err := filepath.Glob(base + "-*.arena")
	if err != nil {
		return
	}
	for _, f := range left {
		_ = os.Remove(f)
	}
	_ = os.Remove(note)
}
