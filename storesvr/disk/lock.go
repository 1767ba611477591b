package disk

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockPatience covers a predecessor that was killed and is still being torn down by the kernel.
const lockPatience = time.Second

// Lock is the exclusive hold on a directory; it ends with the process at the latest.
type Lock struct{ f *os.File }

// LockDir takes the directory, or says that another process has it.
func LockDir(dir string) (*Lock, error) {
	path := filepath.Join(dir, LockFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, &IOError{Path: path, Op: "open", Err: err}
	}
	deadline := time.Now().Add(lockPatience)
	tick := time.NewTicker(lockPatience / 20)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return &Lock{f: f}, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, &IOError{Path: path, Op: "lock", Err: err}
		}
		if time.Now().After(deadline) {
			f.Close()
			return nil, &InUseError{Path: dir}
		}
		<-tick.C
	}
}

// Release gives the directory up.
func (l *Lock) Release() error { return l.f.Close() }
