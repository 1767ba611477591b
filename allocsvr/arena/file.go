package arena

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// File is a Region in a file, mapped shared: in /dev/shm it is the machine's
// memory and goes with it. The file is as long as what is reserved of it, and the
// mapping as long as it may ever become, so memory never moves.
type File struct {
	path string
	max  int64
	f    *os.File
	mem  []byte
	size int64
	// unmap gives mem back.
	unmap func() error
	// hugeEnd: whatever begins below was made huge, or could not be; hugeErr is what
	// the last one came to.
	hugeEnd int64
	hugeErr error
}

// DefaultPath is where a node keeps its shared memory unless told otherwise.
func DefaultPath(cluster, node, kind string) string {
	clean := func(s string) string {
		return strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
				return r
			}
			return '_'
		}, s)
	}
	return filepath.Join("/dev/shm", "seqsvr-"+clean(cluster)+"-"+clean(node)+"."+clean(kind))
}

// NewFile names a file that will never be longer than bytesMax; it is opened by Lock.
func NewFile(path string, bytesMax int64) *File { return &File{path: path, max: bytesMax} }

// Name implements Region.
func (r *File) Name() string { return r.path }

// Size implements Region.
func (r *File) Size() int64 { return r.size }

// Lock implements Region: it opens or creates the file, takes its lock, and maps it.
func (r *File) Lock() error {
	f, err := lockFile(r.path)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("arena %s: %w", r.path, err), f.Close())
	}
	length := max(r.max, st.Size())
	page := int64(os.Getpagesize())
	length = max((length+page-1)/page*page, page)
	mem, unmap, err := mapFile(int(f.Fd()), length)
	if err != nil {
		return errors.Join(fmt.Errorf("arena %s: cannot map %d bytes: %w", r.path, length, err), f.Close())
	}
	r.f, r.mem, r.unmap, r.size = f, mem, unmap, st.Size()
	// What a process before this one left is as that one made it.
	r.hugeEnd = (r.size + hugePageBytes - 1) / hugePageBytes * hugePageBytes
	return nil
}

// lockFile opens path and takes its lock. A holder may remove the file while it
// has the lock, so a lock counts only if the path still leads to the locked file.
func lockFile(path string) (*os.File, error) {
	for range 100 {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("cannot open arena: %w: its folder must exist and be writable by this user", err)
		}
		mine, err := f.Stat()
		if err == nil && !mine.Mode().IsRegular() {
			err = fmt.Errorf("arena %s is not a regular file", path)
		}
		if err == nil {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = &InUseError{Path: path}
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		there, err := os.Lstat(path)
		if err == nil && os.SameFile(mine, there) {
			return f, nil
		}
		if cerr := f.Close(); cerr != nil {
			return nil, cerr
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("arena %s: %w", path, err)
		}
	}
	return nil, fmt.Errorf("arena %s is removed again and again by another process", path)
}

// Grow implements Region.
func (r *File) Grow(size int64) error {
	if size <= r.size {
		return nil
	}
	if size > int64(len(r.mem)) {
		return &FullError{Path: r.path, Need: size, Limit: int64(len(r.mem))}
	}
	if err := reserve(r.f, r.size, size-r.size); err != nil {
		// Some file systems keep a part of what they could not give whole.
		terr := r.f.Truncate(r.size)
		return &FullError{Path: r.path, Need: size, Err: errors.Join(err, terr)}
	}
	r.size = size
	r.huge()
	return nil
}

// Words implements Region.
func (r *File) Words(off, n int64) []atomic.Uint64 {
	if off < 0 || n < 0 || off+n > r.size {
		panic(fmt.Sprintf("arena: bytes [%d, %d) of %s do not exist", off, off+n, r.path))
	}
	return wordsOf(r.mem[off : off+n])
}

// Clear implements Region.
func (r *File) Clear() error {
	if err := r.f.Truncate(0); err != nil {
		return fmt.Errorf("arena %s: cannot empty it: %w", r.path, err)
	}
	r.size, r.hugeEnd = 0, 0
	return nil
}

// Close implements Region. The file is removed while the lock is still held, so
// that whoever opened it before finds out (see lockFile).
func (r *File) Close(remove bool) error {
	if r.f == nil {
		return nil
	}
	var err error
	if remove {
		if err = os.Remove(r.path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	err = errors.Join(err, r.unmap(), r.f.Close())
	r.f, r.mem, r.unmap, r.size = nil, nil, nil, 0
	return err
}
